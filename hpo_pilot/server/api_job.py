"""``job/*``: single jobs, their descriptions and their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import select, update

from hpo_pilot.jobs import JobState
from hpo_pilot.server.attempts import end_attempt, job_row
from hpo_pilot.server.auth import Caller
from hpo_pilot.server.call import Call
from hpo_pilot.server.database import Transaction, in_slices
from hpo_pilot.server.descriptions import describe_jobs, metadata_of_finished
from hpo_pilot.server.endpoints import USERS, Access, endpoint
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.tables import jobs, tasks

_KILLED = 100  # taskBufferErrorCode of a job killed on request


@endpoint("job/get_description", "", USERS, Access.READ)
def get_description(tx: Transaction, call: Call, *, job_ids: list[int]) -> Envelope:
    """The descriptions of these jobs, None for those that are not."""
    return success(describe_jobs(tx, job_ids))


@endpoint("job/get_description_incl_archive", "", USERS, Access.READ)
def get_description_incl_archive(tx: Transaction, call: Call, *, job_ids: list[int]) -> Envelope:
    """The same: this server has no archive, its jobs stay where they are."""
    return success(describe_jobs(tx, job_ids))


@endpoint("job/get_status", "GET", USERS, Access.READ)
def get_status(tx: Transaction, call: Call, *, job_ids: list[int], timeout: int = 60) -> Envelope:
    """State and command of each job."""
    found = _columns(tx, job_ids)
    unknown = ("unknown", "tobekilled")
    return success(
        [dict(zip(("status", "command"), found.get(panda_id, unknown), strict=True)) for panda_id in job_ids]
    )


def _columns(tx: Transaction, job_ids: Iterable[int]) -> dict[int, tuple[str, str | None]]:
    query = select(jobs.c.panda_id, jobs.c.status, jobs.c.command)
    return {
        row.panda_id: (row.status, row.command)
        for some in in_slices(job_ids)
        for row in tx.connection.execute(query.where(jobs.c.panda_id.in_(some)))
    }


@endpoint("job/get_metadata_for_analysis_jobs", "GET", USERS, Access.READ)
def get_metadata_for_analysis_jobs(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """The job reports of the task's finished jobs, by PandaID."""
    found = metadata_of_finished(tx, task_id)
    return success(found) if found else success({}, "No metadata found")


@endpoint("job/kill", "POST", USERS, Access.WRITE)
def kill(
    tx: Transaction,
    call: Call,
    *,
    job_ids: list[int],
    code: int | None = None,
    use_email_as_id: bool = False,
    kill_options: list[str] = [],  # noqa: B006  # declares the default; nobody changes it
) -> Envelope:
    """Kills jobs for good: one that waits at once, one at a pilot through the answer to its next heartbeat.

    The kill codes tell a real server's daemons apart; here every kill is the owner's.
    """
    return success([_kill(tx, call.caller, panda_id) for panda_id in job_ids])


def _kill(tx: Transaction, caller: Caller, panda_id: int) -> bool:
    job = job_row(tx, panda_id)
    if job is None or JobState(job.status).is_over or not _may_change(tx, caller, job):
        return False
    reason = f"killed by {caller.name}"
    if job.status in (JobState.DEFINED, JobState.ACTIVATED):
        end_attempt(tx, job, JobState.CANCELLED, buffer_error_code=_KILLED, buffer_error_diag=reason)
    else:
        tx.connection.execute(
            update(jobs).where(jobs.c.panda_id == panda_id).values(command="tobekilled", buffer_error_diag=reason)
        )
    return True


def _may_change(tx: Transaction, caller: Caller, job: Any) -> bool:
    owner = tx.connection.scalar(select(tasks.c.user_name).where(tasks.c.task_id == job.task_id))
    return caller.is_operator or owner == caller.name


@endpoint("job/set_debug_mode", "POST", USERS, Access.WRITE)
def set_debug_mode(tx: Transaction, call: Call, *, job_id: int, mode: bool) -> Envelope:
    """Asks the job's pilot to send its standard output with each heartbeat, or no longer."""
    job = job_row(tx, job_id)
    if job is None:
        return failure(f"PandaID={job_id} not found in active DB")
    if not _may_change(tx, call.caller, job):
        return failure("Permission denied: not the owner")
    if JobState(job.status).is_over:
        return failure(f"Cannot set debugMode since the job status is {job.status}")
    tx.connection.execute(update(jobs).where(jobs.c.panda_id == job_id).values(debug=mode))
    return success(message="Succeeded")
