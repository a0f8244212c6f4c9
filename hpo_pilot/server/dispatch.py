"""Brokerage: which jobs a pilot gets.

A job fits where its queue is the pilot's (or it names none), and where its needs are within what the pilot says it
has: memory, cores, remaining time, resource type, label, task, user. The highest priority goes first, then the lowest
PandaID. The cost does not grow with the number of jobs that are over: one partial index holds those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Select, bindparam, or_, select, update

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import change_task, task_row
from hpo_pilot.server.database import AnyRow, Transaction
from hpo_pilot.server.descriptions import HIGH_MEMORY, pilot_job
from hpo_pilot.server.known_tasks import known_task
from hpo_pilot.server.tables import WAITS, jobs, tasks

MAX_JOBS = 1000  # in one answer

#: Labels that a pilot asking for one of these also takes; from `job_complex_module.py` of panda-server 1.0.4.
_LABELS = {
    "user": ("user", "panda", "install"),
    "managed": ("managed", "test", "prod_test", "install"),
    "unified": ("managed", "test", "prod_test", "install", "user", "panda"),
}


@dataclass(frozen=True)
class JobRequest:
    """What a pilot asks for. Empty and zero mean: not said.

    Attributes:
        memory: MB that one job may need.
        cores: cores that one job may need.
        remaining_time: seconds that one job may take.
    """

    site: str
    n_jobs: int = 1
    label: str = ""
    memory: int = 0
    cores: int = 0
    remaining_time: int = 0
    resource_type: str = ""
    task_id: int = 0
    user_name: str = ""
    node: str = ""
    computing_element: str = ""
    harvester_id: str = ""
    worker_id: str = ""
    scheduler_id: str = ""


def acquire(tx: Transaction, request: JobRequest) -> list[dict[str, Any]]:
    """Hands jobs to a pilot; they are its own when the transaction commits.

    Returns:
        PanDA's job dictionaries; none: nothing fits.
    """
    found = _candidates(tx, request)
    if not found:
        return []
    tx.connection.execute(_SEND, [{"id": job.panda_id} | _sent(tx, request) for job in found])
    _note(tx, {job.task_id for job in found})
    return [_described(tx, job) for job in found]


def _candidates(tx: Transaction, request: JobRequest) -> list[AnyRow]:
    limit = max(1, min(request.n_jobs, MAX_JOBS))
    values = {
        "site": request.site,
        "pattern": f"%,{_escaped(request.site)},%",
        "labels": _LABELS.get(request.label, (request.label,)),
        "memory": request.memory,
        "cores": request.cores,
        "time": request.remaining_time,
        "task_id": request.task_id,
        "user": request.user_name,
        "limit": limit,
    }
    said = frozenset(key for key in ("memory", "cores", "time", "task_id", "user") if values[key])
    if request.label:
        said |= {"labels"}
    named = tx.connection.execute(_waiting(said, request.resource_type, False), values).all()
    free = tx.connection.execute(_waiting(said, request.resource_type, True), values).all()
    if not free:
        return list(named)
    return sorted([*named, *free], key=lambda job: (-job.priority, job.panda_id))[:limit]


@lru_cache(maxsize=256)
def _waiting(said: frozenset[str], resource_type: str, anywhere: bool) -> Select[Any]:
    """The query for jobs that wait, with only the conditions that the pilot's words call for."""
    query = select(
        jobs.c.panda_id,
        jobs.c.task_id,
        jobs.c.number,
        jobs.c.attempt_nr,
        jobs.c.priority,
        jobs.c.label,
        jobs.c.core_count,
        jobs.c.ram_mb,
        jobs.c.max_walltime,
        jobs.c.debug,
    ).where(WAITS)
    if anywhere or "user" in said:
        query = query.join(tasks, tasks.c.task_id == jobs.c.task_id)
    if anywhere:
        allowed = or_(tasks.c.included.is_(None), tasks.c.included.like(bindparam("pattern"), escape="\\"))
        not_excluded = or_(tasks.c.excluded.is_(None), tasks.c.excluded.not_like(bindparam("pattern"), escape="\\"))
        query = query.where(jobs.c.queue == "", allowed, not_excluded)
    else:
        query = query.where(jobs.c.queue == bindparam("site"))
    conditions = {
        "labels": jobs.c.label.in_(bindparam("labels", expanding=True)),
        "memory": jobs.c.ram_mb <= bindparam("memory"),
        "cores": jobs.c.core_count <= bindparam("cores"),
        "time": jobs.c.max_walltime <= bindparam("time"),
        "task_id": jobs.c.task_id == bindparam("task_id"),
        "user": tasks.c.user_name == bindparam("user"),
    }
    query = query.where(*(conditions[key] for key in sorted(said)))
    if resource_type.startswith("SCORE"):
        query = query.where(jobs.c.core_count <= 1)
    elif resource_type.startswith("MCORE"):
        query = query.where(jobs.c.core_count > 1)
    if resource_type in ("SCORE", "MCORE"):
        query = query.where(jobs.c.ram_mb <= jobs.c.core_count * HIGH_MEMORY)
    elif resource_type.endswith("_HIMEM"):
        query = query.where(jobs.c.ram_mb > jobs.c.core_count * HIGH_MEMORY)
    return query.order_by(jobs.c.priority.desc(), jobs.c.panda_id).limit(bindparam("limit"))


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


_SENT_COLUMNS = (
    "status",
    "site",
    "node",
    "computing_element",
    "harvester_id",
    "worker_id",
    "scheduler_id",
    "modified",
    "state_changed",
    "heartbeat",
)
_SEND = (
    update(jobs)
    .where(jobs.c.panda_id == bindparam("id"))
    .values({name: bindparam(f"new_{name}") for name in _SENT_COLUMNS})
)


def _sent(tx: Transaction, request: JobRequest) -> dict[str, Any]:
    return {
        "new_status": JobState.SENT.value,
        "new_site": request.site[:128],
        "new_node": request.node[:128] or None,
        "new_computing_element": request.computing_element[:128] or None,
        "new_harvester_id": request.harvester_id or None,
        "new_worker_id": request.worker_id or None,
        "new_scheduler_id": request.scheduler_id[:128] or None,
        "new_modified": tx.now,
        "new_state_changed": tx.now,
        "new_heartbeat": tx.now,
    }


def _note(tx: Transaction, task_ids: Iterable[int]) -> None:
    for task_id in task_ids:
        if (task := task_row(tx, task_id)) is not None:
            change_task(tx, task, started=task.started or tx.now)


def _described(tx: Transaction, job: AnyRow) -> dict[str, Any]:
    return pilot_job(known_task(tx, job.task_id), job)
