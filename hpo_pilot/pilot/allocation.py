"""Shares out the nodes of the batch allocation in which a pilot runs, and watches its end and its use."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hpo_pilot.errors import HpoPilotError, InputError
from hpo_pilot.hpc.batch_system import AllocatedNode, BatchAllocation, Remainder, RunCommand, ask_batch_system
from hpo_pilot.hpc.batch_systems import BATCH_SYSTEMS, make_batch_system
from hpo_pilot.hpc.launchers import VISIBLE_GPUS
from hpo_pilot.hpc.scheduler import Policy, Scheduler
from hpo_pilot.hpc.usage import Ending, ScheduledJob, Share, Start, TimeBreakdown, Usage
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape, gpu_count
from hpo_pilot.pilot.job import GivenBack, Job, JobFailure, LauncherAway, NodeLost
from hpo_pilot.pilot.machine import (
    AssignedResources,
    FreeResources,
    JobReservation,
    MachineGpu,
    ResourcePool,
    find_gpus,
    machine_cores,
    share_variables,
)
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadSettings


@dataclass(frozen=True)
class AllocatedNodes:
    """Nodes that belong to a pilot for a limited time.

    Attributes:
        nodes: in the batch system's order.
        seconds: remaining time; infinity: no limit.
        job: its name at the batch system.
        remainder: returns what the allocation still has.
        reclaim: returns which of the given nodes are completely free, for batch systems that may keep cores of other
            nodes when they take one away; None: this batch system keeps none.
    """

    nodes: tuple[Node, ...]
    seconds: float
    job: str = ""
    remainder: Callable[[], Remainder] = Remainder
    reclaim: Callable[[Sequence[str]], Sequence[str]] | None = None
    gpus: tuple[str, ...] = ()


def find_allocation(
    site: Site,
    lifetime: float = 0.0,
    environment: Mapping[str, str] | None = None,
    asked: RunCommand = ask_batch_system,
) -> AllocatedNodes:
    """Returns the allocation in which this process runs.

    Args:
        site: its node shape has priority over the batch system and this machine.
        lifetime: remaining seconds; 0: ask the batch system.
        environment: default: of this process.
        asked: runs commands of the batch system.

    Raises:
        InputError: there is no allocation, or its data are missing; the message says what to do.
    """
    env = os.environ if environment is None else environment
    batch = _batch(site, env, asked)
    given = batch.nodes()
    if not given:
        raise InputError(f"job {batch.job} of {site.batch} names no nodes: start the pilot from its batch script")
    if len(given) > 1 and not site.launcher.programs:
        raise InputError(
            f"the allocation has {len(given)} nodes, and the launcher of site {site.name!r} cannot start processes "
            "on other nodes: name another launcher in its profile, such as srun"
        )
    nodes = tuple(Node(node.name, _shape(site, node, batch)) for node in given)
    reclaim = batch.reclaim if batch.keeps_cores() else None
    gpus = _gpu_names(nodes[0], env) if len(nodes) == 1 and not site.launcher.chooses_gpus else ()
    left = _seconds(batch, lifetime)
    return AllocatedNodes(nodes, left, batch.job, lambda: batch.remainder(time.time()), reclaim, gpus)


def _gpu_names(node: Node, env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the GPUs of this node: a batch system may give some of it and hide none, as HTCondor."""
    found = find_gpus(env) if node.shape.gpus else ()
    return tuple(gpu.identifier for gpu in found) if len(found) >= node.shape.gpus else ()


def _batch(site: Site, env: Mapping[str, str], asked: RunCommand) -> BatchAllocation:
    named = BATCH_SYSTEMS.values() if site.batch == "none" else [make_batch_system(site.batch)]
    systems = [system.allocation for system in named]
    for system in systems:
        if env.get(system.variable):
            return system(env, asked)
    wanted = " or ".join(system.variable for system in systems)
    raise InputError(f"--allocation: this is not a batch job: {wanted} is not set; leave --allocation out")


