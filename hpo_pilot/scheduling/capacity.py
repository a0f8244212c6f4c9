"""What is free on the nodes of an allocation, and where a job fits best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.jobs.task import JobNeeds
from hpo_pilot.scheduling.column import Column
from hpo_pilot.scheduling.near import Pattern, choose_cores, choose_gpus, pattern_after, pattern_of
from hpo_pilot.scheduling.node import NodeShape
from hpo_pilot.scheduling.node_set import close_together, members


@dataclass(frozen=True, slots=True)
class Part:
    """What a job has on one node; masks of GPUs and cores."""

    node: int
    gpus: int
    cores: int


class Capacity:
    """Free GPUs, cores and memory, by node; nothing is lent twice.

    A job goes to the tightest level: nodes of one level have the same free, so they are alike to it. The order of
    levels is that of `level_rank`, which `Openings` follows too; within one level, neighbours are taken.
    """

    def __init__(self, shapes: Sequence[NodeShape]) -> None:
        self._shapes = tuple(shapes)
        self._memory_left = [shape.memory_mb for shape in shapes]
        self._gpus_left = [(1 << shape.gpus) - 1 for shape in shapes]
        self._cores_left = [(1 << shape.cores) - 1 for shape in shapes]
        self._cores = Column([shape.cores for shape in shapes])
        self._memory = Column(self._memory_left)
        self._by_pattern: dict[Pattern, int] = {}
        for node, shape in enumerate(shapes):
            pattern = pattern_of(shape, self._gpus_left[node])
            self._by_pattern[pattern] = self._by_pattern.get(pattern, 0) | 1 << node
        self._not_lost = (1 << len(shapes)) - 1
        self._held = 0

    @property
    def up(self) -> int:
        """The nodes that get jobs."""
        return self._not_lost & ~self._held

    @property
    def not_lost(self) -> int:
        """The nodes that get jobs, now or later."""
        return self._not_lost

    def lose(self, node: int) -> None:
        """The node gets no job any more; what jobs have there may still be given back."""
        self._not_lost &= ~(1 << node)

    def hold(self, nodes: int) -> None:
        """The nodes get no job until they are released; what runs there goes on."""
        self._held |= nodes

    def release(self, nodes: int) -> None:
        """The nodes get jobs again, unless they are lost."""
        self._held &= ~nodes

    def free(self, node: int) -> tuple[int, int, int]:
        """How many GPUs, cores and MB are free on a node."""
        return self._gpus_left[node].bit_count(), self._cores_left[node].bit_count(), self._memory_left[node]

    def fitting(self, needs: JobNeeds, within: int) -> int:
        """Those of a set of nodes where one node's part of such a job could start now."""
        fit = self._memory.at_least(needs.memory_mb, self._cores.at_least(needs.cores, within & self.up))
        if needs.gpus_per_node and fit:
            having = 0
            for pattern, nodes in self._by_pattern.items():
                if sum(pattern) >= needs.gpus_per_node:
                    having |= nodes
            fit &= having
        return fit

    def choose(self, needs: JobNeeds, tiers: Sequence[int]) -> int:
        """The nodes for a job, of the first tier as far as they suffice; 0: there are too few.

        Args:
            needs: the job's.
            tiers: disjoint sets of nodes.
        """
        fits = [self.fitting(needs, tier) for tier in tiers]
        missing = needs.nodes
        if sum(fit.bit_count() for fit in fits) < missing:
            return 0
        chosen = 0
        for fit in fits:
            for _, pattern in self._patterns(needs.gpus_per_node):
                rest = self._by_pattern[pattern] & fit
                while rest:
                    _, fewest = self._cores.least(rest)
                    _, level = self._memory.least(fewest)
                    count = level.bit_count()
                    if count >= missing:
                        return chosen | close_together(level, missing)
                    chosen |= level
                    missing -= count
                    rest ^= level
        return 0

    def _patterns(self, gpus: int) -> list[tuple[tuple[int, int], Pattern]]:
        return sorted((pattern_rank(pattern, gpus), pattern) for pattern in self._by_pattern if sum(pattern) >= gpus)

    def levels(self, within: int) -> list[tuple[Pattern, int, int, int]]:
        """(pattern, cores, MB, how many nodes) of every level of a set of nodes, without those that are full."""
        found = []
        open_nodes = self._memory.at_least(1, self._cores.at_least(1, within & self.up))
        for pattern, nodes in self._by_pattern.items():
            rest = nodes & open_nodes
            while rest:
                cores, fewest = self._cores.least(rest)
                memory, level = self._memory.least(fewest)
                found.append((pattern, cores, memory, level.bit_count()))
                rest ^= level
        return found

    def take(self, needs: JobNeeds, nodes: int) -> tuple[Part, ...]:
        """Takes a job's share of each of these nodes.

        Raises:
            ValueError: one of them has less.
        """
        self._cores.subtract(needs.cores, nodes)
        self._memory.subtract(needs.memory_mb, nodes)
        parts = []
        for node in members(nodes):
            shape, free = self._shapes[node], self._gpus_left[node]
            gpus = choose_gpus(shape, free, needs.gpus_per_node) if needs.gpus_per_node else 0
            cores = choose_cores(shape, self._cores_left[node], needs.cores, gpus)
            self._gpus_left[node] = free ^ gpus
            self._cores_left[node] ^= cores
            self._memory_left[node] -= needs.memory_mb
            parts.append(Part(node, gpus, cores))
        self._regroup(parts, taken=True)
        return tuple(parts)

    def give_back(self, needs: JobNeeds, parts: Sequence[Part]) -> None:
        """Ends what `take` began, for some or all of its parts.

        Raises:
            ValueError: something of it is free already.
        """
        nodes = 0
        for part in parts:
            if self._gpus_left[part.node] & part.gpus or self._cores_left[part.node] & part.cores:
                raise ValueError(f"node {part.node}: {part} is given back twice")
            self._gpus_left[part.node] |= part.gpus
            self._cores_left[part.node] |= part.cores
            self._memory_left[part.node] += needs.memory_mb
            nodes |= 1 << part.node
        self._cores.add(needs.cores, nodes)
        self._memory.add(needs.memory_mb, nodes)
        self._regroup(parts, taken=False)

    def _regroup(self, parts: Sequence[Part], *, taken: bool) -> None:
        """Moves nodes whose GPUs were taken, or given back, from pattern to pattern."""
        moved: dict[tuple[Pattern, Pattern], int] = {}
        for part in parts:
            if part.gpus:
                shape, now = self._shapes[part.node], self._gpus_left[part.node]
                before = now | part.gpus if taken else now & ~part.gpus
                key = pattern_of(shape, before), pattern_of(shape, now)
                moved[key] = moved.get(key, 0) | 1 << part.node
        for (old, new), nodes in moved.items():
            if left := self._by_pattern[old] & ~nodes:
                self._by_pattern[old] = left
            else:
                del self._by_pattern[old]
            self._by_pattern[new] = self._by_pattern.get(new, 0) | nodes


def pattern_rank(pattern: Pattern, gpus: int) -> tuple[int, int]:
    """What orders patterns for a job: groups that it is spread over, then GPUs that it leaves; the pattern must fit."""
    return pattern_after(pattern, gpus)[0], sum(pattern) - gpus
