"""``job/*``: single jobs, their descriptions and their results."""

from __future__ import annotations

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.descriptions import describe_jobs, metadata_of_finished
from hpo_pilot.server.taskbuffer.job_commands import kill_job, set_debug
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint


@endpoint("job/get_description", "", USERS, Access.READ)
def get_description(tx: Transaction, call: Call, *, job_ids: list[int]) -> Envelope:
    """The descriptions of these jobs, None for those that are not."""
    return success(describe_jobs(tx, job_ids))


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
    """Kills jobs for good; data tells of each whether it was."""
    return success([kill_job(tx, call.caller, panda_id, code, kill_options) for panda_id in job_ids])


@endpoint("job/set_debug_mode", "POST", USERS, Access.WRITE)
def set_debug_mode(tx: Transaction, call: Call, *, job_id: int, mode: bool) -> Envelope:
    """Asks the job's pilot to send its standard output with each heartbeat, or no longer."""
    message = set_debug(tx, call.caller, job_id, mode)
    return success(message=message) if message == "Succeeded" else failure(message)