def _seconds(batch: BatchAllocation, lifetime: float) -> float:
    try:
        left = batch.seconds_left(time.time())
    except InputError as error:
        if lifetime:
            return lifetime
        raise InputError(f"the end of the allocation is not known ({error}): give --lifetime SECONDS") from error
    return min(left, lifetime or math.inf)


def _shape(site: Site, given: AllocatedNode, batch: BatchAllocation) -> NodeShape:
    """Returns the shape of a node; unknown values are taken from this machine."""
    gpus = _least(site.gpus, batch.gpus_per_node())
    return NodeShape(
        cores=_least(site.cores, given.cpus // site.threads_per_core) or machine_cores(),
        memory_mb=_least(site.memory_mb, batch.memory_mb()) or _machine_memory(),
        gpus=gpus if gpus or site.cores else len(find_gpus()),  # a profile with cores would have its GPUs
        close=site.close,
    )


def _least(*said: int) -> int:
    """Returns the least known value, because the allocation may have a part of a node; 0: not known."""
    return min(filter(None, said), default=0)


def _machine_memory() -> int:
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20)


_NAMED = 2  # failed launches in a row whose message names the node
_UNNAMED = 3  # the same without a name, if launches on other nodes work: another node of the job may be the cause


class NodeHealth:
    """Counts failed launches by node. The caller holds a lock."""

    def __init__(self) -> None:
        self._named: Counter[str] = Counter()
        self._unnamed: Counter[str] = Counter()
        self._worked_at: dict[str, int] = {}  # node -> number of its last successful launch
        self._failed_from: dict[str, int] = {}  # node -> number of the first failed launch in a row
        self._launches = 0

    def worked(self, nodes: Collection[str]) -> None:
        """Notes a successful launch."""
        self._launches += 1
        for node in nodes:
            self._worked_at[node] = self._launches
            self._failed_from.pop(node, None)
            del self._named[node], self._unnamed[node]

    def failed(self, nodes: Collection[str], named: Collection[str]) -> list[str]:
        """Notes a failed launch.

        Args:
            nodes: nodes of the job.
            named: nodes that the launcher names.

        Returns:
            Nodes that must not be used any more.
        """
        self._launches += 1
        for node in named or nodes:
            (self._named if named else self._unnamed)[node] += 1
            self._failed_from.setdefault(node, self._launches)
        return [node for node in named or nodes if self._is_bad(node)]

    def _is_bad(self, node: str) -> bool:
        if self._named[node] >= _NAMED:
            return True
        since = self._failed_from[node]
        elsewhere = any(at > since for other, at in self._worked_at.items() if other != node)
        return elsewhere and self._unnamed[node] >= _UNNAMED


log = logging.getLogger(__name__)

#: Simultaneous job steps if the site has no limit: each has a thread and a runner on this node.
_MOST = 1000

#: Simultaneous jobs with agents: each is a small object here. The largest machines have 75,000 GPUs.
_MOST_WITH_AGENTS = 100_000

#: Waiting jobs up to which more are requested, for servers that do not know the free resources of each node.
_MOST_WAITING = 8

#: Seconds until a request for jobs is renewed while jobs run.
_PATIENCE = 1.0

#: Reason for the loss of a node that the batch system has taken away.
TAKEN_AWAY = "the batch system took it away"

_WORD = 30.0  # seconds at most from a node's loss to the launcher's message

_LOOK = 2.0  # seconds between checks whether a waiting job is still wanted


class AllocationReservation(JobReservation):
    """One job's place in the allocation.

    Attributes:
        key: PandaID and attempt.
        planned: the job for the scheduler; None: its needs are not known yet.
        start: its nodes, when the scheduler has started it.
        failure: why it will not start.
        is_over: no thread waits for its start any more.
        settled: for a job that takes no job step: is called when `start` or `failure` is known, with the pool's lock.
        has_step: it counts among the job steps.
        is_scheduled: the scheduler has it.
        staging: seconds spent on copies, which later jobs of its search will find.
    """

    def __init__(self, key: tuple[Any, Any], search: str) -> None:
        self.key, self.search = key, search
        self.planned: ScheduledJob | None = None
        self.start: Start | None = None
        self.failure: JobFailure | None = None
        self.is_over = False
        self.settled: Callable[[], None] | None = None
        self.has_step = self.is_scheduled = False
        self.staging = 0.0

    def settle(self, *, start: Start | None = None, failure: JobFailure | None = None) -> None:
        """Notes the scheduler's decision."""
        self.start, self.failure = start, failure
        if self.settled is not None:
            self.settled()


