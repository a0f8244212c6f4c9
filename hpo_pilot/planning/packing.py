"""How many jobs run side by side on nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobNeeds
from hpo_pilot.jobs.site_profile import SiteProfile
from hpo_pilot.planning.workload import Workload
from hpo_pilot.scheduling import NodeShape, Policy


def node_shape(profile: SiteProfile, needs: JobNeeds) -> NodeShape:
    """A node of the site as the scheduler sees it.

    Where the profile does not say what a node has, a job is taken to fill it.
    """
    node = profile.node
    return NodeShape(
        cores=node.cores or needs.cores,
        memory_mb=node.memory_mb or needs.memory_mb,
        gpus=node.gpu_count if node.gpus is not None or node.cores is not None else needs.gpus_per_node,
    )


def jobs_per_node(shape: NodeShape, needs: JobNeeds) -> int:
    """How many jobs can have their share of one node at once."""
    gpus = shape.gpus // needs.gpus_per_node if needs.gpus_per_node else shape.cores
    return min(gpus, shape.cores // needs.cores, shape.memory_mb // max(1, needs.memory_mb))


def most_at_once(shape: NodeShape, needs: JobNeeds, nodes: int, steps: int | None) -> int:
    """How many jobs an allocation runs side by side at most.

    Args:
        shape: of its nodes.
        needs: of a job.
        nodes: of the allocation.
        steps: job steps that the batch system runs in one allocation; None: any number.
    """
    jobs = jobs_per_node(shape, needs) * (nodes // needs.nodes)
    return jobs if steps is None else min(jobs, steps)


def at_once(profile: SiteProfile, needs: JobNeeds, nodes: int, minutes: float) -> int:
    """How many such jobs an allocation that has just started runs side by side at most; 0: it never runs one.

    Args:
        profile: of the site.
        needs: of a job.
        nodes: of the allocation.
        minutes: that it lasts.
    """
    margin = min(Policy().margin / 60, minutes / 10)  # as its pilot keeps free at its end
    if needs.nodes > nodes or needs.minutes + margin > minutes:
        return 0
    return most_at_once(node_shape(profile, needs), needs, nodes, profile.batch.job_steps)


def nodes_for(shape: NodeShape, needs: JobNeeds, jobs: int) -> int:
    """The nodes of the smallest allocation that runs so many jobs side by side.

    Raises:
        InputError: a node does not hold one.
    """
    each = jobs_per_node(shape, needs)
    if each < 1:
        raise InputError(f"a node of {shape} does not hold a job of {needs}: ask for less in `resources`")
    return math.ceil(jobs / each) * needs.nodes


@dataclass(frozen=True)
class Layout:
    """The seeds' layout: 1 + N_G x N_F x N_W processes; with all-reduce there are no masters (N_M).

    Attributes:
        points: N_G, trials at once.
        folds: N_F, jobs of a trial.
        workers: N_W, processes of a job.
        gpus: N_GPU, of a worker; a fraction where workers share them.
    """

    points: float
    folds: int
    workers: int
    gpus: float

    @classmethod
    def of(cls, work: Workload, jobs: int) -> Layout:
        """That of so many jobs side by side."""
        needs = work.needs
        workers = needs.nodes * max(1, needs.ranks_per_node)
        return cls(jobs / work.folds, work.folds, workers, needs.nodes * needs.gpus_per_node / workers)

    @property
    def processes(self) -> int:
        """All of them; the one more is the steering service."""
        return 1 + round(self.points * self.folds) * self.workers

    @property
    def all_gpus(self) -> int:
        """GPUs of all workers."""
        return round(self.points * self.folds * self.workers * self.gpus)
