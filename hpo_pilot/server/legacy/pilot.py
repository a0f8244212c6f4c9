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
from hpo_pilot.server.legacy.arguments import job_report, job_request, text
from hpo_pilot.server.legacy.replies import Reply, StatusCode, coded, values
from hpo_pilot.server.legacy.table import Ask, Refusal, legacy
from hpo_pilot.server.taskbuffer.job_reports import record_report, reported_state
from hpo_pilot.server.taskbuffer.lost_jobs import WORKER_STATES, update_worker
from hpo_pilot.server.taskbuffer.resource_types import RESOURCE_TYPES
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
    """Hands a job to a pilot."""
    try:
        found = await acquire_jobs(ask.call, job_request(ask.given, cores_said(ask.call)))
    except UnknownQueue as error:
        return coded(StatusCode.NO_JOBS, str(error), as_json=ask.as_json)
    if not found:
        return coded(StatusCode.NO_JOBS, "no jobs in PanDA" if ask.as_json else None, as_json=ask.as_json)
    return values({"StatusCode": int(StatusCode.SUCCESS), **_for_pilot3(found[0])}, as_json=ask.as_json)


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
    given, as_json = ask.given, ask.as_json
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


@legacy("getStatus", Access.READ)
def get_status(tx: Transaction, ask: Ask) -> Reply:
    """State and attempt of jobs whose ids are separated by blanks; always as a form, whatever the caller accepts."""
    names = text(ask.given, "ids").split()
    ids = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 19]
    query = select(jobs.c.panda_id, jobs.c.status, jobs.c.attempt_nr)
    found = {
        str(row.panda_id): row
        for some in in_slices(ids)
        for row in tx.connection.execute(query.where(jobs.c.panda_id.in_(some)))
    }
    status = "+".join(found[name].status if name in found else "notfound" for name in names)
    attempts = "+".join(str(found[name].attempt_nr) if name in found else "0" for name in names)
    return coded(StatusCode.SUCCESS, as_json=False, status=status, attemptNr=attempts)


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


@legacy("getResourceTypes", Access.NOTHING)
def get_resource_types(ask: Ask) -> Reply:
    """What the names of resource types mean."""
    return coded(StatusCode.SUCCESS, as_json=ask.as_json, Returns=0, ResourceTypes=RESOURCE_TYPES)


@legacy("get_access_token", Access.NOTHING)
def get_access_token(ask: Ask) -> Reply:
    """Refused: there are no access tokens of others here."""
    return coded(StatusCode.PROXY_ERROR, f"token not found for {text(ask.given, 'client_name')}", as_json=True)
