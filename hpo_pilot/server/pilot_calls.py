"""Calls of pilots: taking jobs and reporting on them, by the new API, and by the API of released Pilot 3s."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from hpo_pilot.databases import among
from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import AllocationRequest
from hpo_pilot.jobs import ASKED_QUEUE
from hpo_pilot.server.attempts import (
    REPORT_FIELDS,
    WORKER_STATES,
    NotThePilotsJob,
    Report,
    reported_state,
    update_worker,
    write_reports,
)
from hpo_pilot.server.brokerage import GpuOffer, HardwareError, offered_gpus
from hpo_pilot.server.calls import (
    MAX_WAIT,
    NOBODY,
    PILOTS,
    TABLE,
    Access,
    ArgumentError,
    Call,
    Parameter,
    carry_out,
    endpoint,
    guarded,
    json_object,
    pairs,
    read_body,
    unpacked,
)
from hpo_pilot.server.database import LARGEST_ID, Transaction, jobs
from hpo_pilot.server.dispatch import MAX_JOBS, JobRequest, acquire
from hpo_pilot.server.points import CAPABILITY_KEY
from hpo_pilot.server.replies import Envelope, dump, failure, success
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.task_parameters import RESOURCE_TYPES
from hpo_pilot.server.tokens import TokenRefused

log = logging.getLogger(__name__)

#: Seconds that a pilot waits for a job; only this server reads it.
WAIT_HEADER = "X-HPO-Pilot-Wait"
#: Free room of a pilot in a batch allocation (`JobRequest.to_text`). Only such a pilot gets jobs of several nodes.
OPENINGS_HEADER = "X-HPO-Pilot-Openings"
#: Cores that a pilot has for the jobs of one answer together; PanDA's own arguments cannot state it.
CORES_HEADER = "X-HPO-Pilot-Cores"
#: Name of the pilot's site profile.
SITE_HEADER = "X-HPO-Pilot-Site"
#: Tasks of searches whose jobs the pilot cannot start for now, and the reason: ``{"tasks": […], "why": "…"}``.
AVOIDS_HEADER = "X-HPO-Pilot-Avoids"
_MOST_AVOIDED, _LONGEST_WHY = 100, 500


class StatusCode(IntEnum):
    """The result of a call, as panda-server's `ErrorCode.py` has it."""

    SUCCESS = 0
    NO_JOBS = 20  #: there is no job for this pilot
    INVALID = 50  #: an argument is not valid
    ROLE = 60  #: the caller is no pilot
    PERMISSION = 70  #: the job is another pilot's
    PROXY_ERROR = 90  #: there is no such proxy or token


class UnknownQueue(Exception):
    """The pilot names a queue that does not exist; the message says so."""


def _cores(call: Call) -> int:
    """Returns the cores that the pilot has for the requested jobs together; 0: not stated."""
    cores = call.header(CORES_HEADER)
    return int(cores) if cores.isdecimal() and len(cores) < 10 else 0


def _allocation(call: Call) -> AllocationRequest | None:
    """Returns the free room of the pilot's allocation; None: it has no allocation.

    Raises:
        InputError: the header is not valid.
    """
    text = call.header(OPENINGS_HEADER)
    return AllocationRequest.from_text(text) if text else None


def _avoids(call: Call) -> tuple[tuple[int, ...], str]:
    """Returns the tasks that the pilot avoids, and why.

    Raises:
        InputError: the header is not valid.
    """
    text = call.header(AVOIDS_HEADER)
    if not text:
        return (), ""
    try:
        said = json.loads(text)
        avoided = tuple(int(task) for task in said["tasks"][:_MOST_AVOIDED])
        if any(not 0 <= task <= LARGEST_ID for task in avoided):
            raise ValueError("a task's id is out of range")
        return avoided, str(said["why"])[:_LONGEST_WHY]
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{AVOIDS_HEADER} is not valid: {error!r}") from error


