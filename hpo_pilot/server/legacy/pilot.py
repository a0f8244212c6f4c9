"""The legacy calls of pilots: getJob, updateJob and their kin; what every released Pilot 3, 3.11 too, speaks.

After `pandaserver/jobdispatcher/JobDispatcher.py` of panda-server 0.8.1. Underneath is what the new API uses.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from hpo_pilot.server.access.ownership import NotThePilotsJob
from hpo_pilot.server.data.database import Transaction, in_slices
from hpo_pilot.server.data.tables import jobs
from hpo_pilot.server.legacy.arguments import LegacyArgumentError, document, job_report, job_request, text
from hpo_pilot.server.legacy.replies import JSON, Reply, StatusCode, coded, listed, values
from hpo_pilot.server.legacy.table import Ask, Refusal, legacy, packed
from hpo_pilot.server.taskbuffer.job_reports import record_report, reported_state
from hpo_pilot.server.taskbuffer.lost_jobs import WORKER_STATES, update_worker
from hpo_pilot.server.taskbuffer.worker_reports import note_gpu, note_node
from hpo_pilot.server.web.acquisition import UnknownQueue, acquire_jobs, cores_said
from hpo_pilot.server.web.endpoints import Access

log = logging.getLogger(__name__)

_OURS = "hpo-pilot"  # processingType of tasks that hpo-pilot submits
_CONTAINER = frozenset({"container_name", "containerOptions", "preprocess", "postprocess"})


@legacy("isAlive", Access.NOTHING, Refusal.NEVER)
def is_alive(ask: Ask) -> Reply:
    """Answers."""
    return Reply("alive=yes")


@legacy("getJob", Access.WAIT)
async def get_job(ask: Ask) -> Reply:
    """Hands a job to a pilot, or several where it says how many."""
    try:
        found = await acquire_jobs(ask.call, job_request(ask.given, cores_said(ask.call)))
    except UnknownQueue as error:
        return coded(StatusCode.NO_JOBS, str(error), as_json=ask.as_json)
    if not found:
        return coded(StatusCode.NO_JOBS, "no jobs in PanDA" if ask.as_json else None, as_json=ask.as_json)
    answers = [{"StatusCode": int(StatusCode.SUCCESS), **_for_pilot3(job)} for job in found]
    if ask.given.get("nJobs") is None:
        return values(answers[0], as_json=ask.as_json)
    return coded(StatusCode.SUCCESS, as_json=ask.as_json, jobs=answers if ask.as_json else packed(answers))


def _for_pilot3(job: Mapping[str, Any]) -> dict[str, Any]:
    """A job of ours without what it says of its container: the transformation starts the image that the sandbox names.

    From 3.10.3 on a Pilot 3 fails a job that names an image (error 1384, `pilot/control/job.py`) unless its queue names
    a container program for pilots; then its generic plugin starts the image by means of CVMFS. It also runs the steps
    before and after the payload (`pilot/user/generic/common.py`), whose work the transformation does itself.
    """
    left_out = _CONTAINER if job["processingType"] == _OURS else frozenset[str]()
    return {name: value for name, value in job.items() if name not in left_out}


@legacy("updateJob", Access.WRITE)
def update_job(tx: Transaction, ask: Ask) -> Reply:
    """A pilot's report on one job: a heartbeat, or the final one."""
    return _update(tx, ask, ask.given)


def _update(tx: Transaction, ask: Ask, given: Mapping[str, Any]) -> Reply:
    as_json = ask.as_json
    if text(given, "jobId") == "NULL":  # a pilot that aborts before it has a job
        return coded(StatusCode.SUCCESS, as_json=as_json)
    report = job_report(given)
    if (status := reported_state(report["job_status"])) is None:
        return coded(StatusCode.SUCCESS, as_json=as_json)
    try:
        command = record_report(tx, status, report, ask.call.pilot)
    except NotThePilotsJob as error:
        log.warning("a report by %s is refused: %s", ask.call.caller.name, error)
        return coded(StatusCode.PERMISSION, str(error), as_json=as_json, command="tobekilled")
    return coded(StatusCode.SUCCESS, as_json=as_json, command=command or "NULL")


@legacy("updateJobsInBulk", Access.WRITE, Refusal.LIST)
def update_jobs_in_bulk(tx: Transaction, ask: Ask) -> Reply:
    """Reports on many jobs, all or none; the list holds what `update_job` would have answered to each."""
    reports = document(ask.given, "jobList")
    try:
        if not isinstance(reports, list) or not all(isinstance(report, dict) for report in reports):
            raise LegacyArgumentError("jobList must be a list of objects")
        for report in reports:
            if text(report, "jobId") != "NULL":
                job_report(report)
    except LegacyArgumentError as error:
        return listed(False, f"updateJobsInBulk {ask.given.get('harvester_id')} failed with {error}")
    answers = [_update(tx, ask, report).text for report in reports]
    return listed(True, [{"type": "json", "content": answer} for answer in answers] if ask.as_json else answers)


@legacy("getStatus", Access.READ)
def get_status(tx: Transaction, ask: Ask) -> Reply:
    """State and attempt of jobs whose ids are separated by blanks; always as a form, whatever the caller accepts."""
    names = text(ask.given, "ids").split()
    found = _states(tx, names)
    status = "+".join(found[name][0] if name in found else "notfound" for name in names)
    attempts = "+".join(str(found[name][1]) if name in found else "0" for name in names)
    return coded(StatusCode.SUCCESS, as_json=False, status=status, attemptNr=attempts)


