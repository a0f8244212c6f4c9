"""An allocation in simulated time, through the very scheduler class that a pilot uses."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from hpo_pilot.hpc.scheduler import Policy, Scheduler
from hpo_pilot.hpc.usage import Ending, ScheduledJob, Start, Usage
from hpo_pilot.jobs.resources import Node
from tests.hpc.checker import Event
from tests.hpc.trials import TrialServer


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        costs: CPU seconds of each call of `starts` that started something, per job started.
        others: CPU seconds of every other call of the scheduler, by its name.
        most_running: jobs at once.
    """

    events: list[Event]
    usage: Usage
    costs: list[float]
    others: dict[str, list[float]]
    most_running: int
    handed_back: int


@dataclass
class Simulation:
    """One allocation.

    Attributes:
        ends: when the batch system ends it.
        losses: (when, which node).
        latency: seconds from the scheduler's request to the server's jobs.
        blind: the scheduler does not know the end of the allocation, so it starts jobs until then.
        turns: jobs come one by one in the server's order, as for a plain queue, which is blind too; else as the
            scheduler requests.
    """

    nodes: Sequence[Node]
    server: TrialServer
    ends: float
    losses: Iterable[tuple[float, str]] = ()
    policy: Policy = field(default_factory=Policy)
    latency: float = 1.0
    blind: bool = False
    turns: bool = False

    def run(self) -> Outcome:
        """From the allocation's beginning to its end."""
        ends = math.inf if self.blind or self.turns else self.ends
        self.scheduler = Scheduler(self.nodes, ends=ends, policy=self.policy)
        self.events: list[Event] = []
        self.costs: list[float] = []
        self.others: dict[str, list[float]] = {}
        self._agenda: list[tuple[float, int, str, object]] = []
        self._number = 0
        self._running: dict[Hashable, Start] = {}
        self._asked = False
        self._handed_back = most = 0
        for when, node in self.losses:
            self._plan(when, "lose", node)
        for when in self.server.arrivals:
            self._plan(when, "ask", None)
        while self._agenda:
            now, _, what, about = heapq.heappop(self._agenda)
            if now >= self.ends:
                break
            getattr(self, f"_{what}")(now, about)
            if not self._agenda or self._agenda[0][0] > now:
                self._settle(now)
                most = max(most, self.scheduler.running)
        for key in list(self._running):
            self._end(self.ends, (key, Ending.CUT))
        return Outcome(self.events, self.scheduler.usage(self.ends), self.costs, self.others, most, self._handed_back)

    def _plan(self, when: float, what: str, about: object) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (when, self._number, what, about))

    def _ask(self, now: float, _: object) -> None:
        """Something may have changed: `_settle` does the rest."""

    def _end(self, now: float, about: tuple[Hashable, Ending]) -> None:
        key, ending = about
        if start := self._running.pop(key, None):  # else it was lost with a node
            self.server.over(start.job, now)
            self._timed("ended", key, ending, now)
            for later in (self.server.pause, 60.0):  # the next trial is there; its nodes are kept no longer
                self._plan(now + later, "ask", None)
            self.events.append(Event(now, ended=key, ending=ending))

    def _lose(self, now: float, node: str) -> None:
        self.events.append(Event(now, lost=node))
        for job in self._timed("lose_node", node, now):
            self._end(now, (job.key, Ending.LOST))

    def _arrive(self, now: float, jobs: list[ScheduledJob]) -> None:
        self._asked = False
        for job in jobs:
            self._timed("add", job)

    def _settle(self, now: float) -> None:
        """What a pilot does after anything that happened."""
        self._starts(now)
        self._take_back(now)
        if self.turns:
            self._queue(now)
        elif not self._asked:
            request = self._timed("request_jobs", now)
            if jobs := self.server.hand_out(request, now):
                self._asked = True
                self._plan(now + self.latency, "arrive", jobs)

    def _queue(self, now: float) -> None:
        """Jobs as they come, until one has to wait."""
        while not self.scheduler.waiting and (job := self.server.next_in_turn(now)):
            self._timed("add", job)
            self._starts(now)
            self._take_back(now)

    def _take_back(self, now: float) -> None:
        for job in self._timed("hand_back", now):
            self._handed_back += 1
            self.server.take_back(job)

    def _starts(self, now: float) -> None:
        begun = time.process_time()
        found: list[Start] = self.scheduler.starts(now)
        cost = time.process_time() - begun
        if found:
            self.costs += [cost / len(found)] * len(found)
        else:
            self.others.setdefault("starts", []).append(cost)
        for start in found:
            self._running[start.job.key] = start
            self.events.append(Event(now, start))
            seconds, finished = self.server.fate(start.job)
            self._plan(now + seconds, "end", (start.job.key, Ending.FINISHED if finished else Ending.FAILED))

    def _timed(self, name: str, *arguments: object) -> Sequence[ScheduledJob]:
        begun = time.process_time()
        answer = getattr(self.scheduler, name)(*arguments)
        self.others.setdefault(name, []).append(time.process_time() - begun)
        return answer  # type: ignore[no-any-return]