async def _wait_for_jobs(call: Call, request: JobRequest) -> list[dict[str, Any]]:
    """Gives jobs to a pilot; if its header asks for it, the answer waits for a job.

    Returns:
        PanDA's job dictionaries; none: nothing fits.

    Raises:
        UnknownQueue: there is no such queue.
    """
    queue = call.server.queues.find(request.site)
    if queue is None or request.site.startswith(ASKED_QUEUE):
        raise UnknownQueue(call.server.queues.unknown((request.site,)) or f"no queue {request.site} for pilots")
    request = replace(request, queue=queue, pilot=call.pilot)
    call.server.known_pilots.asked(request, call.header("user-agent"))

    def look(tx: Transaction, waited: float) -> list[dict[str, Any]]:
        return acquire(tx, replace(request, waited=waited))

    return await wait_at(call, request.site, call.seconds(WAIT_HEADER, MAX_WAIT), look, rows=True)


async def wait_at(
    call: Call,
    queue: str,
    seconds: float,
    look: Callable[[Transaction, float], list[dict[str, Any]]],
    *,
    rows: bool = False,
) -> list[dict[str, Any]]:
    """Looks for jobs until some are found, as often as jobs start to wait at a queue.

    Args:
        call: the call that waits.
        queue: the queue.
        seconds: the longest time; the wait takes at least half of it.
        look: takes jobs, given the seconds for which the call has waited.
        rows: whether it locks the rows that it changes, and finds waiting jobs only.

    Returns:
        The jobs; none: there were none in this time.
    """
    begun = time.monotonic()
    # Pilots that came together, as after a restart, must not all ask again in the same moment.
    seconds *= random.uniform(0.5, 1.0)  # noqa: S311 - no secret
    pilots, database = call.server.pilots, call.server.database
    waiter = pilots.enter(queue)
    try:
        while True:
            called = pilots.looks(waiter)
            waited = time.monotonic() - begun
            if not rows or database.waiting.may_have(queue):
                found, others = await database.write(
                    lambda tx: (look(tx, waited), tx.waiting.any_at(queue)),  # noqa: B023 - it is awaited here
                    rows=rows,
                    durable=False,
                )
                if found:
                    call.server.watch.job_sent()
                    return found
                if called and others:
                    pilots.found_nothing(waiter)
            if not await pilots.wait(waiter, begun + seconds - time.monotonic()):
                return []
            # If the pilot has closed the connection, a job given to it would stay silent until it counts as lost.
            if await call.request.is_disconnected():
                return []
    finally:
        pilots.leave(waiter)


@endpoint("pilot/acquire_jobs", "POST", PILOTS, Access.WAIT)
async def acquire_jobs(
    call: Call,
    *,
    site_name: str,
    timeout: int = 60,
    memory: int | None = None,
    disk_space: int | None = None,
    prod_source_label: str | None = None,
    node: str | None = None,
    computing_element: str | None = None,
    prod_user_id: str | None = None,
    get_proxy_key: str | bool | None = None,
    task_id: int | None = None,
    n_jobs: int = 1,
    background: bool | None = None,
    resource_type: str | None = None,
    harvester_id: str | None = None,
    worker_id: int | str | None = None,
    scheduler_id: str | None = None,
    job_type: str | None = None,
    via_topic: bool | None = None,
    remaining_time: int | float | None = None,
    target_architecture: dict[str, Any] | str | None = None,
) -> Envelope:
    """Gives jobs to a pilot; with `WAIT_HEADER` the answer waits for a job.

    A pilot in a batch allocation states its free room with `OPENINGS_HEADER`.
    """
    try:
        gpus, allocation, (avoids, why) = _gpus(target_architecture), _allocation(call), _avoids(call)
    except InputError as error:
        return failure(str(error))
    request = JobRequest(
        site=site_name,
        n_jobs=n_jobs,
        label=prod_source_label or "",
        memory=max(0, memory or 0),
        cores=_cores(call),
        disk_mb=max(0, disk_space or 0),
        gpus=gpus,
        remaining_time=max(0, int(remaining_time or 0)),
        resource_type=resource_type or "",
        task_id=task_id or 0,
        node=node or "",
        computing_element=computing_element or "",
        harvester_id=(harvester_id or scheduler_id or "")[:128],
        worker_id="" if worker_id is None else str(worker_id)[:128],
        scheduler_id=scheduler_id or "",
        allocation=allocation,
        profile=call.header(SITE_HEADER)[:128],
        avoids=avoids,
        why=why,
    )
    try:
        found = await _wait_for_jobs(call, request)
    except UnknownQueue as error:
        return failure(str(error))
    if not found:
        return failure("No jobs in PanDA")
    return success({"StatusCode": StatusCode.SUCCESS, "jobs": [_handed_out(call, job) for job in found]})


