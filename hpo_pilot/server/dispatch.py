"""Brokerage: which jobs a pilot gets, and jobs that it gives back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, select, update

from hpo_pilot.databases import among
from hpo_pilot.hpc.capacity import AllocationRequest
from hpo_pilot.jobs import JobNeeds, JobState
from hpo_pilot.jobs.resources import usable_gpus
from hpo_pilot.server import brokerage
from hpo_pilot.server.attempts import NO_RETRY, add_attempts, change_task, job_row, task_row
from hpo_pilot.server.database import (
    AT_PILOT,
    AT_PILOT_STATES,
    TASK_COLUMNS,
    WAITS,
    AnyRow,
    Transaction,
    in_slices,
    jobs,
    moved_to,
    set_columns,
    tasks,
)
from hpo_pilot.server.descriptions import pilot_job
from hpo_pilot.server.job_records import job_records
from hpo_pilot.server.queues import UNDESCRIBED, Queue
from hpo_pilot.server.task_parameters import HIGH_MEMORY
from hpo_pilot.server.tokens import PilotIdentity

_TASKS = select(*TASK_COLUMNS).where(tasks.c.task_id.in_(bindparam("ids", expanding=True)))
_OPEN = select(jobs.c.task_id, jobs.c.queue).where(WAITS).distinct()
_LOADS = (
    select(tasks.c.campaign, tasks.c.needs, func.sum(jobs.c.core_count))
    .join(tasks, tasks.c.task_id == jobs.c.task_id)
    .where(AT_PILOT)
    .group_by(tasks.c.campaign, tasks.c.needs)
)


def refresh(tx: Transaction) -> None:
    """Adds the changes since the last call; the first call adds all waiting jobs."""
    waiting = tx.waiting
    if not waiting.complete:
        waiting.note([(row.queue, row.task_id) for row in tx.connection.execute(_OPEN)], ())
        waiting.complete = True
    if wanted := waiting.changed():
        waiting.add(_tasks(tx, wanted))


def _tasks(tx: Transaction, wanted: frozenset[tuple[int, str]]) -> Iterator[brokerage.WaitingTask]:
    ids = {task_id for task_id, _ in wanted}
    rows = {row.task_id: row for some in in_slices(ids) for row in tx.connection.execute(_TASKS, {"ids": some})}
    for task_id, queue in sorted(wanted):
        if task_id in rows:
            yield _waiting_task(rows[task_id], queue)


def _waiting_task(row: AnyRow, queue: str) -> brokerage.WaitingTask:
    kind = brokerage.JobKind(row.label, row.included or "", row.excluded or "", brokerage.parse_needs(row.needs))
    return brokerage.WaitingTask(row.task_id, queue, row.priority, row.campaign, kind)


def read_loads(tx: Transaction) -> None:
    """Counts the cores that each campaign has at pilots, unless that was done a moment ago."""
    if tx.waiting.loads_are_stale(tx.now):
        loads: Counter[str] = Counter()
        for campaign, needs, cores in tx.connection.execute(_LOADS):
            loads[campaign] += int(cores) * brokerage.parse_needs(needs).job.nodes
        tx.waiting.set_loads(tx.now, loads)


# Brokerage: which jobs a pilot gets.
#
# A job fits a pilot if it names the pilot's queue or none, and if label, task and needs (memory, cores, disk, time,
# GPUs, hardware) fit what the pilot states, or else what the queue file states. A job of several nodes fits only a
# pilot in a batch allocation, which states its free room. A job of a search that names a site profile fits pilots
# with that profile, and pilots that state none, such as a Pilot 3.
#
# The highest priority goes first. At equal priority, the campaign (a search) with the fewest cores at pilots goes
# first, then the campaign that was served longest ago. Within a campaign the oldest task goes first, within a task
# the lowest PandaID. So a search with thousands of waiting jobs gets every pilot while it is alone, and its share
# once others come.
#
# The cost does not grow with the number of jobs or pilots: see `brokerage.WaitingTasks`.

MAX_JOBS = 1000  # in one answer

#: Labels that a pilot asking for one of these also takes; from `job_complex_module.py` of panda-server 1.0.4.
_LABELS = {
    "user": ("user", "panda", "install"),
    "managed": ("managed", "test", "prod_test", "install"),
    "unified": ("managed", "test", "prod_test", "install", "user", "panda"),
}
#: Pilots of a queue in test that ask for these labels get "test" jobs.
_UNTESTED = frozenset({"user", "managed", "unified"})
_ANY_GPU = brokerage.GpuRequirement()
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class JobRequest:
    """A pilot's request for jobs. Empty and zero mean: not stated.

    Attributes:
        memory: memory for one job, in MB.
        cores: cores for all jobs of one answer together.
        disk_mb: disk space for one job, in MB.
        remaining_time: time for one job, in seconds.
        gpus: number of GPUs that the jobs may use together; None: the queue's limit for each job.
        queue: the description of the site's queue.
        patience: seconds of silence allowed in addition to those of our own pilots.
        allocation: the free room in the pilot's allocation, which then replaces `cores` and the number of GPUs. None:
            it has no allocation.
        waited: seconds since `allocation` was stated.
        profile: the site profile of the pilot.
        avoids: tasks of searches whose jobs the pilot cannot start now.
        why: the reason.
        pilot: the pilot that asks; None: any pilot may report on the jobs.
        only_node: whether all reports on the jobs will come from `node`.
        campaign: the only campaign whose jobs are wanted; empty: those of all.
    """

    site: str
    n_jobs: int = 1
    label: str = ""
    memory: int = 0
    cores: int = 0
    disk_mb: int = 0
    remaining_time: int = 0
    resource_type: str = ""
    task_id: int = 0
    node: str = ""
    computing_element: str = ""
    harvester_id: str = ""
    worker_id: str = ""
    scheduler_id: str = ""
    gpus: tuple[brokerage.GpuOffer, ...] | None = None
    queue: Queue = UNDESCRIBED
    patience: float = 0.0
    allocation: AllocationRequest | None = None
    waited: float = 0.0
    profile: str = ""
    avoids: tuple[int, ...] = ()
    why: str = ""
    pilot: PilotIdentity | None = None
    only_node: bool = False
    campaign: str = ""


def acquire(tx: Transaction, request: JobRequest) -> list[dict[str, Any]]:
    """Gives jobs to a pilot; they are its own when the transaction commits.

    Returns:
        PanDA's job dictionaries; none: nothing fits.
    """
    found = take(tx, request)
    return [pilot_job(job) for job in job_records(tx, found)] if found else []


def take(tx: Transaction, request: JobRequest) -> list[AnyRow]:
    """Gives jobs to a pilot as `acquire`; returns their rows as they waited."""
    if request.queue.status == "offline":
        return []
    refresh(tx)
    found = _Picking(tx, request).jobs()
    if found:
        send(tx, request, [job.panda_id for job in found])
    for task_id in sorted({job.task_id for job in found}):
        task = task_row(tx, task_id)
        if task.started:
            change_task(tx, task)
        else:
            change_task(tx, task, started=tx.now)
    return found


class _Bounds:
    """The most that one job may need: the smaller of the pilot's and the queue's limits."""

    def __init__(self, request: JobRequest) -> None:
        queue, allocation = request.queue, request.allocation
        self.many_nodes = allocation is not None
        self.site = f",{request.site},"
        self.profile = request.profile
        self.labels = _labels(request)
        self.resource_type = request.resource_type
        self.cores = _lesser(0 if allocation else request.cores, queue.cores)
        self.memory = _lesser(request.memory, queue.memory_mb)
        self.disk = _lesser(request.disk_mb, queue.disk_mb)
        self.seconds = _lesser(
            0 if allocation else request.remaining_time, int(queue.minutes * 60) if queue.minutes else None
        )
        self.architecture = queue.architecture or ""
        self.platforms = queue.platforms
        self.containers = queue.containers
        self.gpus = _queue_gpus(queue) if request.gpus is None else request.gpus
        if allocation and request.gpus is None and not self.gpus and (count := math.ceil(sum(allocation.largest.gpus))):
            self.gpus = (brokerage.GpuOffer(count),)  # of an unknown kind

    def fits(self, kind: brokerage.JobKind, queue: str) -> bool:
        """Returns whether jobs of this kind that wait at `queue` may go to the pilot."""
        needs, job = kind.needs, kind.needs.job
        return (
            (not self.labels or kind.label in self.labels)
            and (bool(queue) or not kind.included or self.site in kind.included)
            and (bool(queue) or self.site not in kind.excluded)
            and (not self.profile or needs.site in ("", self.profile))
            and (job.nodes == 1 or self.many_nodes)
            and job.fit(usable_gpus(brokerage.free_gpus(self.gpus), job.gpus_per_node), self.cores, self.memory)
            and needs.disk_mb <= self.disk
            and needs.walltime <= self.seconds
            and (not self.resource_type or _is_of_type(job, self.resource_type))
            and self._has_hardware(needs)
        )

    def _has_hardware(self, needs: brokerage.TaskNeeds) -> bool:
        if needs.container and self.containers == ():
            return False
        required, gpus = needs.hardware, needs.job.gpus_per_node
        return (
            (not gpus or brokerage.gpus_fit(required.gpu or _ANY_GPU, gpus, self.gpus))
            and brokerage.cpu_fits(required.cpus, self.architecture)
            and (not required.platform or not self.platforms or required.platform in self.platforms)
        )


def _labels(request: JobRequest) -> tuple[str, ...]:
    if request.queue.status == "test" and request.label in _UNTESTED:
        return ("test",)
    return _LABELS.get(request.label, (request.label,)) if request.label else ()


def _lesser(stated: int, limit: int | None) -> int:
    """Returns the smaller of the given values; 0 or None: not given."""
    return min(filter(None, (stated, limit)), default=_NO_LIMIT)


def _queue_gpus(queue: Queue) -> tuple[brokerage.GpuOffer, ...]:
    if not queue.gpus:
        return ()
    gpu = queue.gpu
    memory = "" if gpu.memory_mb is None else str(gpu.memory_mb)
    versions = (gpu.framework_version or "", gpu.driver_version or "")
    return (brokerage.GpuOffer(queue.gpus, gpu.vendor, gpu.model or "", gpu.generation or "", memory, *versions),)


def _is_of_type(needs: JobNeeds, resource_type: str) -> bool:
    if resource_type.startswith("SCORE") and needs.cores > 1:
        return False
    if resource_type.startswith("MCORE") and needs.cores <= 1:
        return False
    high = needs.memory_mb > needs.cores * HIGH_MEMORY
    return not (high and resource_type in ("SCORE", "MCORE")) and (high or not resource_type.endswith("_HIMEM"))


@dataclass(frozen=True)
class _Candidate:
    """A campaign in a group."""

    queue: str
    key: tuple[int, brokerage.JobKind]
    campaign: str
    heap: list[int]  # of its tasks


class _Picking:
    """The choice of jobs for one pilot."""

    def __init__(self, tx: Transaction, request: JobRequest) -> None:
        self._tx = tx
        self._waiting: brokerage.WaitingTasks = tx.waiting
        self._request = request
        self._missing = max(1, min(request.n_jobs, MAX_JOBS))
        # The free room of the pilot's allocation, which each chosen job reduces; None: it has no allocation.
        self._room_left = None if request.allocation is None else request.allocation.now.copy()
        self._room_before = self._room_left  # without the room that was taken last
        no_allocation = request.allocation is None
        self._cores = (request.cores if no_allocation else 0) or _NO_LIMIT
        # A sum: jobs that find no GPU with room for their share wait at the pilot.
        known = no_allocation and request.gpus is not None
        self._gpus = sum(brokerage.free_gpus(request.gpus or ())) if known else _NO_LIMIT
        self._found: list[AnyRow] = []
        self._taken: dict[tuple[int, str], int] = {}  # the last PandaID of a task

    def jobs(self) -> list[AnyRow]:
        """Returns the jobs, in the order in which they were chosen."""
        bounds = _Bounds(self._request)
        avoids = self._request.avoids
        avoided = {row.campaign for row in self._tx.connection.execute(_TASKS, {"ids": avoids})} if avoids else set()
        # A queue that is off brokerage gets only jobs that name it, not jobs that may run at any queue.
        queues = [self._request.site] if self._request.queue.status == "brokeroff" else [self._request.site, ""]
        for priority, groups in self._waiting.groups(dict.fromkeys(queues)):
            candidates = [
                _Candidate(queue, (-priority, kind), campaign, heap)
                for queue, kind, group in groups
                if bounds.fits(kind, queue)
                for campaign, heap in group.items()
                if campaign not in avoided and self._request.campaign in ("", campaign)
            ]
            self._serve(candidates)
            if not self._missing:
                break
        return self._found

    def _serve(self, candidates: list[_Candidate]) -> None:
        """Takes jobs of the campaigns in turn until there are enough, or none is left."""
        if len(candidates) > 1:
            read_loads(self._tx)
        allocation, waited = self._request.allocation, self._request.waited
        while candidates and self._missing:
            best = min(candidates, key=self._order)
            task = self._waiting_task(best)
            if task is None:
                candidates.remove(best)
            elif room := self._room(task, self._fair_count(task, candidates)):
                self._take(task, room)
            elif allocation and allocation.may_wait(task.kind.needs.job, waited):
                if self._take(task, 1):
                    self._missing = 0  # room is made for it before others take it
            else:
                candidates.remove(best)

    def _order(self, candidate: _Candidate) -> tuple[int, int, int]:
        return *self._waiting.burden(candidate.campaign), candidate.heap[0] if candidate.heap else 0

    def _waiting_task(self, candidate: _Candidate) -> brokerage.WaitingTask | None:
        task_id = self._request.task_id
        if not task_id:
            return self._waiting.first(candidate.queue, candidate.key, candidate.campaign)
        task = self._waiting.find(task_id, candidate.queue)
        return task if task and (task.group, task.campaign) == (candidate.key, candidate.campaign) else None

    def _room(self, task: brokerage.WaitingTask, most: int) -> int:
        """Returns the number of jobs, at most `most`, that fit beside the chosen ones."""
        needs, allocation = task.kind.needs.job, self._request.allocation
        if allocation is not None and self._room_left is not None:
            self._room_before = self._room_left.copy()
            seconds = allocation.needed(task.campaign, needs, self._request.waited)
            return self._room_left.take_many(needs, seconds, most)
        by_gpus = int(self._gpus // needs.gpus_per_node) if needs.gpus_per_node else most
        return min(most, self._cores // needs.cores, by_gpus)

    def _take(self, task: brokerage.WaitingTask, count: int) -> int:
        """Takes `count` waiting jobs of a task, or all that wait; returns their number."""
        needs, place = task.kind.needs.job, (task.task_id, task.queue)
        values = {"task_id": task.task_id, "queue": task.queue, "after": self._taken.get(place, 0), "limit": count}
        rows = self._tx.connection.execute(_WAITING, values).all()
        if rows:
            self._taken[place] = rows[-1].panda_id
            self._found += rows
            self._missing -= len(rows)
            self._cores -= len(rows) * needs.cores
            self._gpus -= len(rows) * needs.gpus_per_node
            self._waiting.serve(task.campaign, len(rows) * needs.all_cores)
        if len(rows) < count:
            self._waiting.remove(*place)
            if self._room_left is not None:
                self._room_left = self._room_before
                self._room(task, len(rows))
        return len(rows)

    def _fair_count(self, task: brokerage.WaitingTask, candidates: list[_Candidate]) -> int:
        """Returns the campaign's fair number of jobs: as many as bring it level with the next campaign."""
        others = [self._waiting.burden(other.campaign)[0] for other in candidates if other.campaign != task.campaign]
        if not others:
            return self._missing
        ahead = min(others) - self._waiting.burden(task.campaign)[0]
        return max(1, min(self._missing, ahead // task.kind.needs.job.all_cores))


_WAITING = (
    select(jobs)
    .where(
        WAITS,
        jobs.c.task_id == bindparam("task_id"),
        jobs.c.queue == bindparam("queue"),
        jobs.c.panda_id > bindparam("after"),
    )
    .order_by(jobs.c.panda_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)  # on PostgreSQL: another process is giving those out
)


def send(tx: Transaction, request: JobRequest, panda_ids: Iterable[int]) -> None:
    """Writes who has these jobs from now on."""
    values = {
        "site": request.site[:128],
        "node": request.node[:128] or None,
        "computing_element": request.computing_element[:128] or None,
        "harvester_id": request.harvester_id or None,
        "worker_id": request.worker_id or None,
        "scheduler_id": request.scheduler_id[:128] or None,
        "holder": request.pilot.name if request.pilot else None,
        "holder_node": (request.node[:128] or None) if request.only_node else None,
        "holder_key": (request.pilot.key or None) if request.pilot else None,
        "heartbeat": tx.now + request.patience,
        "patience": request.patience,
        **moved_to(tx, JobState.SENT),
    }
    for panda_id in panda_ids:
        set_columns(tx, jobs.c.panda_id, panda_id, values)


#: Sub-status of an attempt that was given back; PanDA's word for a job that goes to another place.
_SUB_STATUS = "toreassign"
_GIVEN_BACK = 51  # the kill code with which JEDI ends the jobs of a reassigned task


def give_back(
    tx: Transaction, pilot: PilotIdentity, attempts: Iterable[tuple[int, int]], harvester_id: str, worker_id: str
) -> list[int]:
    """Takes jobs back from a worker that will not run them.

    The attempt ends as closed, and the next one waits at once. Its number is higher, so that late reports of the old
    one change nothing, and so is the number of attempts that the job may have. A job of another worker, one that has
    ended or was killed, and a job whose task is ending stay as they are; the pilot still reports on the last two.

    Args:
        tx: a writing transaction.
        pilot: the pilot that gives them back.
        attempts: PandaID and attempt number of each.
        harvester_id: first part of the worker's name, as in its request for jobs.
        worker_id: second part of the worker's name.

    Returns:
        The PandaIDs of the jobs given back, by this call or by the call that it repeats.
    """
    tasks: dict[int, AnyRow] = {}
    given: dict[int, AnyRow] = {}
    known = []
    for panda_id, attempt in dict.fromkeys(attempts):
        job = job_row(tx, panda_id)
        if job is None or job.attempt_nr != attempt or not pilot.has(job):
            continue
        if (job.harvester_id or "", job.worker_id or "") != (harvester_id, worker_id):
            continue
        if job.task_id not in tasks:
            tasks[job.task_id] = task_row(tx, job.task_id)
        task = tasks[job.task_id]
        if job.status == JobState.CLOSED and job.sub_status == _SUB_STATUS:
            known.append(panda_id)
        elif job.status in AT_PILOT_STATES and job.command != "tobekilled" and task.status not in NO_RETRY:
            known.append(panda_id)
            given[panda_id] = job
    if given:
        _close(tx, list(given), f"given back by worker {worker_id} of {harvester_id}")
    for task in tasks.values():
        if its := [job for job in given.values() if job.task_id == task.task_id]:
            add_attempts(tx, task, [(job, job.max_attempt + 1) for job in its])
            change_task(tx, task, outcome=True)
    return known


def _close(tx: Transaction, panda_ids: list[int], reason: str) -> None:
    values = {
        **moved_to(tx, JobState.CLOSED),
        "sub_status": _SUB_STATUS,
        "ended": tx.now,
        "heartbeat": tx.now,
        "buffer_error_code": _GIVEN_BACK,
        "buffer_error_diag": reason[:300],
    }
    tx.connection.execute(update(jobs).where(among(jobs.c.panda_id, panda_ids)).values(values))