class AllocationPool(ResourcePool[AllocationReservation]):
    """Shares out the nodes of an allocation.

    Jobs go to the scheduler in the server's order. More jobs are requested only when the needs of all jobs that came
    before are known.
    """

    def __init__(
        self,
        allocation: AllocatedNodes,
        site: Site,
        *,
        margin: float,
        checkpointed: float = Policy.checkpointed,
        has_agents: bool = False,
        when_lost: Callable[[int, JobFailure], None],
        is_away: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes an allocation.

        Args:
            allocation: as it is now.
            site: where it is.
            margin: seconds before its end when every job should have ended.
            checkpointed: seconds before that until which jobs with checkpoints start.
            has_agents: jobs may run without job steps, see `place`.
            when_lost: is called with the PandaID of each job that lost a node, and the failure.
            is_away: returns whether the launcher starts nothing now: then no jobs are requested, and jobs that would
                start are given back.
            clock: in seconds.
        """
        self._site, self._clock, self._when_lost, self._is_away = site, clock, when_lost, is_away
        self._names = tuple(node.name for node in allocation.nodes)
        self._shapes = {node.name: node.shape for node in allocation.nodes}
        self._gpu_names = allocation.gpus
        now = clock()
        self._half_time = now + allocation.seconds / 2
        policy = Policy(margin=margin, checkpointed=checkpointed)
        self._scheduler = Scheduler(allocation.nodes, begins=now, ends=now + allocation.seconds, policy=policy)
        cores = sum(node.shape.cores for node in allocation.nodes)
        self.has_agents = has_agents  #: jobs may run without job steps
        self._is_draining = False
        self._most_steps = site.job_steps - has_agents if site.job_steps else min(_MOST, cores)
        self.most = min(_MOST_WITH_AGENTS, cores) if has_agents else self._most_steps
        self._steps = 0
        self._for_steps: deque[AllocationReservation] = deque()  # jobs that wait for a job step to end
        self._up = set(self._names)
        self._keeps_cores = allocation.reclaim is not None
        self._taken: set[str] = set()  # nodes that the batch system took away
        self._blocked: set[str] = set()  # nodes whose cores it may keep
        self._freed: dict[str, float] = {}  # node -> end of its last job
        self._health = NodeHealth()
        self.failed_launches = 0  #: so far
        self._reservations: dict[Hashable, AllocationReservation] = {}
        self._coming: deque[AllocationReservation] = deque()
        self._changed = threading.Condition()

    # --- methods of ResourcePool ---

    def wait_for_some(self, stop: threading.Event) -> FreeResources:
        """See ResourcePool."""
        with self._changed:
            while True:
                now = self._clock()
                self._decide(now)
                left = self.most - len(self._reservations)
                if stop.is_set():
                    return FreeResources(0, 0, ())
                some = self._scheduler.waiting < _MOST_WAITING and not self._is_away()
                if left > 0 and not self._coming and some:
                    request = self._scheduler.request_jobs(now)
                    if (request.now or request.later) and len(self._for_steps) < _MOST_WAITING:
                        cores = sum(room.nodes * room.cores for room in request.free)
                        gpus = max((math.ceil(sum(room.gpus)) for room in request.free), default=0)
                        patience = _PATIENCE if self._reservations else math.inf
                        return FreeResources(
                            min(left, max(1, cores)), max(1, cores), self._gpus(gpus), patience, request
                        )
                self._changed.wait(_LOOK)

    def reserve(self, data: Mapping[str, Any]) -> AllocationReservation:
        """See ResourcePool."""
        reservation = AllocationReservation((data.get("PandaID"), data.get("attemptNr")), _search_of(data))
        with self._changed:
            self._reservations[reservation.key] = reservation
            self._coming.append(reservation)
        return reservation

    def enter(self, reservation: AllocationReservation, stop: threading.Event) -> bool:
        """See ResourcePool: returns at once, because only the sandbox has the job's needs."""
        return not stop.is_set()

    def assign(
        self, reservation: AllocationReservation, job: Job, document: PayloadSettings, starting: StartingJob
    ) -> AssignedResources:
        """See ResourcePool: waits until the scheduler starts the job."""
        with self._changed:
            reservation.planned = self._planned(reservation, job, document)
            self._decide(self._clock())
            while reservation.start is None and reservation.failure is None and not starting.is_over():
                self._changed.wait(_LOOK)
            if starting.failure is not None:
                raise starting.failure
            if reservation.failure is not None:
                raise reservation.failure
            if reservation.start is None or starting.draining.is_set():
                raise GivenBack("the allocation was about to end while the job waited")
        return self.assignment(reservation.planned, reservation.start)

    def place(
        self, reservation: AllocationReservation, job: Job, document: PayloadSettings, settled: Callable[[], None]
    ) -> None:
        """Hands a job that takes no job step to the scheduler, and returns at once; see `AllocationReservation`."""
        with self._changed:
            reservation.settled = settled
            reservation.planned = self._planned(reservation, job, document)
            self._decide(self._clock())

    def free(self, reservation: AllocationReservation, ending: Ending = Ending.FAILED) -> None:
        """See ResourcePool."""
        with self._changed:
            reservation.is_over = True
            self._reservations.pop(reservation.key, None)
            for waiting in (self._coming, self._for_steps):
                if reservation in waiting:
                    waiting.remove(reservation)
            self._steps -= reservation.has_step
            if reservation.start is not None:
                now = self._clock()
                self._scheduler.ended(reservation.key, ending, now, staging=reservation.staging)
                self._freed.update((share.node, now) for share in reservation.start.shares)
            elif reservation.is_scheduled and reservation.failure is None:
                self._reservations[reservation.key] = (
                    reservation  # the scheduler still has it: `_decide` ends it when its turn comes
                )
            self._decide(self._clock())

    def note_launch(
        self, reservation: AllocationReservation, failed: Collection[str] | None, lost: Collection[str] = ()
    ) -> None:
        """See ResourcePool: nodes with repeated failed launches are lost."""
        nodes = [share.node for share in reservation.start.shares] if reservation.start else []
        with self._changed:
            if failed is None:
                self._health.worked(nodes)
                return
            self.failed_launches += 1
            bad = self._health.failed(nodes, failed)
            since = self._clock() - _WORD
        for node in lost:
            self.lose(node, TAKEN_AWAY, taken_since=since)
        for node in bad:
            self.lose(node, "launches fail there")

    def note_staging(self, reservation: AllocationReservation, seconds: float) -> None:
        """See ResourcePool."""
        with self._changed:
            reservation.staging = seconds

    def metrics(self) -> Iterator[Metric]:
        """See ResourcePool."""
        waiting, spent = self.counts()[1], self.usage().nodes
        yield GaugeMetricFamily("hpo_pilot_pilot_jobs_waiting", "Jobs that wait for nodes of the allocation.", waiting)
        yield GaugeMetricFamily("hpo_pilot_pilot_nodes_up", "Usable nodes of the allocation.", len(self.up))
        seconds = CounterMetricFamily(
            "hpo_pilot_pilot_node_seconds",
            "Seconds of the allocation's nodes; their rate is the number of nodes.",
            labels=["use"],
        )
        for use in ("used", "lost", "idle"):
            seconds.add_metric([use], getattr(spent, use))
        yield seconds

    def wake(self) -> None:
        """See ResourcePool."""
        with self._changed:
            self._decide(self._clock())

    # --- state of the allocation ---

    @property
    def is_gone(self) -> bool:
        """Whether all its nodes are lost."""
        return not self._up

    @property
    def up(self) -> frozenset[str]:
        """Its usable nodes."""
        with self._changed:
            return frozenset(self._up - self._blocked)

    @property
    def blocked(self) -> list[str]:
        """Nodes that temporarily get no new jobs, in the allocation's order."""
        with self._changed:
            return [name for name in self._names if name in self._blocked]

    @property
    def is_idle(self) -> bool:
        """Whether there is no job although the launcher works."""
        with self._changed:
            return not self._reservations and not self._is_away()

    @property
    def is_empty(self) -> bool:
        """Whether there is no job."""
        with self._changed:
            return not self._reservations

    def drain(self) -> None:
        """Starts no more jobs; waiting jobs are given back."""
        with self._changed:
            self._is_draining = True
            self._scheduler.drain()
            self._decide(self._clock())

    def lose(self, node: str, why: str, *, taken_since: float = math.inf) -> None:
        """Removes a node: it gets no more jobs, and its jobs are ended.

        Args:
            node: its name.
            why: reason in one line.
            taken_since: for a node that the batch system took away: last time when the allocation still had it. Some
                batch systems then keep cores of nodes where jobs ran since; these nodes get no new jobs until
                `unblock`.
        """
        with self._changed:
            if taken_since < math.inf and node not in self._taken:
                self._taken.add(node)
                self._block(node, taken_since)
            if node not in self._up:
                return
            self._up.discard(node)
            log.warning("node %s gets no more jobs, %d nodes are left: %s", node, len(self._up), why)
            victims = self._scheduler.lose_node(node, self._clock())
            lost = [self._reservations[job.key].key[0] for job in victims]
            self._decide(self._clock())
        for panda_id in lost:
            self._when_lost(panda_id, NodeLost(f"node {node} is lost: {why}"))

    def unblock(self, nodes: Collection[str]) -> None:
        """Lets blocked nodes, which are completely free now, get jobs again."""
        with self._changed:
            if free := [name for name in self._names if name in nodes and name in self._blocked]:
                log.info("%s may get jobs again", nodes_text(free))
                self._blocked.difference_update(free)
                self._scheduler.release(free)
                self._decide(self._clock())

    def usage(self) -> Usage:
        """Returns how the allocation was used so far."""
        with self._changed:
            return self._scheduler.usage(self._clock())

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of running and of waiting jobs."""
        with self._changed:
            return self._scheduler.running, self._scheduler.waiting

    # --- helpers ---

    def _block(self, lost: str, since: float) -> None:
        """Blocks nodes where jobs run or ran lately: they get no new jobs."""
        if not self._keeps_cores or self.has_agents:  # steps on shared nodes wait for no cores
            return
        used = {
            share.node
            for reservation in self._reservations.values()
            if reservation.start
            for share in reservation.start.shares
        }
        used |= {node for node, when in self._freed.items() if when >= since}
        if more := [name for name in self._names if name in (used & self._up) - self._blocked - {lost}]:
            log.info(
                "%s get no new jobs until their jobs have ended: the batch system may keep cores", nodes_text(more)
            )
            self._blocked.update(more)
            self._scheduler.hold(more)

    def _decide(self, now: float) -> None:
        """Lets the scheduler decide, and wakes the waiting threads."""
        while self._coming and (self._coming[0].planned is not None or self._coming[0].is_over):
            reservation = self._coming.popleft()
            if reservation.settled is not None:
                self._schedule(reservation)
            else:
                self._for_steps.append(reservation)
        while self._for_steps and (self._steps < self._most_steps or self._is_draining):
            reservation = self._for_steps.popleft()
            reservation.has_step = not reservation.is_over
            self._steps += reservation.has_step
            self._schedule(reservation)
        again = True
        while again:
            again = False
            for start in self._scheduler.starts(now):
                reservation = self._reservations[start.job.key]
                if reservation.is_over or (self._is_away() and reservation.settled is None):
                    again = True
                    self._scheduler.ended(reservation.key, Ending.CUT, now)
                    if reservation.is_over:
                        del self._reservations[reservation.key]
                    reservation.settle(failure=LauncherAway("the launcher starts nothing here for now"))
                else:
                    reservation.settle(start=start)
        for job in self._scheduler.hand_back(now):
            reservation = self._reservations[job.key]
            why = "the job would not end before the allocation does, or its nodes are lost"
            reservation.settle(failure=GivenBack(why))
            if reservation.is_over:
                del self._reservations[reservation.key]
        self._changed.notify_all()

    def _schedule(self, reservation: AllocationReservation) -> None:
        if reservation.planned is not None and not reservation.is_over:
            try:
                self._scheduler.add(reservation.planned)
                reservation.is_scheduled = True
            except InputError as error:
                reservation.settle(failure=JobFailure(str(error)))

    def _planned(self, reservation: AllocationReservation, job: Job, document: PayloadSettings) -> ScheduledJob:
        return ScheduledJob(reservation.key, reservation.search, self._needs(job, document))

    def _needs(self, job: Job, document: PayloadSettings) -> JobNeeds:
        """Returns the job's needs; memory that is not given is the share of its cores."""
        takes_step = not self.has_agents or self._site.launcher.needs_step(document.nodes, document.ranks_per_node)
        if document.gpu_share > 1 and takes_step and self._site.launcher.chooses_gpus:
            raise JobFailure(f"the job shares a GPU, and {self._site.launcher.name} gives each job GPUs of its own")
        least = min((shape.memory_mb // shape.cores for shape in self._shapes.values()), default=1)
        return JobNeeds(
            nodes=document.nodes,
            gpus_per_node=gpu_count(document.gpus or int(job.wants_gpu), document.gpu_share),
            cores=job.cores,
            memory_mb=job.memory_mb or max(1, least * job.cores),
            minutes=document.minutes or job.walltime / 60,
            ranks_per_node=document.ranks_per_node,
            checkpoints=bool(document.checkpoint),
        )

    def assignment(self, planned: ScheduledJob, start: Start) -> AssignedResources:
        """Returns the resources of a job that the scheduler has started."""
        return AssignedResources(
            nodes=tuple(share.node for share in start.shares),
            variables=share_variables(planned.needs.gpu_share, self._site.gpu_memory_mb, mps=self._site.mps),
            cores=planned.needs.cores,
            gpus={share.node: tuple(map(self._gpu_name, share.gpus)) for share in start.shares},
            bound=start.shares[0].cores,
            memory_mb=planned.needs.memory_mb,
            allocation=self._names,
            is_shared=self.has_agents and (bool(self._taken) or not all(map(self._is_whole, start.shares))),
            seconds=math.ceil(planned.needs.seconds),
            is_late=self._clock() > self._half_time,
        )

    def _gpu_name(self, number: int) -> str:
        return self._gpu_names[number] if self._gpu_names else str(number)

    def _is_whole(self, share: Share) -> bool:
        """Returns whether a job has all GPUs of a node, or all cores of a node without GPUs."""
        shape = self._shapes[share.node]
        return len(share.gpus) == shape.gpus if shape.gpus else len(share.cores) == shape.cores

    def _gpus(self, count: int) -> tuple[MachineGpu, ...]:
        vendor = self._site.gpu_kind.upper() if self._site.gpu_kind in VISIBLE_GPUS else "NVIDIA"
        memory = str(self._site.gpu_memory_mb or "")
        return tuple(MachineGpu(str(number), vendor, self._site.gpu_model, memory) for number in range(count))


def nodes_text(nodes: Sequence[str]) -> str:
    """Returns the number of nodes, and the names of the first eight."""
    return f"{len(nodes)} nodes ({', '.join(nodes[:8])}{', ...' if len(nodes) > 8 else ''})"


def _search_of(data: Mapping[str, Any]) -> str:
    """Returns a name that is common to jobs with similar run times: the search, or else the sandbox."""
    words = str(data.get("jobPars") or "").split()
    archive = words[words.index("-a") + 1] if "-a" in words[:-1] else ""
    return str(data.get("hpoCampaign") or archive or data.get("taskID") or "")


_TICK = 1.0  # seconds
_ASK = 60.0  # seconds between checks for nodes that were taken away
_RECLAIM = 5.0  # seconds between checks whether blocked nodes are free
_USAGE = 600.0  # seconds between log lines on the use of the allocation

#: Batch systems may warn earlier than requested: Slurm by up to a minute (sbatch, --signal).
_EARLY = 90.0

_SOONER = 60.0  # an end that is sooner by this many seconds than the known one is a preemption, not a clock's error


def ending_margin(seconds: float, most: float) -> float:
    """Returns the seconds before the end of an allocation when its jobs must save and stop.

    Args:
        seconds: length of the allocation, or time from the warning to the end.
        most: time for saving, the last reports and delays of the batch system.
    """
    return min(most, seconds / 10)


class AllocationWatch(threading.Thread):
    """Ends the pilot early enough for running jobs to save their checkpoints, and logs how the nodes are used.

    After the batch system's warning no job is started. Running jobs continue, and most end by themselves. Shortly
    before the end the others are told to save. If the batch system takes a node away, only the jobs of that node end.
    If no job has come for a long time, the nodes are given back, because they are charged for.
    """

    def __init__(
        self,
        pool: AllocationPool,
        site: Site,
        allocation: AllocatedNodes,
        *,
        margin: float,
        idle: float,
        end: Callable[[], None],
    ) -> None:
        """Makes the watch; `start` starts it.

        Args:
            pool: pool of the allocation.
            site: the site with the batch system's warning signal.
            allocation: the allocation as it is now.
            margin: seconds before the end of the allocation when `end` is called.
            idle: seconds without a job after which `end` is called too; 0: never.
            end: ends the pilot; running jobs are told to save.
        """
        super().__init__(name="allocation", daemon=True)
        self._pool, self._site, self._end, self._margin = pool, site, end, margin
        self._began = self._busy = time.monotonic()
        self._idle = idle or math.inf
        self._ends = self._began + allocation.seconds
        self._remainder, self._reclaim = allocation.remainder, allocation.reclaim
        self._failed_launches, self._ask_at = 0, self._began + _ASK
        self._asked = self._reclaim_at = self._began
        self._asking, self._reclaiming = threading.Lock(), threading.Lock()
        self._cancelled: set[Hashable] = set()  # jobs whose steps were cancelled while the allocation went on
        self._not_free: list[str] = []  # nodes whose hold by the batch system was logged
        self._warned = threading.Event()
        self._enough = threading.Event()
        self._over = threading.Event()

    @property
    def remaining(self) -> int:
        """Whole seconds until the end."""
        return max(1, int(min(self._ends - time.monotonic(), 1e9)))

    def warn(self) -> None:
        """Notes the batch system's warning."""
        self._warned.set()

    def is_cut_off(self, job: Hashable) -> bool:
        """Returns whether a job whose step was cancelled, but not by this pilot, was cut off by no fault of its own.

        Slurm signals the steps of an allocation that is preempted long before it signals the pilot. So the batch system
        is asked, and if the end is near, no job is started any more. If the allocation goes on, somebody has cancelled
        the step alone: a user, or a program that watches over the nodes. Then a job is cut off once; if that happens to
        it again at this pilot, it has failed, because the job may be the reason.

        Args:
            job: identifies it, in all its attempts.
        """
        asked = time.monotonic()
        with self._asking:
            if self._asked < asked and not self._enough.is_set():  # else another thread has just asked
                self._ask_batch_system()
            if self._enough.is_set():
                return True
            is_first = job not in self._cancelled
            self._cancelled.add(job)
            return is_first

    def ask_soon(self) -> None:
        """Asks the batch system what is left: this process had a signal."""
        self._ask_at = 0.0

    def drain(self) -> None:
        """Starts no more jobs; the pilot ends when the running jobs have ended."""
        self._enough.set()

    def stop(self) -> None:
        """Ends the watch and logs how the allocation was used."""
        self._over.set()
        self._say_usage("the allocation's")

    def run(self) -> None:
        """Watches until the end."""
        say_at, drained = self._began + _USAGE, False
        while not self._over.is_set():
            now = time.monotonic()
            if self._warned.is_set() and not drained:
                drained = True
                self._shorten(now)
                log.info("the batch system warns: no more jobs start, %.0f s are left", self._ends - now)
                self._pool.drain()
            if self._enough.is_set() and not drained:
                drained = True
                self._pool.drain()
            self._look_for_changes(now)
            self._look_for_free_nodes(now)
            if self._pool.is_gone:
                log.error("all nodes of the allocation are lost")
                return self._end()
            if now >= self._ends - self._margin:
                log.info("the allocation ends in %.0f s: running jobs are told to save", self._ends - now)
                return self._end()
            if drained and self._pool.is_empty:
                return self._end()
            if not self._pool.is_idle:
                self._busy = now
            elif now - self._busy >= self._idle:
                log.info("no job has come for %.0f s: the allocation is given back", self._idle)
                return self._end()
            if now >= say_at:
                say_at = now + _USAGE
                self._say_usage("so far the allocation's")
            self._over.wait(min(_TICK, max(0.05, self._ends - self._margin - now)))
        return None

    def _look_for_changes(self, now: float) -> None:
        """Asks the batch system at intervals and after a failed launch."""
        failed = self._pool.failed_launches
        if now < self._ask_at and failed == self._failed_launches:
            return
        self._ask_at, self._failed_launches = now + _ASK, failed
        with self._asking:
            self._ask_batch_system()

    def _ask_batch_system(self) -> None:
        """Removes nodes that were taken away, and drains if the allocation ends sooner than was known."""
        now = time.monotonic()
        try:
            left = self._remainder()
        except (HpoPilotError, ValueError) as error:
            log.info("the batch system does not say what is left of the allocation: %s", error)
            return
        if now + left.seconds < self._ends - _SOONER:
            self._ends = now + left.seconds
            self._margin = min(self._margin, left.seconds / 2)
            log.warning("the allocation ends in %.0f s, sooner than planned: no more jobs start", left.seconds)
            self._enough.set()
            self._pool.drain()  # at once: the caller may be about to free nodes
        for node in left.lost:
            self._pool.lose(node, TAKEN_AWAY, taken_since=self._asked)
        self._asked = now

    def _look_for_free_nodes(self, now: float) -> None:
        """Checks, in a thread of its own, whether blocked nodes are free: the end must not wait for the answer."""
        if now < self._reclaim_at or self._reclaiming.locked() or not (blocked := self._pool.blocked):
            return
        self._reclaim_at = now + _RECLAIM
        threading.Thread(target=self._take_back, args=[blocked], name="reclaim", daemon=True).start()

    def _take_back(self, blocked: list[str]) -> None:
        if self._reclaim is None:
            return
        with self._reclaiming:
            try:
                self._pool.unblock(self._reclaim(blocked))
            except (HpoPilotError, ValueError) as error:
                if blocked != self._not_free:
                    log.info("the batch system does not give %s back yet: %s", ", ".join(blocked), error)
                self._not_free = blocked

    def _shorten(self, now: float) -> None:
        """Shortens the allocation if the warning comes long before the known end, as for a preemption."""
        warning = self._site.warning
        if warning is not None and warning.seconds and self._ends - now > warning.seconds + _EARLY:
            self._ends = now + warning.seconds
            self._margin = min(self._margin, warning.seconds / 2)

    def _say_usage(self, whose: str) -> None:
        usage, (running, waiting) = self._pool.usage(), self._pool.counts()
        endings: Counter[str] = Counter()
        for search in usage.searches.values():
            endings.update({ending.value: count for ending, count in search.endings.items()})
        ended = ", ".join(f"{count} {name}" for name, count in sorted(endings.items())) or "no job has ended"
        gpus = f"; its GPUs': {_shares(usage.gpus)}" if usage.gpus.total else ""
        log.info("%s node time: %s%s; %s; %d run, %d wait", whose, _shares(usage.nodes), gpus, ended, running, waiting)


def _shares(spent: TimeBreakdown) -> str:
    total = spent.total or 1.0
    parts = {"used": spent.used, "in use": spent.running, "lost": spent.lost, "idle": spent.idle, "gone": spent.gone}
    return ", ".join(f"{100 * value / total:.0f}% {name}" for name, value in parts.items() if value or name == "used")