@legacy("checkJobStatus", Access.READ)
def check_job_status(tx: Transaction, ask: Ask) -> Reply:
    """State and command of jobs whose ids are separated by commas."""
    names = text(ask.given, "ids").split(",")
    found = _states(tx, names)
    unknown = ("unknown", 0, "tobekilled")
    answers = [{"status": state, "command": command} for state, _, command in (found.get(n, unknown) for n in names)]
    return coded(StatusCode.SUCCESS, as_json=True, data=answers)


def _states(tx: Transaction, names: list[str]) -> dict[str, tuple[str, int, str | None]]:
    ids = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 19]
    query = select(jobs.c.panda_id, jobs.c.status, jobs.c.attempt_nr, jobs.c.command)
    return {
        str(row.panda_id): (row.status, row.attempt_nr, row.command)
        for some in in_slices(ids)
        for row in tx.connection.execute(query.where(jobs.c.panda_id.in_(some)))
    }


@legacy("updateWorkerPilotStatus", Access.WRITE, Refusal.TEXT)
def update_worker_pilot_status(tx: Transaction, ask: Ask) -> Reply:
    """Notes that a worker started or ended; the jobs still at one that ended are lost at once."""
    worker_id, harvester_id = text(ask.given, "workerID"), text(ask.given, "harvesterID")
    status, node = text(ask.given, "status"), ask.given.get("node_id")
    if status not in WORKER_STATES:
        return Reply(f"Invalid worker state. The worker state has to be in {WORKER_STATES}")
    node_id = str(node)[:128] if node else None
    update_worker(tx, ask.call.pilot, harvester_id[:128], worker_id[:128], status, node_id)
    return coded(StatusCode.SUCCESS, as_json=ask.as_json)


_NODE = {
    "n_logical_cpus",
    "n_sockets",
    "cores_per_socket",
    "threads_per_core",
    "cpu_architecture",
    "cpu_architecture_level",
    "clock_speed",
    "total_memory",
    "total_local_disk",
    "panda_queue",
}
_GPU = {"count", "vram", "architecture", "framework", "framework_version", "driver_version"}


@legacy("updateWorkerNode", Access.WRITE, Refusal.TEXT)
def update_worker_node(tx: Transaction, ask: Ask) -> Reply:
    """Keeps what a pilot says of the machine it runs on."""
    given = ask.given
    description = {name: given[name] for name in sorted(_NODE & given.keys())}
    note_node(tx, text(given, "site"), text(given, "host_name"), text(given, "cpu_model"), description)
    return coded(StatusCode.SUCCESS, as_json=ask.as_json)


@legacy("updateWorkerNodeGpu", Access.WRITE, Refusal.TEXT)
def update_worker_node_gpu(tx: Transaction, ask: Ask) -> Reply:
    """Keeps what a pilot says of the GPUs of its machine."""
    given = ask.given
    description = {name: given[name] for name in sorted(_GPU & given.keys())}
    site, host_name = text(given, "site"), text(given, "host_name")
    note_gpu(tx, site, host_name, text(given, "vendor"), text(given, "model"), description)
    return coded(StatusCode.SUCCESS, as_json=ask.as_json)


# What this server does not have.


@legacy("getKeyPair", Access.NOTHING)
def get_key_pair(ask: Ask) -> Reply:
    """Refused: there are no keys of object stores here."""
    names = f"{text(ask.given, 'publicKeyName')}/{text(ask.given, 'privateKeyName')}"
    return coded(StatusCode.MISSING_KEY, f"getKeyPair {names} failed: the server keeps no keys", as_json=ask.as_json)


@legacy("getProxy", Access.NOTHING)
def get_proxy(ask: Ask) -> Reply:
    """Refused: there are no grid proxies here."""
    name = ask.given.get("dn") or ask.call.caller.name
    return coded(StatusCode.PROXY_ERROR, f"proxy not found for {name}", as_json=True)


@legacy("get_access_token", Access.NOTHING)
def get_access_token(ask: Ask) -> Reply:
    """Refused: there are no access tokens of others here."""
    return coded(StatusCode.PROXY_ERROR, f"token not found for {text(ask.given, 'client_name')}", as_json=True)


@legacy("get_token_key", Access.NOTHING)
def get_token_key(ask: Ask) -> Reply:
    """Refused: see `get_access_token`."""
    dialog = f"token key is missing for '{text(ask.given, 'client_name')}'"
    return coded(StatusCode.MISSING_KEY, dialog, as_json=ask.as_json)


@legacy("get_user_secrets", Access.NOTHING, Refusal.LIST)
def get_user_secrets(ask: Ask) -> Reply:
    """None for pilots: here users read their own."""
    return listed(True, None)


_NO_EVENTS = "the embedded PanDA server has no event service"


@legacy("getEventRanges", Access.NOTHING, Refusal.TEXT)
@legacy("updateEventRange", Access.NOTHING, Refusal.TEXT)
@legacy("updateEventRanges", Access.NOTHING, Refusal.TEXT)
@legacy("checkEventsAvailability", Access.NOTHING, Refusal.TEXT)
def event_service(ask: Ask) -> Reply:
    """Refused."""
    return coded(StatusCode.FAILED, _NO_EVENTS, as_json=ask.as_json)


@legacy("get_events_status", Access.NOTHING, Refusal.TEXT)
def get_events_status(ask: Ask) -> Reply:
    """No events, hence no states of events."""
    return Reply("{}", JSON if ask.as_json else "text/plain")
