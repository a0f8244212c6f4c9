"""Nodes that are kept for a job that waits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpo_pilot.scheduling.job import Job
from hpo_pilot.scheduling.node_set import close_together, lowest


@dataclass(frozen=True)
class Reservation:
    """A promise to a job.

    Attributes:
        nodes: on which no job starts that is not likely to end before `start`.
        start: when the job should start; it is only ever brought forward, unless a node is lost.
        renew: when it is worth while to look for an earlier start.
        later: when which of the nodes are likely to have room that had none when they were chosen, ascending.
    """

    job: Job
    nodes: int
    start: float
    renew: float
    later: tuple[tuple[float, int], ...]

    def exchanged(self, fit: int) -> Reservation:
        """Nodes that have room now take the places of those kept that have none: the last ones that would have.

        So the job starts as soon as enough nodes are free, whichever these are.

        Args:
            fit: all nodes that have room for a part of the job now, fewer than it needs.
        """
        better, busy = fit & ~self.nodes, self.nodes & ~fit
        if not better:
            return self
        later, dropped, missing = list(self.later), 0, better.bit_count()
        while missing and later:
            when, nodes = later.pop()
            nodes &= busy
            some = lowest(nodes, missing) if nodes.bit_count() > missing else nodes
            dropped |= some
            missing -= some.bit_count()
            if nodes != some:
                later.append((when, nodes ^ some))
        dropped |= lowest(busy & ~dropped, missing)
        while later and not later[-1][1] & busy:
            later.pop()
        start = self.start
        # Where a short job has come to the others, they stay until the start that it was let in for.
        if later and not busy & ~dropped & ~_all(later):
            start = min(start, later[-1][0])
        nodes = self.nodes & ~dropped | close_together(better, dropped.bit_count())
        return replace(self, nodes=nodes, start=start, later=tuple(later))


def _all(later: list[tuple[float, int]]) -> int:
    nodes = 0
    for _, some in later:
        nodes |= some
    return nodes