def _handed_out(call: Call, job: Mapping[str, Any]) -> dict[str, Any]:
    return {"StatusCode": StatusCode.SUCCESS, **job, CAPABILITY_KEY: call.server.capabilities.of(job["PandaID"])}


def _gpus(target_architecture: dict[str, Any] | str | None) -> tuple[GpuOffer, ...] | None:
    if not target_architecture:
        return None
    if isinstance(target_architecture, str):
        try:
            target_architecture = json.loads(target_architecture)
        except (ValueError, RecursionError) as error:
            raise HardwareError(f"failed to parse target_architecture with {error}") from error
    if not isinstance(target_architecture, dict):
        raise HardwareError("target_architecture must be a JSON object")
    return offered_gpus(target_architecture)


@endpoint(
    "pilot/update_job",
    "POST",
    PILOTS,
    Access.WAIT,
    more=[Parameter(one.name, (one.kind,), None, required=False, default=None) for one in REPORT_FIELDS],
)
async def update_one(
    call: Call,
    *,
    job_id: int,
    job_status: str,
    attempt_nr: int | None = None,
    site_name: str | None = None,
    corrupted_files: str | None = None,
    timeout: int = 60,
    **more: Any,
) -> Envelope:
    """Records a pilot's report on one job: a heartbeat, or the final report; `more` has `attempts.REPORT_FIELDS`."""
    report = _report_of(call, more | {"job_id": job_id, "job_status": job_status, "attempt_nr": attempt_nr})
    if not isinstance(report, Report):
        return report
    try:
        return _answer_to(call, await call.server.reports.record(report))
    except NotThePilotsJob as error:
        return _answer_to(call, error)


def _report_of(call: Call, arguments: Mapping[str, Any]) -> Report | Envelope:
    """Returns the report with these arguments of ``pilot/update_job``, or its refusal."""
    if (status := reported_state(arguments["job_status"])) is None:
        return failure(f"Invalid job status: {arguments['job_status']}", {"StatusCode": StatusCode.INVALID})
    return Report(status, arguments, call.pilot)


def _answer_to(call: Call, recorded: str | NotThePilotsJob | None) -> Envelope:
    if isinstance(recorded, NotThePilotsJob):
        log.warning("a report by %s is refused: %s", call.caller.name, recorded)
        return failure(str(recorded), {"StatusCode": StatusCode.PERMISSION, "command": "tobekilled"})
    return success({"StatusCode": StatusCode.SUCCESS, "command": recorded})


@endpoint("pilot/update_jobs_bulk", "POST", PILOTS, Access.WAIT)
async def update_many(call: Call, *, job_list: list[dict[str, Any]], harvester_id: str | None = None) -> Envelope:
    """Records reports on several jobs in one transaction.

    Args:
        call: the call.
        job_list: the arguments of ``pilot/update_job`` for each.
        harvester_id: not used.

    Returns:
        data: an envelope of ``pilot/update_job`` for each, in their order. Without ``job_id`` or ``job_status``, or
        after a defect, nothing is recorded, and data is empty.
    """
    if len(job_list) > MAX_JOBS:
        return failure(f"job_list must have at most {MAX_JOBS} jobs", [])
    if missing := [name for job in job_list for name in ("job_id", "job_status") if name not in job]:
        return failure(f"failed with KeyError {missing[0]!r}", [])
    try:
        checked = [_checked_report(call, job) for job in job_list]
        reports = [report for report in checked if isinstance(report, Report)]
        recorded = iter(await write_reports(call.server.database, reports))
        return success([_answer_to(call, next(recorded)) if isinstance(one, Report) else one for one in checked])
    except DBAPIError:
        raise
    except Exception as error:
        log.exception("pilot/update_jobs_bulk failed")
        return failure(f"failed with {type(error).__name__} {error}", [])


