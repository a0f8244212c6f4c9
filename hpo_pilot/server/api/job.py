"""``job/*``: single jobs, their descriptions and their results."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from hpo_pilot.server.data.database import Transaction, in_slices
from hpo_pilot.server.data.tables import jobs
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.descriptions import describe_jobs, metadata_of_finished
from hpo_pilot.server.taskbuffer.direct_jobs import JobsRefusedError, submit_jobs
from hpo_pilot.server.taskbuffer.job_commands import kill_job, set_command, set_debug
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.offline_script import offline_script
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint


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


@endpoint("job/generate_offline_execution_script", "GET", USERS, Access.READ)
def generate_offline_execution_script(tx: Transaction, call: Call, *, job_id: int, days: int | None = None) -> str:
    """A script that runs the job by hand, as plain text; it begins with ``ERROR:`` where there is no such job.

    Nothing is archived here, so `days` has no effect.
    """
    (job,) = describe_jobs(tx, [job_id])
    if job is None:
        return f"ERROR: Cannot get PandaID={job_id} in DB "
    return offline_script(known_task(tx, job["jediTaskID"]), job, str(call.request.base_url).rstrip("/"))


@endpoint("job/submit", "POST", USERS, Access.WRITE)
def submit(tx: Transaction, call: Call, *, jobs: str) -> Envelope:
    """Registers jobs without a task of theirs, all or none; data holds PandaID, job definition and job set of each."""
    try:
        with tx.attempt():
            return success(submit_jobs(tx, call.caller, jobs, call.server.queues))
    except JobsRefusedError as error:
        return failure(str(error))


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
    """Kills jobs for good; data tells of each whether it was."""
    return success([kill_job(tx, call.caller, panda_id, code, kill_options) for panda_id in job_ids])


@endpoint("job/reassign", "POST", USERS, Access.NOTHING)
def reassign(call: Call, *, job_ids: list[int]) -> Envelope:
    """Always a success, as on a real server; brokerage here looks anew whenever a pilot asks."""
    return success()


@endpoint("job/set_command", "POST", USERS, Access.WRITE, production=True)
def command(tx: Transaction, call: Call, *, job_id: int, command: str) -> Envelope:
    """Leaves a command for the job's pilot."""
    done, message = set_command(tx, job_id, command)
    return success(message=message) if done else failure(message)


@endpoint("job/set_debug_mode", "POST", USERS, Access.WRITE)
def set_debug_mode(tx: Transaction, call: Call, *, job_id: int, mode: bool) -> Envelope:
    """Asks the job's pilot to send its standard output with each heartbeat, or no longer."""
    message = set_debug(tx, call.caller, job_id, mode)
    return success(message=message) if message == "Succeeded" else failure(message)
