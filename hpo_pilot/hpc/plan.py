"""Plans a search at a site: jobs on each node, allocations, and a simulation of their run."""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import TimeLeft
from hpo_pilot.hpc.launcher import MOST_SPREAD
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.hpc.scheduler import Policy, Scheduler
from hpo_pilot.hpc.usage import Ending, ScheduledJob
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape

if TYPE_CHECKING:
    from hpo_pilot.hpc.site_profile import BatchQueue, JobLimits, SiteProfile
    from hpo_pilot.search import Search


@dataclass(frozen=True)
class Workload:
    """The jobs of a search, or of all segments of a family; all jobs are alike.

    Attributes:
        needs: the needs of each job.
        seconds: the run time of each job.
        groups: number of groups of jobs: the folds of one trial, or of trials that share jobs.
        folds: jobs of a group.
        parallel: groups that run at the same time.
        trials: number of trials, confirmation runs included.
        searches: number of searches, each with the whole budget: more than one for a family.
    """

    needs: JobNeeds
    seconds: float
    groups: int
    folds: int
    parallel: int
    trials: int
    searches: int = 1

    @classmethod
    def of(cls, search: Search, minutes_per_trial: float | None = None) -> Self:
        """Returns the workload of a search; with segments, of all their searches, which run side by side.

        Args:
            search: the search.
            minutes_per_trial: run time of one fold of one trial; None: its limit. With levels, that of the longest job.

        Raises:
            InputError: the run time is above the limit.
        """
        needs, together = search.resources, search.resources.trials_per_job
        trials = search.planned_trials
        segments = max(1, len(search.segments or ()))
        minutes = needs.minutes if minutes_per_trial is None else minutes_per_trial * together
        if minutes > needs.minutes:
            raise InputError(
                f"--minutes-per-trial {minutes_per_trial:g}: by resources.minutes a trial may run "
                f"{needs.minutes / together:g} at most, and would be ended"
            )
        return cls(
            search.job_needs,
            60.0 * minutes * search.mean_job,
            segments * math.ceil(trials / together),
            search.folds.k,
            segments * math.ceil(search.budget.parallel / together),
            segments * trials,
            segments,
        )

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return self.groups * self.folds

    @property
    def job_seconds(self) -> float:
        """Sum of the run times of all jobs."""
        return self.jobs * self.seconds


