"""The plan of a search at a site with a batch system."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpo_pilot.errors import InputError
from hpo_pilot.jobs.site_batch import BatchQueue, JobLimits
from hpo_pilot.jobs.site_profile import SiteProfile
from hpo_pilot.planning.allocations import Choice, choose
from hpo_pilot.planning.packing import Layout, node_shape
from hpo_pilot.planning.simulation import Run, simulate
from hpo_pilot.planning.workload import Workload
from hpo_pilot.scheduling import NodeShape


@dataclass(frozen=True)
class Plan:
    """What a search would take.

    Attributes:
        work: its jobs.
        layout: its processes.
        allocation: of the batch system.
        queue: the queue's name; None: the batch system's own.
        runs: the allocations, simulated.
        limits: on jobs of a user.
    """

    work: Workload
    layout: Layout
    allocation: Choice
    queue: str | None
    runs: tuple[Run, ...]
    limits: JobLimits

    @property
    def seconds(self) -> float:
        """That the allocations run, one after another, without the time that they wait for their nodes."""
        return sum(run.seconds for run in self.runs)

    @property
    def node_hours(self) -> float:
        """Of the allocations: what the site charges."""
        return self.allocation.nodes * self.seconds / 3600

    @property
    def share_used(self) -> float:
        """Of the nodes' time, the share that jobs had; of nodes that they share, their parts."""
        available = self.allocation.nodes * self.seconds
        return sum(run.busy for run in self.runs) / available if available else 0.0


def make_plan(
    work: Workload,
    profile: SiteProfile,
    *,
    queue: str | None = None,
    nodes: int | None = None,
    minutes: int | None = None,
) -> Plan:
    """The plan for a search; see `choose` for what is not given.

    Raises:
        InputError: the site cannot do it; the message says why and what helps.
    """
    name = queue or profile.batch.queue
    if queue is not None and profile.batch.queues and queue not in profile.batch.queues:
        known = ", ".join(profile.batch.queues)
        raise InputError(
            f"--queue {queue}: the profile of {profile.name} has {known}: name one of them, or add it there"
        )
    rules = profile.batch.queues.get(name or "", BatchQueue())
    chosen = choose(work, profile, rules, nodes=nodes, minutes=minutes)
    shape, steps = node_shape(profile, work.needs), profile.batch.job_steps
    runs = simulate(work, shape, chosen.nodes, 60.0 * chosen.minutes, steps=steps)
    layout = Layout.of(work, max(run.at_once for run in runs))
    return Plan(work, layout, chosen, name, tuple(runs), rules.limits)


def make_open_plan(work: Workload, shape: NodeShape, nodes: int) -> Plan:
    """The plan where no batch system allocates nodes, such as on one machine: nothing ends but the search."""
    at_once = min(work.parallel, work.groups) * work.folds
    runs = simulate(work, shape, nodes, math.inf)
    most = max(run.at_once for run in runs)
    seconds = sum(run.seconds for run in runs)
    allocation = Choice(nodes, 0, 0, min(at_once, most), seconds, nodes * seconds / 3600)
    return Plan(work, Layout.of(work, most), allocation, None, tuple(runs), JobLimits())