def _checked_report(call: Call, job: dict[str, Any]) -> Report | Envelope:
    if "meta_data" in job:
        job = job | {"meta_data": str(job["meta_data"])}
    try:
        return _report_of(call, TABLE["pilot/update_job"].check(job, from_query=False))
    except ArgumentError as error:
        return failure(str(error))


@endpoint("pilot/update_worker_status", "POST", PILOTS, Access.WRITE)
def update_worker_status(
    tx: Transaction,
    call: Call,
    *,
    worker_id: int | str,
    harvester_id: str,
    status: str,
    timeout: int = 60,
    node_id: str | None = None,
) -> Envelope:
    """Records that a worker started or ended; the jobs that an ended worker still has are lost at once."""
    if status not in WORKER_STATES:
        return failure(f"Invalid worker state. The worker state has to be in {WORKER_STATES}")
    update_worker(tx, call.pilot, harvester_id, str(worker_id), status, node_id or "")
    return success()


@endpoint("pilot/update_worker_node", "POST", PILOTS, Access.NOTHING, raw_body=True)
@endpoint("pilot/update_worker_node_gpu", "POST", PILOTS, Access.NOTHING, raw_body=True)
def update_worker_node(call: Call) -> Envelope:
    """Accepts a Pilot 3's description of its machine or GPUs, and keeps nothing of it."""
    return success()


# ``/server/panda``: the calls of every released Pilot 3, up to 3.11. Formats and codes are those of panda-server 0.8.1
# (`pandaserver/jobdispatcher/{JobDispatcher,Protocol,ErrorCode}.py`): flat values, as JSON for callers that accept it,
# else as a form. The work is done by the same functions as for the new API.

_GZIP = b"\x1f\x8b"
#: A released Pilot 3 reports every half hour unless its site says otherwise: four reports may be missed.
_PATIENCE = 2 * 3600.0
_OURS = "hpo-pilot"  # processingType of tasks that hpo-pilot submits
_CONTAINER = frozenset({"container_name", "containerOptions", "preprocess", "postprocess"})


class LegacyArgumentError(Exception):
    """An argument is missing or not valid; the message names it."""


@dataclass(frozen=True)
class LegacyRequest:
    """One legacy call.

    Attributes:
        given: the arguments as received; unknown arguments are ignored.
        as_json: whether the caller accepts JSON.
    """

    call: Call
    given: Mapping[str, Any]
    as_json: bool

    def required(self, name: str) -> str:
        """Returns an argument, which must be there (else LegacyArgumentError)."""
        if name not in self.given:
            raise LegacyArgumentError(f"missing a required argument: '{name}'")
        return str(self.given[name])

    def coded(self, code: StatusCode, dialog: str | None = None, **more: Any) -> Response:
        """Returns an answer with a status code."""
        return self.values({"StatusCode": code, **({} if dialog is None else {"errorDialog": dialog}), **more})

    def values(self, content: Mapping[str, Any]) -> Response:
        """Returns an answer of named values."""
        if self.as_json:
            return Response(dump(content), media_type="application/json")
        return PlainTextResponse(urlencode(content))


def _number(value: Any, kind: type[int] | type[float]) -> float | None:
    """Returns a number; None: the value is missing, not a number, or too large for the database."""
    try:
        number = kind(str(value))
    except ValueError:
        return None
    return number if kind is float or abs(number) <= LARGEST_ID else None


def _amount(given: Mapping[str, Any], name: str) -> int:
    """Returns a size or time; 0: it is missing, not a number, negative or too large."""
    number = _number(given.get(name), float)
    return int(number) if number is not None and 0 < number < 2**31 else 0


