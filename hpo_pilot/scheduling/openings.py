"""What a scheduler could start at once, in a form that can be sent to a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpo_pilot.jobs.task import JobNeeds
from hpo_pilot.scheduling.capacity import pattern_rank
from hpo_pilot.scheduling.near import Pattern, pattern_after


@dataclass(frozen=True)
class Opening:
    """Nodes that have the same free.

    Attributes:
        nodes: how many.
        gpus: free on each, as counts of each group of GPUs that are close to each other, descending.
        cores: free on each.
        memory_mb: free on each, in MB.
        seconds: how long a job there may take at most.
    """

    nodes: int
    gpus: Pattern
    cores: int
    memory_mb: int
    seconds: float

    def fits(self, needs: JobNeeds, seconds: float) -> bool:
        """Whether one node's part of a job could run on any of the nodes."""
        return (
            seconds <= self.seconds
            and needs.cores <= self.cores
            and needs.memory_mb <= self.memory_mb
            and needs.gpus_per_node <= sum(self.gpus)
        )

    def without(self, needs: JobNeeds, nodes: int) -> Opening:
        """What is left of so many of the nodes when a job's parts run there."""
        gpus = pattern_after(self.gpus, needs.gpus_per_node)[1]
        return Opening(nodes, gpus, self.cores - needs.cores, self.memory_mb - needs.memory_mb, self.seconds)


class Openings:
    """All openings of an allocation; they have no node in common.

    A server that takes from them for each job that it hands out hands out what can start, all of it, at once: the
    scheduler places jobs level by level in the same order.
    """

    def __init__(self, openings: Iterator[Opening] | list[Opening]) -> None:
        self._nodes: dict[tuple[Pattern, int, int, float], int] = {}
        for opening in openings:
            self._add(opening)

    def __iter__(self) -> Iterator[Opening]:
        return (
            Opening(nodes, gpus, cores, memory, seconds)
            for (gpus, cores, memory, seconds), nodes in self._nodes.items()
        )

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def take(self, needs: JobNeeds, seconds: float) -> bool:
        """Makes room for a job that takes so long; False: there is none, and nothing has changed."""
        fit = [opening for opening in self if opening.fits(needs, seconds)]
        missing = needs.nodes
        if sum(opening.nodes for opening in fit) < missing:
            return False
        fit.sort(
            key=lambda opening: (
                -opening.seconds,
                pattern_rank(opening.gpus, needs.gpus_per_node),
                opening.gpus,
                opening.cores,
                opening.memory_mb,
            )
        )
        for opening in fit:
            count = min(missing, opening.nodes)
            self._add(opening, -count)
            self._add(opening.without(needs, count))
            missing -= count
            if not missing:
                break
        return True

    def _add(self, opening: Opening, count: int | None = None) -> None:
        key = opening.gpus, opening.cores, opening.memory_mb, opening.seconds
        nodes = self._nodes.get(key, 0) + (opening.nodes if count is None else count)
        if nodes and opening.cores and opening.memory_mb:
            self._nodes[key] = nodes
        else:
            self._nodes.pop(key, None)


@dataclass(frozen=True)
class Wish:
    """What a scheduler says it could take next.

    A server goes through its jobs in their turn and hands out those for which it can take room from `now`. The first
    for which it cannot, and which one of `later` has room for, is handed out too and ends the answer: room is made for
    it before others take it. Where `later` is empty, a job waits already, and those that have no room are passed over.

    Attributes:
        now: for jobs that can start at once.
        later: for one job that has to wait; each of these alone would have room, by the likely ends of what runs.
        seconds: how long a job of a search takes, where that is measured; else it is the minutes asked for.
    """

    now: Openings
    later: tuple[Opening, ...]
    seconds: Mapping[str, float]
