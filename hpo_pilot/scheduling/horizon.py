"""When running jobs are likely to end, and what could start then."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpo_pilot.jobs.task import JobNeeds
from hpo_pilot.scheduling.account import Stay
from hpo_pilot.scheduling.capacity import Capacity, Part
from hpo_pilot.scheduling.job import Job
from hpo_pilot.scheduling.node_set import close_together, node_set
from hpo_pilot.scheduling.reservation import Reservation

_RENEWAL = 0.25  # of the time until a promised start, after which an earlier one is looked for
_GRACE = 60.0  # seconds that a job past its limit is given to be gone


@dataclass(slots=True, eq=False)
class Running:
    """A job that runs; what it has shrinks when a node of it is lost.

    Attributes:
        number: unique, ascending.
        end: when it is likely to end.
    """

    job: Job
    number: int
    start: float
    end: float
    parts: Sequence[Part]
    stays: Sequence[Stay]
    nodes: int

    def covers(self, needs: JobNeeds) -> bool:
        """Whether each of its nodes has room for a part of such a job once this one has ended."""
        own = self.job.needs
        return (
            own.gpus_per_node >= needs.gpus_per_node and own.cores >= needs.cores and own.memory_mb >= needs.memory_mb
        )


class Horizon:
    """The running jobs by their likely ends."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, Running]] = []

    def __iter__(self) -> Iterator[Running]:
        return (running for _, _, running in self._ends)

    def add(self, running: Running) -> None:
        """A job starts."""
        insort(self._ends, (running.end, running.number, running))

    def remove(self, running: Running) -> None:
        """A job has ended."""
        del self._ends[bisect_left(self._ends, (running.end, running.number))]

    def reserve(self, job: Job, capacity: Capacity, now: float) -> Reservation | None:
        """Where and when a job could start that cannot start now; None: never, for too many nodes are lost."""
        self._put_off(now)
        needs = job.needs
        ready = capacity.fitting(needs, capacity.up)
        left: dict[int, tuple[int, int, int]] = {}
        later = []
        for end, _, running in self._ends:
            if running.covers(needs):  # the usual case, and its cost does not depend on how many nodes it has
                found = running.nodes & ~ready
            else:
                found = node_set(
                    part.node
                    for part in running.parts
                    if not ready >> part.node & 1 and _has_room(needs, running, part.node, capacity, left)
                )
            if found:
                ready |= found
                later.append((end, found))
                if ready.bit_count() >= needs.nodes:
                    nodes = close_together(ready, needs.nodes)
                    kept = tuple((when, some & nodes) for when, some in later if some & nodes)
                    return Reservation(job, nodes, end, now + _RENEWAL * (end - now), kept)
        return None

    def clear_times(self, now: float) -> dict[int, float]:
        """When each node that is not empty is likely to be."""
        self._put_off(now)
        return {part.node: end for end, _, running in self._ends for part in running.parts}

    def _put_off(self, now: float) -> None:
        """Jobs that last longer than was likely: half as long again as until now, at most to their limit."""
        overdue = bisect_left(self._ends, (now, math.inf))
        for _, number, running in self._ends[:overdue]:
            limit = running.start + running.job.limit
            longer = min(limit, running.start + 1.5 * (now - running.start))
            running.end = longer if longer > now else now + _GRACE
            self._ends.append((running.end, number, running))
        if overdue:
            del self._ends[:overdue]
            self._ends.sort()


def _has_room(
    needs: JobNeeds, running: Running, node: int, capacity: Capacity, left: dict[int, tuple[int, int, int]]
) -> bool:
    """Whether a node has room for a part of a job once one more of its jobs has ended; `left` is brought up to date."""
    gpus, cores, memory = left.get(node) or capacity.free(node)
    own = running.job.needs
    left[node] = gpus, cores, memory = gpus + own.gpus_per_node, cores + own.cores, memory + own.memory_mb
    return gpus >= needs.gpus_per_node and cores >= needs.cores and memory >= needs.memory_mb
