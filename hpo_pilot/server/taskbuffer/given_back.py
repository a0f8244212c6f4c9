"""Jobs that a pilot gives back, for it has no time left for them: they wait again, and no attempt has been used up."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import update

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.access.ownership import PilotIdentity
from hpo_pilot.server.data.database import AnyRow, Transaction, in_slices
from hpo_pilot.server.data.tables import jobs
from hpo_pilot.server.taskbuffer.attempts import add_attempts, change_task, job_row, task_row

#: PanDA's word for an attempt whose job goes elsewhere, and how one that was given back is known later.
_SUB_STATUS = "toreassign"
_GIVEN_BACK = 51  # the kill code with which JEDI ends the jobs of a reassigned task

_AT_PILOT = frozenset({JobState.SENT, JobState.STARTING, JobState.RUNNING, JobState.TRANSFERRING, JobState.HOLDING})
_ENDING = frozenset({TaskState.ABORTING, TaskState.FINISHING})


def give_back(
    tx: Transaction, pilot: PilotIdentity, attempts: Iterable[tuple[int, int]], harvester_id: str, worker_id: str
) -> list[int]:
    """Takes jobs back from the worker that holds them, which works on them no more.

    The attempt ends as closed, and the next one waits at once. Its number is higher, so that late reports of the old
    one change nothing, and so is the number of attempts that the job may have. A job of another worker, one that has
    ended or was killed, and one whose task is to end are left as they are: on the last two the pilot is to report.

    Args:
        tx: a writing transaction.
        pilot: who gives them back.
        attempts: PandaID and attempt number of each.
        harvester_id: of the worker, as it took the jobs.
        worker_id: the same.

    Returns:
        The PandaIDs of those that were given back, now or, where the call is a repetition, before.
    """
    tasks: dict[int, AnyRow | None] = {}
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
        elif job.status in _AT_PILOT and job.command != "tobekilled" and task and task.status not in _ENDING:
            known.append(panda_id)
            given[panda_id] = job
    if given:
        _close(tx, list(given), f"given back by worker {worker_id} of {harvester_id}")
    for task in tasks.values():
        if task is not None and (its := [job for job in given.values() if job.task_id == task.task_id]):
            add_attempts(tx, task, [(job, job.max_attempt + 1) for job in its])
            change_task(tx, task, outcome=True)
    return known


def _close(tx: Transaction, panda_ids: list[int], reason: str) -> None:
    values = {
        "status": JobState.CLOSED.value,
        "sub_status": _SUB_STATUS,
        "ended": tx.now,
        "modified": tx.now,
        "state_changed": tx.now,
        "heartbeat": tx.now,
        "buffer_error_code": _GIVEN_BACK,
        "buffer_error_diag": reason[:300],
    }
    for some in in_slices(panda_ids):
        tx.connection.execute(update(jobs).where(jobs.c.panda_id.in_(some)).values(values))
