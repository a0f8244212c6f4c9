"""Resources: the needs of a job, the shape of a node, free room on nodes, and whether a job fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hpo_pilot.errors import InputError

#: Time limit in minutes of a job without one; it is needed to plan the jobs after it.
MINUTES_WITHOUT_LIMIT = 60.0

#: Most jobs that share a GPU.
MOST_ON_A_GPU = 8


def gpu_count(gpus: int, share: int = 1) -> int | Fraction:
    """Returns the GPUs of a job; `share`: number of jobs that share its GPU, 1: none does."""
    return Fraction(1, share) if share > 1 else gpus


def usable_gpus(free: Sequence[int | Fraction], wanted: int | Fraction) -> int | Fraction:
    """Returns the GPUs of a node that a job can use.

    Args:
        free: whole GPUs by group, then the free parts of shared ones, descending.
        wanted: the GPUs of the job; below 1: a share of one.
    """
    if 0 < wanted < 1:
        return free[0] if free else 0
    return sum(part for part in free if part >= 1) if free and free[-1] < 1 else sum(free)


@dataclass(frozen=True)
class JobNeeds:
    """The resources of a job.

    Attributes:
        nodes: number of nodes.
        gpus_per_node: GPUs of each node; 1/2 to 1/8: a share of one GPU.
        cores: CPU cores of each node.
        memory_mb: memory of each node, in MB.
        minutes: walltime limit of the payload in minutes, for all points of the job together; 0: not given.
        ranks_per_node: processes that a launcher starts on each node; 0: no launcher, the command runs once.
        checkpoints: whether the job declares checkpoints, from which its next attempt goes on.
    """

    nodes: int = 1
    gpus_per_node: int | Fraction = 0
    cores: int = 1
    memory_mb: int = 2000
    minutes: float = 60.0
    ranks_per_node: int = 0
    checkpoints: bool = False

    @property
    def seconds(self) -> float:
        """The longest run time, in seconds."""
        return 60.0 * (self.minutes or MINUTES_WITHOUT_LIMIT)

    @property
    def all_cores(self) -> int:
        """CPU cores of all nodes."""
        return self.cores * self.nodes

    @property
    def whole_gpus(self) -> int:
        """GPUs that the job sees on each node; 1 for a share."""
        return math.ceil(self.gpus_per_node)

    @property
    def gpu_share(self) -> int:
        """Number of such jobs on one GPU; 1: the job shares none."""
        return self.gpus_per_node.denominator

    def fit(self, gpus: int | Fraction, cores: int, memory_mb: int) -> bool:
        """Returns True if the job's part on one node fits into these free resources of a node."""
        return self.cores <= cores and self.memory_mb <= memory_mb and self.gpus_per_node <= gpus


@dataclass(frozen=True)
class NodeShape:
    """The resources of a node for jobs.

    Attributes:
        cores: CPU cores.
        memory_mb: memory, in MB.
        gpus: number of GPUs; they are numbered from 0.
        close: number of GPUs in a row that are close to each other: 2 for pairs (MI250X), 3 for three on each socket
            (Summit); 1: all are alike. The cores are assumed to be spread evenly over these groups.
    """

    cores: int
    memory_mb: int
    gpus: int = 0
    close: int = 1

    def __post_init__(self) -> None:
        if min(self.cores, self.memory_mb, self.close) < 1 or self.gpus < 0:
            raise InputError(f"{self}: cores, memory and close are 1 or more, GPUs 0 or more")

    @property
    def groups(self) -> int:
        """Number of groups of close GPUs; 1 for a node without GPUs."""
        return max(1, -(-self.gpus // self.close))

    def jobs(self, needs: JobNeeds) -> int:
        """Returns the number of such jobs that fit on one node at the same time."""
        gpus = int(self.gpus // needs.gpus_per_node) if needs.gpus_per_node else self.cores
        return min(gpus, self.cores // needs.cores, self.memory_mb // max(1, needs.memory_mb))

    def share(self, needs: JobNeeds) -> float:
        """Returns the largest of a job's shares of GPUs, cores and memory."""
        return max(
            float(needs.gpus_per_node) / (self.gpus or 1), needs.cores / self.cores, needs.memory_mb / self.memory_mb
        )


@dataclass(frozen=True)
class Node:
    """A node: its name at the batch system, and its resources."""

    name: str
    shape: NodeShape


@dataclass(frozen=True)
class Room:
    """Nodes with the same free resources.

    Attributes:
        nodes: number of nodes.
        gpus: free GPUs of each node by group of close GPUs, then the free parts of shared GPUs, descending.
        cores: free cores of each node.
        memory_mb: free memory of each node, in MB.
        seconds: longest run time of a job there.
    """

    nodes: int
    gpus: tuple[int | Fraction, ...]
    cores: int
    memory_mb: int
    seconds: float

    def fits(self, needs: JobNeeds, seconds: float) -> bool:
        """Returns True if one part of a job of that run time fits on each of the nodes."""
        return seconds <= self.seconds and needs.fit(
            usable_gpus(self.gpus, needs.gpus_per_node), self.cores, self.memory_mb
        )