def job_request(request: LegacyRequest, cores: int) -> JobRequest:
    """Returns the request of a pilot's ``getJob``.

    Args:
        request: the call.
        cores: that the pilot has; 0: not stated. The old ``cpu`` is a clock rate.

    Raises:
        LegacyArgumentError: the queue is missing.
    """
    given = request.given

    def text(name: str) -> str:
        value = given.get(name)
        return "" if value in (None, "NULL", "None") else str(value)

    return JobRequest(
        site=request.required("siteName"),
        label=text("prodSourceLabel"),
        memory=_amount(given, "mem"),
        cores=cores,
        disk_mb=_amount(given, "diskSpace"),
        remaining_time=_amount(given, "remaining_time"),
        resource_type=text("resourceType"),
        task_id=max(0, int(_number(given.get("taskID"), int) or 0)),
        node=text("node"),
        computing_element=text("computingElement"),
        harvester_id=(text("harvester_id") or text("schedulerID"))[:128],
        worker_id=text("worker_id")[:128],
        scheduler_id=text("schedulerID"),
        patience=_PATIENCE,
        only_node=True,
    )


def _report(request: LegacyRequest) -> dict[str, Any]:
    """Returns the arguments of ``updateJob`` under the names of ``pilot/update_job``.

    Unknown items are left out, because newer pilots send more of them. Numbers that are not valid are left out too.

    Raises:
        LegacyArgumentError: the job or its state is missing.
    """
    given = request.given
    panda_id = _number(request.required("jobId"), int)
    if panda_id is None:
        raise LegacyArgumentError(f"jobId must be a whole number, not {given['jobId']!r}")
    report: dict[str, Any] = {"job_id": panda_id, "job_status": request.required("state")}
    report["attempt_nr"] = _number(given.get("attemptNr"), int)
    for field in REPORT_FIELDS:
        value = given.get(field.legacy)
        if value is not None and value not in ("NULL", "None"):
            report[field.name] = str(value) if field.kind is str else _number(value, field.kind)
    if isinstance(given.get("metaData"), dict | list):
        report["meta_data"] = json.dumps(given["metaData"])
    return report


def _is_alive(request: LegacyRequest) -> Response:
    return PlainTextResponse("alive=yes")


async def _get_job(request: LegacyRequest) -> Response:
    """Gives a job to a pilot."""
    try:
        found = await _wait_for_jobs(request.call, job_request(request, _cores(request.call)))
    except UnknownQueue as error:
        return request.coded(StatusCode.NO_JOBS, str(error))
    if not found:
        return request.coded(StatusCode.NO_JOBS, "no jobs in PanDA" if request.as_json else None)
    return request.values({"StatusCode": StatusCode.SUCCESS, **_for_pilot3(found[0])})


