"""Looks through the log of an allocation for anything given twice; knows nothing of how it was decided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hpo_pilot.hpc.usage import Ending, Start
from hpo_pilot.jobs.resources import Node


@dataclass(frozen=True)
class Event:
    """What happened: a start, an end of the job of a key, or the loss of a node."""

    time: float
    start: Start | None = None
    ended: Hashable = None
    ending: Ending | None = None
    lost: str | None = None


class Overlap(AssertionError):
    """Something was given to two jobs at once, or was not there to be given."""


class Checker:
    """Replays a log, event by event."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._shapes = {node.name: node.shape for node in nodes}
        self._gpus: defaultdict[tuple[str, int], Fraction] = defaultdict(Fraction)
        self._cores: dict[tuple[str, int], Hashable] = {}
        self._memory: defaultdict[str, int] = defaultdict(int)
        self._lost: dict[str, float] = {}
        self._running: dict[Hashable, tuple[float, Start]] = {}
        self._began: set[Hashable] = set()
        self._now = float("-inf")
        #: (node, from, to) of jobs that were of use, and of all jobs.
        self.useful: list[tuple[str, float, float]] = []
        self.any: list[tuple[str, float, float]] = []
        self.gpu_seconds = 0.0

    def replay(self, events: Iterable[Event]) -> None:
        """Raises Overlap at the first event that must not be."""
        for event in events:
            if event.time < self._now:
                raise Overlap(f"the log goes back in time at {event}")
            self._now = event.time
            if event.start is not None:
                self._start(event.start)
            elif event.lost is not None:
                self._lost.setdefault(event.lost, event.time)
            else:
                self._end(event)

    def finish(self) -> None:
        """Raises Overlap where a job still runs."""
        if self._running:
            raise Overlap(f"{len(self._running)} jobs never ended")

    def node_seconds(self, spans: Iterable[tuple[str, float, float]]) -> float:
        """Seconds with at least one of the spans, of all nodes; a node's seconds after its loss do not count."""
        by_node: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for node, start, end in spans:
            by_node[node].append((start, min(end, self._lost.get(node, end))))
        total = 0.0
        for pieces in by_node.values():
            reached = float("-inf")
            for start, end in sorted(pieces):
                total += max(0.0, end - max(start, reached))
                reached = max(reached, end)
        return total

    def _start(self, start: Start) -> None:
        job, needs = start.job, start.job.needs
        if job.key in self._began:
            raise Overlap(f"{job.key} started twice")
        if len({share.node for share in start.shares}) != needs.nodes or len(start.shares) != needs.nodes:
            raise Overlap(f"{job.key} got {len(start.shares)} nodes, and wants {needs.nodes}")
        for share in start.shares:
            shape = self._shapes[share.node]
            if share.node in self._lost:
                raise Overlap(f"{job.key} started on {share.node}, which was lost at {self._lost[share.node]}")
            for what, numbers, wanted, there in (
                ("GPU", share.gpus, needs.whole_gpus, shape.gpus),
                ("core", share.cores, needs.cores, shape.cores),
            ):
                if len(set(numbers)) != wanted or len(numbers) != wanted:
                    raise Overlap(f"{job.key} got {what}s {numbers}, and wants {wanted}")
                for number in numbers:
                    if not 0 <= number < there:
                        raise Overlap(f"{job.key} got {what} {number} of {share.node}, which has {there}")
            for number in share.gpus:
                self._gpus[share.node, number] += Fraction(1, needs.gpu_share)
                if self._gpus[share.node, number] > 1:
                    raise Overlap(f"GPU {number} of {share.node} given to {job.key} while others have it")
            for number in share.cores:
                if (share.node, number) in self._cores:
                    holder = self._cores[share.node, number]
                    raise Overlap(f"core {number} of {share.node} given to {job.key} while {holder} has it")
                self._cores[share.node, number] = job.key
            self._memory[share.node] += needs.memory_mb
            if self._memory[share.node] > shape.memory_mb:
                raise Overlap(f"{self._memory[share.node]} MB of {share.node} given, which has {shape.memory_mb}")
        self._began.add(job.key)
        self._running[job.key] = self._now, start

    def _end(self, event: Event) -> None:
        if event.ended not in self._running:
            raise Overlap(f"{event.ended} ended and did not run")
        begun, start = self._running.pop(event.ended)
        for share in start.shares:
            for number in share.gpus:
                self._gpus[share.node, number] -= Fraction(1, start.job.needs.gpu_share)
            for number in share.cores:
                del self._cores[share.node, number]
            self._memory[share.node] -= start.job.needs.memory_mb
            self.any.append((share.node, begun, event.time))
            if event.ending is not None and event.ending.is_useful:
                self.useful.append((share.node, begun, event.time))
                self.gpu_seconds += float(start.job.needs.gpus_per_node) * (event.time - begun)


def check(nodes: Sequence[Node], events: Iterable[Event]) -> Checker:
    """Replays a whole log.

    Raises:
        Overlap: something was given twice, or a job never ended.
    """
    checker = Checker(nodes)
    checker.replay(events)
    checker.finish()
    return checker


def endings(events: Iterable[Event]) -> Mapping[Ending, int]:
    """How many jobs came to which end."""
    counts: defaultdict[Ending, int] = defaultdict(int)
    for event in events:
        if event.ending is not None:
            counts[event.ending] += 1
    return dict(counts)
