"""The board on which tasks with waiting jobs hang, sorted so that a pilot's look at it costs the same however many.

It is a memory of what the database has (`open_tasks` reads it), kept by the writing thread alone: tasks are hung up
when a committed transaction says that jobs came to wait or that what brokerage looks at has changed, and taken down
when a look finds no waiting job. So the board may show a task too many, never one too few. After a rollback there is
a new board.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hpo_pilot.server.brokerage.needs import Needs

#: The columns of a task whose change moves it on the board.
BROKERED = frozenset({"priority", "queue", "included", "excluded", "campaign", "needs"})

_TURNS = 10_000  # campaigns whose last turn is remembered
_LOADS_SECONDS = 1.0  # how old the count of jobs at pilots may be; acquisitions since are added to it


@dataclass(frozen=True)
class Kind:
    """What a pilot looks at: the jobs of tasks of one kind are alike to it.

    Attributes:
        included: ",A,B," or empty: the queues to which they may go.
        excluded: the same: those to which they must not.
    """

    label: str
    included: str
    excluded: str
    needs: Needs


@dataclass(frozen=True)
class Lot:
    """The waiting jobs of a task at one queue (empty: at any)."""

    task_id: int
    queue: str
    user_name: str
    priority: int
    campaign: str
    kind: Kind

    @property
    def shelf(self) -> tuple[int, Kind]:
        """Where among those of its queue it stands."""
        return (-self.priority, self.kind)


#: The lots of one queue, priority and kind: campaign -> heap of task ids.
Shelf = dict[str, list[int]]


class Board:
    """The lots, and how much of the pilots each campaign has."""

    def __init__(self) -> None:
        #: Whether everything that waited when the database was opened has been hung up.
        self.complete = False
        self._unread: set[tuple[int, str]] = set()
        self._lots: dict[tuple[int, str], Lot] = {}
        self._queues_of: defaultdict[int, set[str]] = defaultdict(set)
        self._shelves: defaultdict[str, dict[tuple[int, Kind], Shelf]] = defaultdict(dict)
        self._loads: Counter[str] = Counter()
        self._loads_of: float | None = None
        self._turns: dict[str, int] = {}
        self._turn = 0

    def note(self, activated: Iterable[tuple[str, int]], changed: Iterable[int]) -> None:
        """What a committed transaction did.

        Args:
            activated: (queue, task) of jobs that came to wait.
            changed: tasks whose columns in `BROKERED` changed.
        """
        self._unread.update((task_id, queue) for queue, task_id in activated)
        for task_id in changed:
            self._unread.update((task_id, queue) for queue in self._queues_of.get(task_id, ()))

    def unread(self) -> frozenset[tuple[int, str]]:
        """What is to be hung up anew, as (task, queue)."""
        return frozenset(self._unread)

    def hang_up(self, lots: Iterable[Lot]) -> None:
        """Hangs up what `unread` asked for, as the database has it now."""
        for lot in lots:
            self._hang_up(lot)
        self._unread.clear()

    def _hang_up(self, lot: Lot) -> None:
        if self._lots.get((lot.task_id, lot.queue)) == lot:
            return
        self._lots[lot.task_id, lot.queue] = lot
        self._queues_of[lot.task_id].add(lot.queue)
        shelf = self._shelves[lot.queue].setdefault(lot.shelf, {})
        heapq.heappush(shelf.setdefault(lot.campaign, []), lot.task_id)

    def take_down(self, task_id: int, queue: str) -> None:
        """Forgets a lot; its place in the heaps goes when it is looked at."""
        if self._lots.pop((task_id, queue), None) is not None:
            self._queues_of[task_id].discard(queue)
            if not self._queues_of[task_id]:
                del self._queues_of[task_id]

    def shelves(self, queues: Iterable[str]) -> list[tuple[int, list[tuple[str, Kind, Shelf]]]]:
        """What hangs at these queues: (priority, its shelves), the highest priority first."""
        found: defaultdict[int, list[tuple[str, Kind, Shelf]]] = defaultdict(list)
        for queue in queues:
            for (minus, kind), shelf in self._shelves.get(queue, {}).items():
                found[-minus].append((queue, kind, shelf))
        return sorted(found.items(), key=lambda item: -item[0])

    def first(self, queue: str, key: tuple[int, Kind], campaign: str) -> Lot | None:
        """The oldest task of a campaign on a shelf; None: there is none left, and the campaign is off the shelf."""
        shelf = self._shelves[queue][key]
        heap = shelf[campaign]
        while heap:
            lot = self._lots.get((heap[0], queue))
            if lot is not None and lot.shelf == key and lot.campaign == campaign:
                return lot
            heapq.heappop(heap)
        del shelf[campaign]
        if not shelf:
            del self._shelves[queue][key]
        return None

    def lots(self) -> Iterator[Lot]:
        """Everything that hangs."""
        return iter(list(self._lots.values()))

    # Shares.

    def loads_are_stale(self, now: float) -> bool:
        """Whether the cores at pilots should be counted anew; `now` in seconds since the epoch."""
        # A clock that was set back makes them stale as well.
        return self._loads_of is None or not 0 <= now - self._loads_of < _LOADS_SECONDS

    def set_loads(self, now: float, loads: Mapping[str, int]) -> None:
        """The cores that each campaign has at pilots."""
        self._loads, self._loads_of = Counter(loads), now

    def burden(self, campaign: str) -> tuple[int, int]:
        """What orders campaigns, the lowest first: cores at pilots, then whose turn was longest ago."""
        return self._loads[campaign], self._turns.get(campaign, 0)

    def serve(self, campaign: str, cores: int) -> None:
        """A campaign gets jobs of so many cores."""
        self._turn += 1
        self._turns.pop(campaign, None)  # so that the oldest turns come first
        self._turns[campaign] = self._turn
        if len(self._turns) > _TURNS:
            del self._turns[next(iter(self._turns))]
        self._loads[campaign] += cores
