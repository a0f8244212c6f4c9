"""Searches that want nodes, and a server that hands out their trials: the same trials whoever asks."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hpo_pilot.hpc.capacity import AllocationRequest
from hpo_pilot.hpc.usage import ScheduledJob
from hpo_pilot.jobs import JobNeeds


@dataclass(frozen=True)
class TrialSource:
    """A search.

    Attributes:
        needs: of each trial.
        median: of the run times, which are log-normal, in seconds.
        sigma: of the run times' logarithm.
        count: how many trials it has in all.
        arrives: when it is submitted, in seconds.
        parallel: how many of them it wants at once.
    """

    name: str
    needs: JobNeeds
    median: float
    sigma: float
    count: int = 1_000_000
    arrives: float = 0.0
    parallel: int = 1_000_000

    @property
    def mean(self) -> float:
        """Of the run times, but for their limit."""
        return self.median * math.exp(self.sigma**2 / 2)


class TrialServer:
    """Hands trials out: those of the search that has the fewest cores at pilots first, as the real one does.

    A trial that ends is replaced after `pause` seconds: until then its search has one less that runs or waits.
    """

    def __init__(self, sources: list[TrialSource], *, seed: int, failures: float = 0.01, pause: float = 0.0) -> None:
        self.pause = pause
        self._ended: dict[str, deque[float]] = {source.name: deque() for source in sources}
        self._sources = {source.name: source for source in sources}
        self._next = dict.fromkeys(self._sources, 0)
        self._returned: dict[str, list[ScheduledJob]] = {name: [] for name in self._sources}
        self._cores = dict.fromkeys(self._sources, 0)
        self._seed, self._failures = seed, failures

    @property
    def arrivals(self) -> list[float]:
        """When searches come."""
        return sorted({source.arrives for source in self._sources.values()})

    def fate(self, job: ScheduledJob) -> tuple[float, bool]:
        """(seconds that a trial runs, whether it is finished then): drawn once for each trial."""
        source = self._sources[job.search]
        dice = random.Random(f"{self._seed} {job.key}")
        seconds = source.median * math.exp(dice.gauss(0.0, source.sigma))
        fails = dice.random() < self._failures
        if fails:
            seconds *= dice.random()
        return min(seconds, job.needs.seconds), not fails and seconds <= job.needs.seconds

    def hand_out(self, request: AllocationRequest, now: float) -> list[ScheduledJob]:
        """The jobs in turn that fit into the room of a request, up to one that the scheduler makes room for."""
        found: list[ScheduledJob] = []
        turns = self._turns(now)
        while turns:
            name = min(turns, key=lambda name: (self._cores[name], name))
            needs = self._sources[name].needs
            if not self._has(name, now):
                turns.remove(name)
            elif request.now.take(needs, request.needed(name, needs)):
                found.append(self._job(name))
            elif request.may_wait(needs):
                return [*found, self._job(name)]
            else:
                turns.remove(name)
        return found

    def next_in_turn(self, now: float) -> ScheduledJob | None:
        """The job that is next, whether it fits anywhere or not."""
        turns = self._turns(now)
        return self._job(min(turns, key=lambda name: (self._cores[name], name))) if turns else None

    def hand_out_of(self, name: str, now: float) -> ScheduledJob | None:
        """The next job of one search."""
        return self._job(name) if self._has(name, now) else None

    def over(self, job: ScheduledJob, now: float) -> None:
        """A pilot has done with a job."""
        self._cores[job.search] -= job.needs.nodes * job.needs.cores
        self._ended[job.search].append(now)

    def take_back(self, job: ScheduledJob) -> None:
        """A pilot did not start it: another may."""
        self._cores[job.search] -= job.needs.nodes * job.needs.cores
        self._returned[job.search].append(job)

    def _turns(self, now: float) -> list[str]:
        return [name for name, source in self._sources.items() if source.arrives <= now and self._has(name, now)]

    def _has(self, name: str, now: float) -> bool:
        source, ended = self._sources[name], self._ended[name]
        while ended and ended[0] + self.pause <= now:
            ended.popleft()
        at_pilots = self._cores[name] // (source.needs.nodes * source.needs.cores)
        return at_pilots + len(ended) < source.parallel and (
            bool(self._returned[name]) or self._next[name] < source.count
        )

    def _job(self, name: str) -> ScheduledJob:
        source = self._sources[name]
        self._cores[name] += source.needs.nodes * source.needs.cores
        if self._returned[name]:
            return self._returned[name].pop()
        self._next[name] += 1
        return ScheduledJob(f"{name}-{self._next[name]}", name, source.needs)


def nodes_lost(names: list[str], count: int, until: float, seed: int) -> Iterator[tuple[float, str]]:
    """(when, which) of so many losses, at random."""
    dice = random.Random(f"losses {seed}")
    for name in dice.sample(names, count):
        yield dice.uniform(0.0, until), name
