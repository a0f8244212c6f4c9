"""Commands to single jobs: kill, debug mode.

After `killJob` and `setDebugMode` of panda-server 1.0.4. Of the kill codes, which tell its
daemons apart, one matters here: an operator's 99 ends a job at once, whatever its pilot does.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import AnyRow, Transaction, set_columns
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.taskbuffer.attempts import end_attempt, job_row

_KILLED = 100  # taskBufferErrorCode of a job killed on request
_FORCE = 99
_CHANGEABLE = ("defined", "activated", "running", "sent", "starting", "assigned")


def may_change(tx: Transaction, caller: Caller, job: AnyRow) -> bool:
    """True for the owner of the job's task and for operators."""
    owner = tx.connection.scalar(select(tasks.c.user_name).where(tasks.c.task_id == job.task_id))
    return caller.is_operator or owner == caller.name


def kill_job(
    tx: Transaction, caller: Caller, panda_id: int, code: int | None = None, options: Sequence[str] = ()
) -> bool:
    """Kills a job for good: one that waits at once, one at a pilot through the answer to its next heartbeat.

    Args:
        tx: a writing transaction.
        caller: who asks.
        panda_id: the job.
        code: why, as PanDA's numbers have it.
        options: "jobSubStatus=xyz" sets the job's sub-status.

    Returns:
        False: there is no such job, it is over, or it is not the caller's.
    """
    job = job_row(tx, panda_id)
    if job is None or JobState(job.status).is_over or not may_change(tx, caller, job):
        return False
    values: dict[str, str | int] = {"buffer_error_diag": f"killed by {caller.name}"}
    for option in options:
        if option.startswith("jobSubStatus="):
            values["sub_status"] = option.removeprefix("jobSubStatus=")[:80]
    waits = job.status in (JobState.DEFINED, JobState.ACTIVATED)
    if waits or (code == _FORCE and caller.is_operator):
        end_attempt(tx, job, JobState.CANCELLED, buffer_error_code=_KILLED, **values)
    else:
        set_columns(tx, jobs.c.panda_id, panda_id, {"command": "tobekilled", **values})
    return True


def set_debug(tx: Transaction, caller: Caller, panda_id: int, on: bool) -> str:
    """Asks a job's pilot to send its standard output with each heartbeat, or no longer.

    Returns:
        "Succeeded", or why not.
    """
    job = job_row(tx, panda_id)
    if job is None:
        return f"PandaID={panda_id} not found in active DB"
    if job.status not in _CHANGEABLE:
        return f"Cannot set debugMode since the job status is {job.status} which is not in one of {list(_CHANGEABLE)}"
    if not may_change(tx, caller, job):
        return "Permission denied. Not the owner or production manager"
    set_columns(tx, jobs.c.panda_id, panda_id, {"debug": on})
    return "Succeeded"