def _for_pilot3(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one of our jobs without its container: the transformation starts the image that the sandbox names.

    From 3.10.3 on a Pilot 3 fails a job that names an image (error 1384, `pilot/control/job.py`) unless its queue names
    a container program for pilots; then its generic plugin starts the image by means of CVMFS. It also runs the steps
    before and after the payload (`pilot/user/generic/common.py`), whose work the transformation does itself.
    """
    left_out = _CONTAINER if job["processingType"] == _OURS else frozenset[str]()
    return {name: value for name, value in job.items() if name not in left_out}


async def _update_job(request: LegacyRequest) -> Response:
    """Records a pilot's report on one job: a heartbeat, or the final report."""
    if request.required("jobId") == "NULL":  # a pilot that aborts before it has a job
        return request.coded(StatusCode.SUCCESS)
    report = _report(request)
    if (status := reported_state(report["job_status"])) is None:
        return request.coded(StatusCode.SUCCESS)
    try:
        command = await request.call.server.reports.record(Report(status, report, request.call.pilot))
    except NotThePilotsJob as error:
        log.warning("a report by %s is refused: %s", request.call.caller.name, error)
        return request.coded(StatusCode.PERMISSION, str(error), command="tobekilled")
    return request.coded(StatusCode.SUCCESS, command=command or "NULL")


def _get_status(tx: Transaction, request: LegacyRequest) -> Response:
    """Returns state and attempt of jobs, given their ids with blanks between; always as a form, never as JSON."""
    names = request.required("ids").split()
    ids = [int(name) for name in names if name.isascii() and name.isdecimal() and len(name) < 19]
    query = select(jobs.c.panda_id, jobs.c.status, jobs.c.attempt_nr).where(among(jobs.c.panda_id, ids))
    found = {str(row.panda_id): row for row in tx.connection.execute(query)}
    status = "+".join(found[name].status if name in found else "notfound" for name in names)
    attempts = "+".join(str(found[name].attempt_nr) if name in found else "0" for name in names)
    return replace(request, as_json=False).coded(StatusCode.SUCCESS, status=status, attemptNr=attempts)


def _update_worker_pilot_status(tx: Transaction, request: LegacyRequest) -> Response:
    """Records that a worker started or ended; the jobs that an ended worker still has are lost at once."""
    worker_id, harvester_id = request.required("workerID"), request.required("harvesterID")
    status, node = request.required("status"), request.given.get("node_id")
    if status not in WORKER_STATES:
        return PlainTextResponse(f"Invalid worker state. The worker state has to be in {WORKER_STATES}")
    update_worker(tx, request.call.pilot, harvester_id, worker_id, status, str(node or ""))
    return request.coded(StatusCode.SUCCESS)


def _get_resource_types(request: LegacyRequest) -> Response:
    """Returns the definitions of the resource types."""
    return request.coded(StatusCode.SUCCESS, Returns=0, ResourceTypes=RESOURCE_TYPES)


def _get_access_token(request: LegacyRequest) -> Response:
    """Refuses: this server has no access tokens of others."""
    dialog = f"token not found for {request.required('client_name')}"
    return replace(request, as_json=True).coded(StatusCode.PROXY_ERROR, dialog)


#: Every function of the legacy API: where its handler runs, as for the new API, and the handler.
LEGACY: dict[str, tuple[Access, Callable[..., Any]]] = {
    "isAlive": (Access.NOTHING, _is_alive),
    "getJob": (Access.WAIT, _get_job),
    "updateJob": (Access.WAIT, _update_job),
    "getStatus": (Access.READ, _get_status),
    "updateWorkerPilotStatus": (Access.WRITE, _update_worker_pilot_status),
    "getResourceTypes": (Access.NOTHING, _get_resource_types),
    "get_access_token": (Access.NOTHING, _get_access_token),
}
#: Functions that need no pilot's role, and no token.
LEGACY_PUBLIC = frozenset({"isAlive"})

#: The refusal of a caller without a pilot's role.
_MESSAGE_ROLE = "no production/pilot role in VOMS FQANs or non pilot owner"


async def legacy(server: ServerState, http: Request) -> Response:
    """Answers a legacy call."""
    name = http.path_params["function"]
    if name not in LEGACY:
        return _wrong(f"{name} is not provided by this server", 404)
    return await guarded(name, _answer(server, http, name), _wrong)


async def _answer(server: ServerState, http: Request, name: str) -> Response:
    access, handler = LEGACY[name]
    try:
        # No token is no error, a wrong one is, as on a real server.
        caller = server.tokens.caller(http) if "authorization" in http.headers else NOBODY
        as_json = "application/json" in http.headers.get("accept", "")
        request = LegacyRequest(Call(caller, server, http), {}, as_json)
        # Refused before the body is read, so that a body without permission takes no memory.
        if name not in LEGACY_PUBLIC and caller.role not in PILOTS:
            return request.coded(StatusCode.ROLE, _MESSAGE_ROLE if as_json else None)
        request = replace(request, given=await _legacy_arguments(http))
        answer: Response = await carry_out(server.database, access, handler, request)
        return answer
    except TokenRefused as error:
        return _wrong(f"Token authentication failed. {error}", 403)
    except LegacyArgumentError as error:
        return _wrong(f"{name}() {error}", 400)


def _wrong(message: str, status: int) -> Response:
    return PlainTextResponse(f"ERROR : {message}", status)


async def _legacy_arguments(http: Request) -> dict[str, Any]:
    if http.method in ("GET", "HEAD"):
        return pairs(str(http.url.query))
    body = await read_body(http)
    if "json" in http.headers.get("content-type", ""):
        # Old clients compress JSON without a header for it.
        given = json_object(unpacked(body) if body[:2] == _GZIP else body)
        # Booleans become text as in a form, because the functions compare with ``"True"``.
        return {name: str(value) if isinstance(value, bool) else value for name, value in given.items()}
    given = pairs(body.decode("latin-1"))
    if any("\0" in value for value in given.values() if isinstance(value, str)):
        raise LegacyArgumentError("an argument holds a zero character")
    return given
