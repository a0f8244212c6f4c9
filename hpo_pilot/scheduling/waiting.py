"""Jobs that wait to be started, in the order in which they came."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable, Iterator

from hpo_pilot.jobs.task import JobNeeds
from hpo_pilot.scheduling.job import Job


class Line:
    """Jobs of one search with the same needs: where the first cannot start, none can."""

    def __init__(self, search: str, needs: JobNeeds) -> None:
        self.search, self.needs = search, needs
        self.jobs: deque[tuple[int, Job]] = deque()

    @property
    def first(self) -> Job:
        """The oldest."""
        return self.jobs[0][1]

    def __lt__(self, other: Line) -> bool:
        return self.jobs[0][0] < other.jobs[0][0]


class Waiting:
    """The lines, the one with the oldest job first."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[str, JobNeeds], Line] = {}
        self._order: list[Line] = []
        self._keys: set[Hashable] = set()
        self._came = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[Job]:
        return (job for line in self._order for _, job in line.jobs)

    @property
    def lines(self) -> int:
        """How many there are."""
        return len(self._order)

    def line(self, place: int) -> Line:
        """The line at a place, from 0; its oldest job is older than that of the next."""
        return self._order[place]

    def add(self, job: Job) -> None:
        """A job comes."""
        self._came += 1
        self._keys.add(job.key)
        line = self._by_kind.get((job.search, job.needs))
        if line is not None:
            line.jobs.append((self._came, job))
            return
        line = self._by_kind[job.search, job.needs] = Line(job.search, job.needs)
        line.jobs.append((self._came, job))
        self._order.append(line)

    def pop(self, place: int) -> Job:
        """Takes the oldest job of the line at a place; the line moves back to where its next job belongs."""
        line = self._order.pop(place)
        _, job = line.jobs.popleft()
        self._keys.discard(job.key)
        if line.jobs:
            insort(self._order, line, lo=place)
        else:
            del self._by_kind[line.search, line.needs]
        return job

    def remove(self, place: int) -> list[Job]:
        """Takes all the jobs of the line at a place."""
        line = self._order.pop(place)
        del self._by_kind[line.search, line.needs]
        found = [job for _, job in line.jobs]
        self._keys.difference_update(job.key for job in found)
        return found
