"""Shares out the nodes of the batch allocation in which a pilot runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.launcher import MOST_SPREAD, VISIBLE_GPUS
from hpo_pilot.hpc.scheduler import Policy, Scheduler
from hpo_pilot.hpc.usage import Ending, ScheduledJob, Share, Start, Usage
from hpo_pilot.jobs.resources import JobNeeds, gpu_count
from hpo_pilot.pilot.allocation import AllocatedNodes
from hpo_pilot.pilot.job import GivenBack, Job, JobFailure, LauncherAway, NodeLost
from hpo_pilot.pilot.machine import (
    AssignedResources,
    FreeResources,
    JobReservation,
    MachineGpu,
    ResourcePool,
    share_variables,
)
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadSettings

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

_PARTS_END = 60.0  # seconds for agents to end their processes of a job, or to be lost

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
        takes_step: it takes a job step.
        is_counted: it counts among the job steps, or else among the jobs that agents start on several nodes.
        ended: is set when no agent has a process of it; None: agents start none.
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
        self.takes_step, self.is_counted, self.is_scheduled = True, False, False
        self.ended: threading.Event | None = None
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
        self.spread: tuple[str, ...] = ()  #: see AssignedResources; empty: no agents start jobs on several nodes
        steps = site.job_steps - has_agents if site.job_steps else min(_MOST, cores)
        self.most = min(_MOST_WITH_AGENTS, cores) if has_agents else steps
        self._limits = {True: steps, False: MOST_SPREAD}  # jobs here at once, by `takes_step`
        self._counts: Counter[bool] = Counter()
        self._waiting: dict[bool, deque[AllocationReservation]] = {True: deque(), False: deque()}  # for one to end
        self._up = set(self._names)
        self._is_smaller = False  # whether the batch system took a node away
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
                    if (request.now or request.later) and sum(map(len, self._waiting.values())) < _MOST_WAITING:
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
        return self.assignment(reservation.planned, reservation.start, takes_step=reservation.takes_step)

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
        if reservation.ended is not None and not reservation.ended.wait(_PARTS_END):
            log.warning("agents may still have processes of job %s", reservation.key[0])
        with self._changed:
            reservation.is_over = True
            self._reservations.pop(reservation.key, None)
            for waiting in (self._coming, *self._waiting.values()):
                if reservation in waiting:
                    waiting.remove(reservation)
            self._counts[reservation.takes_step] -= reservation.is_counted
            if reservation.start is not None:
                self._scheduler.ended(reservation.key, ending, self._clock(), staging=reservation.staging)
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
        for node in lost:
            self.lose(node, TAKEN_AWAY)
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

    def spread_over(self, key: tuple[Any, Any], ended: threading.Event) -> tuple[Share, ...]:
        """Returns the nodes of a running job, whose resources stay taken until `ended` is set.

        Raises:
            LookupError: no such job runs.
        """
        with self._changed:
            reservation = self._reservations[key]
            if reservation.start is None or reservation.is_over:
                raise LookupError(f"job {key[0]} does not run")
            reservation.ended = ended
            return tuple(reservation.start.shares)

    # --- state of the allocation ---

    @property
    def up(self) -> frozenset[str]:
        """Its usable nodes."""
        with self._changed:
            return frozenset(self._up)

    @property
    def is_idle(self) -> bool:
        """Whether there is no job although the launcher works."""
        return self.is_empty and not self._is_away()

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

    def lose(self, node: str, why: str) -> None:
        """Removes a node for a reason in one line: it gets no more jobs, and its jobs are ended."""
        with self._changed:
            self._is_smaller = self._is_smaller or why == TAKEN_AWAY
            if node not in self._up:
                return
            self._up.discard(node)
            log.warning("node %s gets no more jobs, %d nodes are left: %s", node, len(self._up), why)
            victims = self._scheduler.lose_node(node, self._clock())
            lost = [self._reservations[job.key].key[0] for job in victims]
            self._decide(self._clock())
        for panda_id in lost:
            self._when_lost(panda_id, NodeLost(f"node {node} is lost: {why}"))

    def usage(self) -> Usage:
        """Returns how the allocation was used so far."""
        with self._changed:
            return self._scheduler.usage(self._clock())

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of running and of waiting jobs."""
        with self._changed:
            return self._scheduler.running, self._scheduler.waiting

    # --- helpers ---

    def _decide(self, now: float) -> None:
        """Lets the scheduler decide, and wakes the waiting threads."""
        while self._coming and (self._coming[0].planned is not None or self._coming[0].is_over):
            reservation = self._coming.popleft()
            if reservation.settled is not None:
                self._schedule(reservation)
            else:
                self._waiting[reservation.takes_step].append(reservation)
        for kind, waiting in self._waiting.items():
            while waiting and (self._counts[kind] < self._limits[kind] or self._is_draining):
                reservation = waiting.popleft()
                reservation.is_counted = not reservation.is_over
                self._counts[kind] += reservation.is_counted
                self._schedule(reservation)
        again = True
        while again:
            again = False
            for start in self._scheduler.starts(now):
                reservation = self._reservations[start.job.key]
                if reservation.is_over or (self._is_away() and reservation.takes_step):
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
        has_agents = self.spread if document.nodes > 1 else self.has_agents
        launcher = self._site.launcher
        reservation.takes_step = not has_agents or launcher.needs_step(document.nodes, document.ranks_per_node)
        if document.gpu_share > 1 and reservation.takes_step and launcher.chooses_gpus:
            raise JobFailure(f"the job shares a GPU, and {launcher.name} gives each job GPUs of its own")
        return ScheduledJob(reservation.key, reservation.search, self._needs(job, document))

    def _needs(self, job: Job, document: PayloadSettings) -> JobNeeds:
        """Returns the job's needs; memory that is not given is the share of its cores.

        The walltime may be shorter than the minutes of the payload, if steering knows how long such trainings take.
        """
        least = min((shape.memory_mb // shape.cores for shape in self._shapes.values()), default=1)
        return JobNeeds(
            nodes=document.nodes,
            gpus_per_node=gpu_count(document.gpus or int(job.wants_gpu), document.gpu_share),
            cores=job.cores,
            memory_mb=job.memory_mb or max(1, least * job.cores),
            minutes=min(filter(None, (document.minutes, job.walltime / 60)), default=0.0),
            ranks_per_node=document.ranks_per_node,
            checkpoints=bool(document.checkpoint),
        )

    def assignment(self, planned: ScheduledJob, start: Start, *, takes_step: bool = False) -> AssignedResources:
        """Returns the resources of a job that the scheduler has started."""
        return AssignedResources(
            nodes=tuple(share.node for share in start.shares),
            variables=share_variables(planned.needs.gpu_share, self._site.gpu_memory_mb, mps=self._site.mps),
            cores=planned.needs.cores,
            gpus={share.node: tuple(map(self._gpu_name, share.gpus)) for share in start.shares},
            bound=start.shares[0].cores,
            memory_mb=planned.needs.memory_mb,
            allocation=self._names,
            is_shared=self.has_agents and (self._is_smaller or not all(map(self._is_whole, start.shares))),
            seconds=math.ceil(planned.needs.seconds),
            is_late=self._clock() > self._half_time,
            spread=() if takes_step or len(start.shares) == 1 else self.spread,
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
