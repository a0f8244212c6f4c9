"""The jobs of a scheduler, and the node-seconds and GPU-seconds of an allocation that they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hpo_pilot.jobs.resources import JobNeeds, NodeShape


@dataclass(frozen=True)
class ScheduledJob:
    """A job that waits or runs.

    Attributes:
        key: the caller's key, unique among jobs that wait or run.
        search: its search; jobs of one search have similar run times.
        needs: its needs. The caller ends it after their `seconds`: the scheduler relies on that.
    """

    key: Hashable
    search: str
    needs: JobNeeds


class Ending(StrEnum):
    """How a job ended."""

    FINISHED = "finished"  #: by itself, with success: its run time counts as measured
    RESUMED = "resumed"  #: with success too, but it began in an earlier attempt: its whole run time is not known
    FAILED = "failed"  #: by itself, or at the limit of its minutes
    LOST = "lost"  #: it lost a node
    CUT = "cut"  #: the allocation ended, and its work is lost
    CHECKPOINTED = "checkpointed"  #: the allocation ended, and the job goes on in another one from its checkpoint

    @property
    def is_useful(self) -> bool:
        """True if the job's time was used and not lost."""
        return self in (Ending.FINISHED, Ending.RESUMED, Ending.CHECKPOINTED)


@dataclass(frozen=True)
class Share:
    """The GPUs and cores of a job on one node.

    Attributes:
        node: name of the node.
        gpus: numbers of the GPUs, from 0.
        cores: numbers of the cores among those for jobs, from 0.
    """

    node: str
    gpus: tuple[int, ...]
    cores: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """A job to start now, with its shares of nodes in the order of the allocation."""

    job: ScheduledJob
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class TimeBreakdown:
    """Node-seconds or GPU-seconds.

    Attributes:
        used: seconds of jobs with a useful end.
        lost: seconds of jobs that failed, were cut, or lost a node.
        running: seconds of jobs that still run.
        idle: seconds without a job.
        gone: seconds after the loss of a node.
    """

    used: float
    lost: float
    running: float
    idle: float = 0.0
    gone: float = 0.0

    @property
    def total(self) -> float:
        """The sum."""
        return self.used + self.lost + self.running + self.idle + self.gone


@dataclass(frozen=True)
class Usage:
    """The node-seconds and GPU-seconds of an allocation so far.

    A node is used while it has a job. Jobs side by side share its seconds in proportion to their weights: the weight of
    a job is its largest share of the node's GPUs, cores and memory.
    """

    nodes: TimeBreakdown
    gpus: TimeBreakdown
    endings: Mapping[Ending, int]


class NodeUse:
    """The time of a job on one node, from `Account.begin` to `Account.end`."""

    __slots__ = ("began", "gpus", "mark", "node", "weight")

    def __init__(self, node: int, gpus: float, weight: float, mark: float, began: float) -> None:
        self.node, self.gpus, self.weight, self.mark, self.began = node, gpus, weight, mark, began


class Account:
    """Sums up the node-seconds and GPU-seconds of jobs.

    Each node has a meter that advances by one second per second, divided by the total weight of its jobs. A job's share
    of the node's time is the advance of the meter while it runs there, times its weight.
    """

    def __init__(self, shapes: Sequence[NodeShape], begins: float) -> None:
        """Starts at the time `begins`, with nodes of these shapes."""
        self._shapes = tuple(shapes)
        self._begins = begins
        self._meters = [0.0] * len(shapes)
        self._read = [begins] * len(shapes)
        self._weights = [0.0] * len(shapes)
        self._jobs_on = [0] * len(shapes)
        self._gone: dict[int, float] = {}
        self._node_seconds, self._gpu_seconds = [0.0, 0.0], [0.0, 0.0]  # lost, used
        self._endings: Counter[Ending] = Counter()

    def begin(self, needs: JobNeeds, nodes: Iterable[int], now: float) -> list[NodeUse]:
        """Notes that a job starts on nodes."""
        node_uses = []
        for node in nodes:
            shape = self._shapes[node]
            weight = shape.share(needs)
            self._read_meter(node, now)
            self._weights[node] += weight
            self._jobs_on[node] += 1
            node_uses.append(NodeUse(node, float(needs.gpus_per_node), weight, self._meters[node], now))
        return node_uses

    def end(self, node_uses: Iterable[NodeUse], now: float, *, useful: bool) -> None:
        """Notes that a job leaves nodes."""
        for use in node_uses:
            node = use.node
            self._read_meter(node, now)
            self._node_seconds[useful] += (self._meters[node] - use.mark) * use.weight
            self._gpu_seconds[useful] += (now - use.began) * use.gpus
            self._jobs_on[node] -= 1
            # Without jobs the weight is 0: this removes rounding errors.
            self._weights[node] = self._weights[node] - use.weight if self._jobs_on[node] else 0.0

    def count(self, ending: Ending) -> None:
        """Notes how a job ended."""
        self._endings[ending] += 1

    def lose(self, node: int, now: float) -> None:
        """Notes the loss of a node; no job is on it any more."""
        self._gone[node] = now

    def usage(self, running: Iterable[NodeUse], now: float) -> Usage:
        """Returns the usage at the time `now`, which is not before the last change, with what jobs use now."""
        node_seconds = gpu_seconds = 0.0
        for use in running:
            self._read_meter(use.node, now)
            node_seconds += (self._meters[use.node] - use.mark) * use.weight
            gpu_seconds += (now - use.began) * use.gpus
        length = now - self._begins
        gone = {node: now - since for node, since in self._gone.items()}
        gpus, gpus_gone = sum(s.gpus for s in self._shapes), sum(self._shapes[n].gpus * s for n, s in gone.items())
        return Usage(
            _breakdown(self._node_seconds, node_seconds, length * len(self._shapes), sum(gone.values())),
            _breakdown(self._gpu_seconds, gpu_seconds, length * gpus, gpus_gone),
            dict(self._endings),
        )

    def _read_meter(self, node: int, now: float) -> None:
        if self._weights[node]:
            self._meters[node] += (now - self._read[node]) / self._weights[node]
        self._read[node] = now


def _breakdown(ended: Sequence[float], running: float, available: float, gone: float) -> TimeBreakdown:
    lost, used = ended
    return TimeBreakdown(used, lost, running, available - used - lost - running - gone, gone)
