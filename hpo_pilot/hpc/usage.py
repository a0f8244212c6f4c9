"""Jobs as the scheduler sees them, and how they used the node-seconds and GPU-seconds of an allocation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpo_pilot.hpc.capacity import NodeShape
from hpo_pilot.jobs.tasks import JobNeeds


@dataclass(frozen=True)
class Job:
    """A job that waits or runs.

    Attributes:
        key: what the caller knows it by; unique among those that wait or run.
        search: whose run times are like its own.
        needs: `minutes` is when it is ended if it still runs: the scheduler relies on it.
    """

    key: Hashable
    search: str
    needs: JobNeeds

    @property
    def limit(self) -> float:
        """Seconds that it may run."""
        return 60.0 * self.needs.minutes


class Ending(StrEnum):
    """Why a job runs no more."""

    FINISHED = "finished"  #: by itself, well: its run time is measured
    FAILED = "failed"  #: by itself, or at the limit of its minutes
    LOST = "lost"  #: a node was lost under it
    CUT = "cut"  #: the allocation came to its end, and what it did is gone
    CHECKPOINTED = "checkpointed"  #: the allocation came to its end, and another goes on where it was

    @property
    def is_useful(self) -> bool:
        """Whether the time that went into the job was used, not lost."""
        return self in (Ending.FINISHED, Ending.CHECKPOINTED)


@dataclass(frozen=True)
class Share:
    """What a job has on one node.

    Attributes:
        node: its name.
        gpus: their numbers, from 0.
        cores: their numbers among those that jobs may use, from 0.
    """

    node: str
    gpus: tuple[int, ...]
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """A job that is to be started now, and where: its nodes in the order of the allocation."""

    job: Job
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Spent:
    """Seconds of nodes, or of GPUs.

    Attributes:
        used: by jobs that were of use.
        lost: by jobs that failed, were cut, or lost a node.
        running: by jobs that still run.
        idle: no job had them.
        gone: after the loss of their node.
    """

    used: float
    lost: float
    running: float
    idle: float = 0.0
    gone: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.used + self.lost + self.running + self.idle + self.gone


@dataclass(frozen=True)
class SearchUsage:
    """What one search spent, in seconds; of node-seconds that jobs share, its jobs' shares."""

    nodes: Spent
    gpus: Spent
    endings: Mapping[Ending, int]


@dataclass(frozen=True)
class Usage:
    """What became of an allocation so far, in seconds.

    A node is used as soon as one job is on it. Jobs side by side share its seconds by what each has of the node, of
    GPUs, cores and memory the largest part.
    """

    nodes: Spent
    gpus: Spent
    searches: Mapping[str, SearchUsage]


class _Sums:
    def __init__(self) -> None:
        self.node_seconds = [0.0, 0.0]  # lost, used
        self.gpu_seconds = [0.0, 0.0]
        self.endings: Counter[Ending] = Counter()


class Stay:
    """A job's stay on one node, from `Account.begin` to `Account.end`."""

    __slots__ = ("began", "gpus", "mark", "node", "weight")

    def __init__(self, node: int, gpus: int, weight: float, mark: float, began: float) -> None:
        self.node, self.gpus, self.weight, self.mark, self.began = node, gpus, weight, mark, began


class Account:
    """Keeps the books.

    Each node has a meter that runs at one second per second, divided by what its jobs weigh together: a job's share of
    the node's time is what the meter went on during its stay, times its weight.
    """

    def __init__(self, shapes: Sequence[NodeShape], begins: float) -> None:
        """Of nodes with these shapes, from a time on."""
        self._shapes = tuple(shapes)
        self._begins = begins
        self._meters = [0.0] * len(shapes)
        self._read = [begins] * len(shapes)
        self._weights = [0.0] * len(shapes)
        self._stays = [0] * len(shapes)
        self._gone: dict[int, float] = {}
        self._sums: dict[str, _Sums] = {}

    def begin(self, needs: JobNeeds, nodes: Iterable[int], now: float) -> list[Stay]:
        """A job comes to nodes."""
        stays = []
        for node in nodes:
            shape = self._shapes[node]
            weight = max(
                needs.gpus_per_node / (shape.gpus or 1), needs.cores / shape.cores, needs.memory_mb / shape.memory_mb
            )
            self._read_meter(node, now)
            self._weights[node] += weight
            self._stays[node] += 1
            stays.append(Stay(node, needs.gpus_per_node, weight, self._meters[node], now))
        return stays

    def end(self, search: str, stays: Iterable[Stay], now: float, *, useful: bool) -> None:
        """A job leaves nodes."""
        sums = self._sums.setdefault(search, _Sums())
        for stay in stays:
            node = stay.node
            self._read_meter(node, now)
            sums.node_seconds[useful] += (self._meters[node] - stay.mark) * stay.weight
            sums.gpu_seconds[useful] += (now - stay.began) * stay.gpus
            self._stays[node] -= 1
            # Nobody is left: what rounding left goes too.
            self._weights[node] = self._weights[node] - stay.weight if self._stays[node] else 0.0

    def count(self, search: str, ending: Ending) -> None:
        """A job of a search has ended."""
        self._sums.setdefault(search, _Sums()).endings[ending] += 1

    def lose(self, node: int, now: float) -> None:
        """A node is gone; no job is on it any more."""
        self._gone[node] = now

    def usage(self, running: Iterable[tuple[str, Sequence[Stay]]], now: float) -> Usage:
        """The books at a moment that is not before the last entry.

        Args:
            running: search and stays of every job that runs.
            now: seconds.
        """
        node_seconds: defaultdict[str, float] = defaultdict(float)
        gpu_seconds: defaultdict[str, float] = defaultdict(float)
        for search, stays in running:
            for stay in stays:
                self._read_meter(stay.node, now)
                node_seconds[search] += (self._meters[stay.node] - stay.mark) * stay.weight
                gpu_seconds[search] += (now - stay.began) * stay.gpus
        names = sorted(self._sums.keys() | node_seconds.keys())
        searches = {}
        for name in names:
            sums = self._sums.get(name) or _Sums()
            searches[name] = SearchUsage(
                Spent(sums.node_seconds[True], sums.node_seconds[False], node_seconds[name]),
                Spent(sums.gpu_seconds[True], sums.gpu_seconds[False], gpu_seconds[name]),
                dict(sums.endings),
            )
        length = now - self._begins
        gone = {node: now - since for node, since in self._gone.items()}
        gpus_gone = sum(self._shapes[node].gpus * seconds for node, seconds in gone.items())
        return Usage(
            _total([one.nodes for one in searches.values()], length * len(self._shapes), sum(gone.values())),
            _total([one.gpus for one in searches.values()], length * sum(s.gpus for s in self._shapes), gpus_gone),
            searches,
        )

    def _read_meter(self, node: int, now: float) -> None:
        if self._weights[node]:
            self._meters[node] += (now - self._read[node]) / self._weights[node]
        self._read[node] = now


def _total(parts: Sequence[Spent], available: float, gone: float) -> Spent:
    used, lost, running = (sum(getattr(one, name) for one in parts) for name in ("used", "lost", "running"))
    return Spent(used, lost, running, available - used - lost - running - gone, gone)