def node_shape(profile: SiteProfile, needs: JobNeeds) -> NodeShape:
    """Returns a node of the site for the scheduler.

    What the profile does not give is assumed to be enough for as many jobs as the rest holds; if it gives nothing, a
    job is assumed to fill a node.
    """
    node = profile.node
    asked = ((node.cores, needs.cores), (node.memory_mb, needs.memory_mb), (node.gpu_count, needs.gpus_per_node))
    each = max(1, min((int(there // wanted) for there, wanted in asked if there and wanted), default=1))
    return NodeShape(
        cores=node.cores or each * needs.cores,
        memory_mb=node.memory_mb or each * max(1, needs.memory_mb),
        gpus=node.gpu_count
        if node.gpus is not None or node.cores is not None
        else math.ceil(each * needs.gpus_per_node),
    )


def most_at_once(shape: NodeShape, needs: JobNeeds, nodes: int, steps: int | None) -> int:
    """Returns the largest number of jobs that an allocation runs at the same time.

    Args:
        shape: resources of its nodes.
        needs: needs of a job.
        nodes: nodes of the allocation.
        steps: most job steps of one allocation; None: no limit.
    """
    jobs = shape.jobs(needs) * (nodes // needs.nodes)
    return jobs if steps is None else min(jobs, steps)


def jobs_at_once(profile: SiteProfile, needs: JobNeeds, nodes: int, minutes: float) -> int:
    """Returns the largest number of jobs that a new allocation runs at the same time; 0: it cannot run one.

    Args:
        profile: profile of the site.
        needs: needs of a job.
        nodes: nodes of the allocation.
        minutes: walltime of the allocation.
    """
    margin = min(Policy().margin, 60 * minutes / 10)  # the time that its pilot keeps free at the end
    if needs.nodes > nodes or not _would_start(needs, 60 * minutes - margin):
        return 0
    return most_at_once(node_shape(profile, needs), needs, nodes, job_steps(profile, needs))


def job_steps(profile: SiteProfile, needs: JobNeeds) -> int | None:
    """Returns how many such jobs can be started beside each other in an allocation; None: there is no limit."""
    launcher = make_launcher(profile.launcher.model_dump(), profile.node.threads_per_core)
    if launcher.needs_step(needs.nodes, needs.ranks_per_node):
        return profile.batch.job_steps
    return MOST_SPREAD if needs.nodes > 1 else None


def _would_start(needs: JobNeeds, seconds: float) -> bool:
    """Returns True if an allocation starts a job of unknown run time with this time left."""
    policy = Policy()
    left = TimeLeft(seconds, policy.at_end, policy.checkpointed)
    return not math.isinf(left.needed(needs, None))


def nodes_for(shape: NodeShape, needs: JobNeeds, jobs: int) -> int:
    """Returns the nodes of the smallest allocation that runs this number of jobs side by side.

    Raises:
        InputError: a job does not fit on a node.
    """
    each = shape.jobs(needs)
    if each < 1:
        raise InputError(f"a node of {shape} does not hold a job of {needs}: ask for less in `resources`")
    return math.ceil(jobs / each) * needs.nodes


@dataclass(frozen=True)
class Layout:
    """The layout of processes: 1 + N_G x N_F x N_W; with all-reduce there are no masters (N_M).

    Attributes:
        points: N_G, trials at once.
        folds: N_F, jobs of a trial.
        workers: N_W, processes of a job.
        gpus: N_GPU, GPUs of a worker; a fraction if workers share them.
    """

    points: float
    folds: int
    workers: int
    gpus: float

    @classmethod
    def of(cls, work: Workload, jobs: int) -> Layout:
        """Returns the layout for this number of jobs side by side."""
        needs = work.needs
        workers = needs.nodes * max(1, needs.ranks_per_node)
        return cls(jobs / work.folds, work.folds, workers, float(needs.nodes * needs.gpus_per_node) / workers)

    @property
    def processes(self) -> int:
        """Number of processes; the additional one is the steering service."""
        return 1 + round(self.points * self.folds) * self.workers

    @property
    def all_gpus(self) -> int:
        """Number of GPUs of all workers."""
        return math.ceil(round(self.points * self.folds * self.workers * self.gpus, 6))


#: A quicker choice may take up to this factor of the node-hours of the cheapest one.
_DEARER = 1.25

#: Number of nodes and hours of walltime for profiles without these figures.
_ANY_NODES = 2**31
_ANY_HOURS = 24.0


@dataclass(frozen=True)
class AllocationChoice:
    """A number of equal allocations, one after another.

    Attributes:
        nodes: nodes of each allocation.
        minutes: walltime of each allocation.
        submissions: number of allocations.
        at_once: jobs side by side.
        seconds: estimated run time of all of them, for jobs that run in waves.
        node_hours: node-hours of all of them.
    """

    nodes: int
    minutes: int
    submissions: int
    at_once: int
    seconds: float
    node_hours: float


def choose_allocations(
    work: Workload, profile: SiteProfile, queue: BatchQueue, *, nodes: int | None = None, minutes: int | None = None
) -> AllocationChoice:
    """Chooses the quickest allocations that cost at most a quarter more than the cheapest.

    Args:
        work: the jobs of the search.
        profile: profile of the site.
        queue: one of its queues.
        nodes: nodes of each allocation; None: chosen.
        minutes: walltime of each allocation; None: as needed, up to the queue's limit.

    Raises:
        InputError: no allocation can run a job; the message has the reason.
    """
    sizes = [nodes] if nodes is not None else _sizes(work, profile, queue)
    found = [choice for size in sizes if (choice := _choice(work, profile, queue, size, minutes)) is not None]
    if not found:
        raise InputError(_why_none(work, profile, queue, sizes, minutes))
    cheap = _DEARER * min(choice.node_hours for choice in found)
    return min((one for one in found if one.node_hours <= cheap), key=lambda one: (one.seconds, one.nodes))


def largest_allocation(profile: SiteProfile, queue: BatchQueue) -> int:
    """Returns the nodes of the largest allocation."""
    most = 1 if profile.batch.has_one_node else _ANY_NODES
    return min(queue.largest or most, profile.node.count or most, most)


def _sizes(work: Workload, profile: SiteProfile, queue: BatchQueue) -> list[int]:
    """Returns sizes to compare: for all jobs at once, for simple parts of them, and the sizes of walltime bins."""
    shape, most = node_shape(profile, work.needs), largest_allocation(profile, queue)
    # An allocation with more nodes than its job steps can use would run no more jobs.
    jobs = min(min(work.parallel, work.groups) * work.folds, job_steps(profile, work.needs) or sys.maxsize)
    wanted = {nodes_for(shape, work.needs, math.ceil(jobs / parts)) for parts in (1, 2, 3, 4, 8)} | {work.needs.nodes}
    edges = {smaller.nodes + 1 for smaller in queue.walltime[:-1]} | {one.nodes for one in queue.walltime}
    needed = max(wanted)
    # More nodes than all jobs need only give a longer walltime.
    beyond = sorted(edge for edge in edges if edge > needed)[:2]
    sizes = wanted | {edge for edge in edges if edge <= needed} | set(beyond)
    return sorted({min(size, most) for size in sizes if min(size, most) >= work.needs.nodes})


def _choice(
    work: Workload, profile: SiteProfile, queue: BatchQueue, nodes: int, minutes: int | None
) -> AllocationChoice | None:
    longest = queue.hours(nodes) if queue.walltime else _ANY_HOURS
    if (
        longest is None
        or nodes > largest_allocation(profile, queue)
        or (minutes is not None and minutes > round(60 * longest))
    ):
        return None
    shape = node_shape(profile, work.needs)
    at_once = most_at_once(shape, work.needs, nodes, job_steps(profile, work.needs))
    at_once = min(at_once, min(work.parallel, work.groups) * work.folds)
    walltime = 60.0 * (minutes if minutes is not None else round(60 * longest))
    left = walltime - Policy().margin
    each = _waves_within(work, left)
    if at_once < 1 or each <= 0 or not _would_start(work.needs, left):
        return None
    waves = math.ceil(work.jobs / at_once)
    submissions = math.ceil(waves / each)
    seconds = waves * work.seconds
    if minutes is None:
        # As long as needed, rounded up to a quarter of an hour.
        used = min(waves, each) * work.seconds + max(0.0, work.needs.seconds - work.seconds) + Policy().margin
        walltime = min(walltime, 900.0 * math.ceil(used / 900.0))
    return AllocationChoice(nodes, round(walltime / 60), submissions, at_once, seconds, nodes * seconds / 3600)


def _waves_within(work: Workload, seconds: float) -> float:
    """Returns the number of jobs that run one after another in this time; of jobs with checkpoints parts count too."""
    whole = math.floor(seconds / work.seconds + 1e-9)
    rest = seconds - whole * work.seconds
    if not work.needs.checkpoints or rest < Policy().checkpointed:
        return whole
    return whole + _saved(rest) / work.seconds


def _saved(seconds: float) -> float:
    """Returns the part of a run up to its last checkpoint, in seconds."""
    every = Policy().checkpointed / 2
    return every * math.floor(seconds / every + 1e-9)


def _why_none(work: Workload, profile: SiteProfile, queue: BatchQueue, sizes: list[int], minutes: int | None) -> str:
    """Returns the reason why no allocation fits, and the remedy."""
    most, needs = largest_allocation(profile, queue), work.needs
    if sizes and min(sizes) > most:
        return f"{min(sizes)} nodes are more than the {most} that an allocation has at {profile.name}: ask for fewer"
    if sizes and max(sizes) < needs.nodes:
        return f"a job has {needs.nodes} nodes, more than an allocation of {max(sizes)}: give it {needs.nodes} or more"
    longest = max((queue.hours(size) or 0.0 for size in sizes), default=0.0) if queue.walltime else _ANY_HOURS
    if minutes is not None and minutes > round(60 * longest):
        return (
            f"a walltime of {minutes} minutes is more than the {60 * longest:g} that {profile.name} gives such "
            "allocations: ask for less, or for more nodes"
        )
    margin = Policy().margin / 60
    allowed = (minutes if minutes is not None else 60 * longest) - margin
    return (
        f"a job takes {work.seconds / 60:g} minutes and may take {needs.minutes:g}, and an allocation has "
        f"{allowed:g} for it ({margin:g} at its end are kept free): ask for fewer resources.minutes, or for a longer "
        "walltime, which more nodes may have, or declare payload.checkpoint: then a job goes on in the next allocation"
    )


#: A plan with more allocations is certainly wrong.
_MOST = 100_000

_SEARCH = "plan"

#: The key of a job: its group, and its place in the group.
_Key = tuple[int, int]


@dataclass(frozen=True)
class SimulatedAllocation:
    """One simulated allocation.

    Attributes:
        seconds: time until its last job, and so its pilot, has ended.
        jobs: number of jobs that ended in it.
        at_once: most jobs side by side.
        busy: run time of its jobs together, in seconds.
    """

    seconds: float
    jobs: int
    at_once: int
    busy: float


def simulate(
    work: Workload, shape: NodeShape, nodes: int, seconds: float, *, steps: int | None = None
) -> list[SimulatedAllocation]:
    """Simulates the allocations of a search, one after another.

    Jobs with checkpoints that an allocation does not finish go on in the next one.

    Args:
        work: the jobs, which all have the same run time.
        shape: resources of a node.
        nodes: nodes of each allocation.
        seconds: walltime of each allocation.
        steps: most job steps side by side; None: no limit.

    Raises:
        InputError: no job can end within an allocation.
    """
    waiting = deque((group, fold) for group in range(work.groups) for fold in range(work.folds))
    open_folds: Counter[int] = Counter()
    rest: dict[_Key, float] = {}
    runs: list[SimulatedAllocation] = []
    while waiting:
        run = _allocation(work, shape, nodes, seconds, steps, waiting, open_folds, rest)
        if not run.at_once or len(runs) >= _MOST:
            raise InputError(
                f"a job of {work.seconds / 60:g} minutes does not end within a walltime of {seconds / 60:g} minutes: "
                "ask for fewer resources.minutes, or a longer walltime, or declare payload.checkpoint"
            )
        runs.append(run)
    return runs


def _allocation(
    work: Workload,
    shape: NodeShape,
    nodes: int,
    seconds: float,
    steps: int | None,
    waiting: deque[_Key],
    open_folds: Counter[int],
    rest: dict[_Key, float],
) -> SimulatedAllocation:
    """Simulates one allocation; `rest` has the seconds that jobs still need which earlier ones began."""
    policy = Policy(at_end=1.0)  # all jobs run equally long: none ends in less time
    scheduler = Scheduler([Node(f"n{i}", shape) for i in range(nodes)], ends=seconds, policy=policy)
    ends: list[tuple[float, _Key, float]] = []
    now, busy, done, most = 0.0, 0.0, 0, 0
    while True:
        _feed(work, scheduler, now, steps, waiting, open_folds)
        for start in scheduler.starts(now):
            key = cast(_Key, start.job.key)
            heapq.heappush(ends, (min(now + rest.get(key, work.seconds), seconds - policy.margin), key, now))
        most = max(most, scheduler.running)
        waiting.extendleft(cast(_Key, job.key) for job in reversed(scheduler.hand_back(now)))
        if not ends:
            return SimulatedAllocation(now, done, most, busy)
        now = ends[0][0]
        while ends and ends[0][0] <= now:
            _, key, began = heapq.heappop(ends)
            busy += now - began
            left = rest.pop(key, work.seconds)
            if left > now - began + 1e-6:
                scheduler.ended(key, Ending.CHECKPOINTED, now)
                rest[key] = left - _saved(now - began)
                waiting.appendleft(key)
                continue
            scheduler.ended(key, Ending.FINISHED, now)
            done += 1
            open_folds[key[0]] -= 1
            if not open_folds[key[0]]:
                del open_folds[key[0]]


def _feed(
    work: Workload, scheduler: Scheduler, now: float, steps: int | None, waiting: deque[_Key], open_folds: Counter[int]
) -> None:
    """Adds the jobs that the scheduler has room for, from as many groups as may run at the same time."""
    request = scheduler.request_jobs(now)
    needs = replace(work.needs, minutes=work.seconds / 60.0)  # as if the run time had been measured before
    seconds = request.needed(_SEARCH, needs)
    while waiting and (steps is None or scheduler.running + scheduler.waiting < steps):
        group, _ = waiting[0]
        if group not in open_folds and len(open_folds) >= work.parallel:
            return
        if not request.now.take(needs, seconds):
            return
        if group not in open_folds:
            open_folds[group] = work.folds
        scheduler.add(ScheduledJob(waiting.popleft(), _SEARCH, needs))


@dataclass(frozen=True)
class Plan:
    """The resources and the time that a search would take.

    Attributes:
        work: its jobs.
        layout: its processes.
        allocation: the chosen allocations.
        queue: the queue's name; None: the batch system's default.
        runs: the simulated allocations.
        limits: on the jobs of a user; None: no batch system allocates the nodes.
        node_cores: cores of a node, which no other user gets; None: not known.
        node_gpus: GPUs of a node; None: it has none, or this is not known.
    """

    work: Workload
    layout: Layout
    allocation: AllocationChoice
    queue: str | None
    runs: tuple[SimulatedAllocation, ...]
    limits: JobLimits | None
    node_cores: int | None = None
    node_gpus: int | None = None

    @property
    def seconds(self) -> float:
        """Run time of the allocations, one after another, without their waiting times."""
        return sum(run.seconds for run in self.runs)

    @property
    def node_hours(self) -> float:
        """Node-hours of the allocations, which the site charges."""
        return self.allocation.nodes * self.seconds / 3600

    @property
    def job_seconds(self) -> float:
        """Run time of all jobs together, with what is repeated after the last checkpoint."""
        return sum(run.busy for run in self.runs)

    @property
    def cores_used(self) -> float | None:
        """The share of the nodes' cores that jobs use; None: not known."""
        return self._share(self.work.needs.cores, self.node_cores)

    @property
    def gpus_used(self) -> float | None:
        """The share of the nodes' GPUs that jobs use; None: they have none, or this is not known."""
        return self._share(float(self.work.needs.gpus_per_node), self.node_gpus)

    def _share(self, own: float, there: int | None) -> float | None:
        if not there or not self.node_hours:
            return None
        return self.job_seconds / 3600 * self.work.needs.nodes * own / (self.node_hours * there)

    @property
    def allocations_per_job(self) -> int:
        """The allocations that a job runs in, one after another: more than 1 if it is longer than one."""
        left = 60.0 * self.allocation.minutes - Policy().margin
        if not self.allocation.minutes or self.work.seconds <= left:
            return 1
        return 1 + math.ceil((self.work.seconds - left) / _saved(left))


def make_plan(
    work: Workload,
    profile: SiteProfile,
    *,
    queue: str | None = None,
    nodes: int | None = None,
    minutes: int | None = None,
) -> Plan:
    """Plans a search; see `choose_allocations` for arguments that are None.

    Raises:
        InputError: the site cannot run the search; the message has the reason and the remedy.
    """
    name = queue or profile.batch.queue
    if queue is not None and profile.batch.queues and queue not in profile.batch.queues:
        known = ", ".join(profile.batch.queues)
        raise InputError(
            f"--queue {queue}: the profile of {profile.name} has {known}: name one of them, or add it there"
        )
    rules = profile.batch.rules(name)
    chosen = choose_allocations(work, profile, rules, nodes=nodes, minutes=minutes)
    shape, steps = node_shape(profile, work.needs), job_steps(profile, work.needs)
    runs = simulate(work, shape, chosen.nodes, 60.0 * chosen.minutes, steps=steps)
    layout = Layout.of(work, max(run.at_once for run in runs))
    node = profile.node
    return Plan(work, layout, chosen, name, tuple(runs), rules.limits, node.cores, node.gpu_count or None)


def make_open_plan(work: Workload, shape: NodeShape, nodes: int) -> Plan:
    """Plans a search without a batch system, e.g. on one machine: there is no walltime."""
    at_once = min(work.parallel, work.groups) * work.folds
    runs = simulate(work, shape, nodes, math.inf)
    most = max(run.at_once for run in runs)
    seconds = sum(run.seconds for run in runs)
    allocation = AllocationChoice(nodes, 0, 0, min(at_once, most), seconds, nodes * seconds / 3600)
    return Plan(work, Layout.of(work, most), allocation, None, tuple(runs), None)
