"""The calls of ``/server/panda``, which released Pilot 3s make."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hpo_pilot.server.attempts import (
    REPORT_FIELDS,
    WORKER_STATES,
    NotThePilotsJob,
    record_report,
    reported_state,
    update_worker,
)
from hpo_pilot.server.calls import (
    NOBODY,
    PILOTS,
    Access,
    BodyRefused,
    Call,
    carry_out,
    json_object,
    pairs,
    read_body,
    unpacked,
)
from hpo_pilot.server.database import Transaction, in_slices, jobs
from hpo_pilot.server.dispatch import JobRequest
from hpo_pilot.server.pilot_calls import UnknownQueue, cores_said, wait_for_jobs
from hpo_pilot.server.task_parameters import RESOURCE_TYPES
from hpo_pilot.server.tokens import Caller, TokenRefused

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server


# Answers: flat values, as a form, or as JSON for callers that accept it. Formats and codes are those of
# panda-server 0.8.1 (`pandaserver/jobdispatcher/Protocol.py` and `ErrorCode.py`).

JSON, PLAIN = "application/json", "text/plain"


class StatusCode(IntEnum):
    """The result of a call."""

    SUCCESS = 0
    NO_JOBS = 20  #: there is no job for this pilot
    ROLE = 60  #: the caller is no pilot
    PERMISSION = 70  #: the caller may not have this
    PROXY_ERROR = 90  #: there is no such proxy or token


#: The refusal of a caller without a pilot's role.
MESSAGE_ROLE = "no production/pilot role in VOMS FQANs or non pilot owner"


@dataclass(frozen=True)
class Reply:
    """The answer to a legacy call.

    Attributes:
        text: the body.
        media_type: `JSON` or `PLAIN`.
        status: the HTTP status; nearly always 200, also for errors.
    """

    text: str
    media_type: str = PLAIN
    status: int = 200


def values(content: Mapping[str, Any], *, as_json: bool) -> Reply:
    """Named values, as JSON or as a form."""
    return Reply(json.dumps(content), JSON) if as_json else Reply(urlencode(content))


def coded(code: StatusCode, dialog: str | None = None, *, as_json: bool, **more: Any) -> Reply:
    """Returns an answer with a status code."""
    said = {} if dialog is None else {"errorDialog": dialog}
    return values({"StatusCode": int(code), **said, **more}, as_json=as_json)


def wrong(message: str, status: int = 400) -> Reply:
    """Returns the answer to a call that is not valid or that this server does not have."""
    return Reply(f"ERROR : {message}", PLAIN, status)


_INTEGER = 2**63 - 1  # largest value of a database column


class LegacyArgumentError(Exception):
    """An argument is missing or not valid; the message names it."""


def text(given: Mapping[str, Any], name: str) -> str:
    """Returns an argument, which must be there (else LegacyArgumentError)."""
    if name not in given:
        raise LegacyArgumentError(f"missing a required argument: '{name}'")
    return str(given[name])


def whole(given: Mapping[str, Any], name: str) -> int:
    """Returns a whole number, which must be there (else LegacyArgumentError)."""
    number = _whole(text(given, name))
    if number is None:
        raise LegacyArgumentError(f"{name} must be a whole number, not {given[name]!r}")
    return number


def _whole(value: Any) -> int | None:
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if abs(number) <= _INTEGER else None


def _number(value: Any) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _amount(given: Mapping[str, Any], name: str) -> int:
    """Returns a size or time; 0: it is missing, not a number, negative or too large."""
    number = _number(given.get(name))
    return int(number) if number is not None and 0 < number < 2**31 else 0


def _optional(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return "" if value in (None, "NULL", "None") else str(value)


#: A released Pilot 3 reports every half hour unless its site says otherwise: four reports may be missed.
_PATIENCE = 2 * 3600.0


def job_request(given: Mapping[str, Any], cores: int) -> JobRequest:
    """Returns the request of a pilot's ``getJob``.

    Args:
        given: the arguments as they came.
        cores: that the pilot has; 0: not said. The old ``cpu`` is a clock rate.

    Raises:
        LegacyArgumentError: the queue is missing.
    """
    scheduler = _optional(given, "schedulerID")
    return JobRequest(
        site=text(given, "siteName"),
        label=_optional(given, "prodSourceLabel"),
        memory=_amount(given, "mem"),
        cores=cores,
        disk_mb=_amount(given, "diskSpace"),
        remaining_time=_amount(given, "remaining_time"),
        resource_type=_optional(given, "resourceType"),
        task_id=max(0, _whole(given.get("taskID")) or 0),
        node=_optional(given, "node"),
        computing_element=_optional(given, "computingElement"),
        harvester_id=(_optional(given, "harvester_id") or scheduler)[:128],
        worker_id=_optional(given, "worker_id")[:128],
        scheduler_id=scheduler,
        patience=_PATIENCE,
        only_node=True,
    )


_READ: dict[type, Callable[[Any], Any]] = {str: str, int: _whole, float: _number}


def job_report(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of ``updateJob`` under the names of ``pilot/update_job``.

    Unknown items are left out, because newer pilots send more of them. Numbers that are not valid are left out too.

    Raises:
        LegacyArgumentError: the job or its state is missing.
    """
    report: dict[str, Any] = {"job_id": whole(given, "jobId"), "job_status": text(given, "state")}
    report["attempt_nr"] = _whole(given.get("attemptNr"))
    for field in REPORT_FIELDS:
        value = given.get(field.legacy)
        if value is not None and value not in ("NULL", "None"):
            report[field.name] = _READ[field.kind](value)
    if isinstance(given.get("metaData"), dict | list):
        report["meta_data"] = json.dumps(given["metaData"])
    return report


@dataclass(frozen=True)
class Ask:
    """One legacy call.

    Attributes:
        call: the caller and the request.
        given: the arguments as received; unknown arguments are ignored.
        as_json: whether the caller accepts JSON.
    """

    call: Call
    given: Mapping[str, Any]
    as_json: bool


class Refusal(Enum):
    """The form of the refusal to a caller without a pilot's role."""

    CODE = "code"  #: by StatusCode
    TEXT = "text"  #: by a sentence
    NEVER = "never"  #: anybody may make it, without a token


@dataclass(frozen=True)
class LegacyCall:
    """One function of the legacy API.

    Attributes:
        access: where `handler` runs; as for the new API, with an `Ask` in the place of call and arguments.
        refusal: the answer to a caller without a pilot's role.
    """

    access: Access
    handler: Callable[..., Any]
    refusal: Refusal

    def refuse(self, ask: Ask) -> Reply | None:
        """Returns the answer to a caller who may not make this call; None: the caller may."""
        if self.refusal is Refusal.NEVER or ask.call.caller.role in PILOTS:
            return None
        if self.refusal is Refusal.TEXT:
            return Reply("production or pilot role is required")
        return coded(StatusCode.ROLE, MESSAGE_ROLE if ask.as_json else None, as_json=ask.as_json)


#: Every function by its name. The module `pilot` fills it when it is imported.
LEGACY: dict[str, LegacyCall] = {}

_Handler = TypeVar("_Handler", bound=Callable[..., Any])


def legacy(name: str, access: Access, refusal: Refusal = Refusal.CODE) -> Callable[[_Handler], _Handler]:
    """Puts the decorated function into the table."""

    def register(handler: _Handler) -> _Handler:
        LEGACY[name] = LegacyCall(access, handler, refusal)
        return handler

    return register


# The calls. Every released Pilot 3, up to 3.11, makes them. After `pandaserver/jobdispatcher/JobDispatcher.py` of
# panda-server 0.8.1; the work is done by the same functions as for the new API.

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
        found = await wait_for_jobs(ask.call, job_request(ask.given, cores_said(ask.call)))
    except UnknownQueue as error:
        return coded(StatusCode.NO_JOBS, str(error), as_json=ask.as_json)
    if not found:
        return coded(StatusCode.NO_JOBS, "no jobs in PanDA" if ask.as_json else None, as_json=ask.as_json)
    return values({"StatusCode": int(StatusCode.SUCCESS), **_for_pilot3(found[0])}, as_json=ask.as_json)


def _for_pilot3(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns one of our jobs without its container: the transformation starts the image that the sandbox names.

    From 3.10.3 on a Pilot 3 fails a job that names an image (error 1384, `pilot/control/job.py`) unless its queue names
    a container program for pilots; then its generic plugin starts the image by means of CVMFS. It also runs the steps
    before and after the payload (`pilot/user/generic/common.py`), whose work the transformation does itself.
    """
    left_out = _CONTAINER if job["processingType"] == _OURS else frozenset[str]()
    return {name: value for name, value in job.items() if name not in left_out}


@legacy("updateJob", Access.WRITE)
def update_job(tx: Transaction, ask: Ask) -> Reply:
    """Records a pilot's report on one job: a heartbeat, or the final report."""
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
    """Returns state and attempt of jobs, given their ids with blanks between; always as a form, never as JSON."""
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
    """Returns the definitions of the resource types."""
    return coded(StatusCode.SUCCESS, as_json=ask.as_json, Returns=0, ResourceTypes=RESOURCE_TYPES)


@legacy("get_access_token", Access.NOTHING)
def get_access_token(ask: Ask) -> Reply:
    """Refused: there are no access tokens of others here."""
    return coded(StatusCode.PROXY_ERROR, f"token not found for {text(ask.given, 'client_name')}", as_json=True)


_GZIP = b"\x1f\x8b"


async def answer(server: Server, request: Request) -> Response:
    """Answers a legacy call."""
    reply = await _answer(server, request)
    return Response(reply.text, reply.status, media_type=reply.media_type)


async def _answer(server: Server, request: Request) -> Reply:
    name = request.path_params["function"]
    function = LEGACY.get(name)
    if function is None:
        return wrong(f"{name} is not provided by this server", 404)
    try:
        ask = Ask(Call(_caller(server, request), server, request), {}, JSON in request.headers.get("accept", ""))
        # Refused before the body is read, so that a body without permission takes no memory.
        if (refused := function.refuse(ask)) is not None:
            return refused
        ask = replace(ask, given=await _arguments(request))
        reply: Reply = await carry_out(server.database, function.access, function.handler, ask)
        return reply
    except TokenRefused as error:
        return wrong(f"Token authentication failed. {error}", 403)
    except LegacyArgumentError as error:
        return wrong(f"{name}() {error}")
    except BodyRefused as error:
        return wrong(str(error), error.status)
    except DBAPIError as error:
        log.error("%s: %s", name, error.orig)
        return wrong("database error in the PanDA server", 503)
    except ClientDisconnect:
        return wrong("the caller has gone", 499)
    except Exception:
        log.exception("%s failed", name)
        return wrong(f"{name} failed in the server; its log says why", 500)


def _caller(server: Server, request: Request) -> Caller:
    """Returns the caller. No token is no error, a wrong one is, as on a real server."""
    try:
        return server.tokens.caller(request)
    except TokenRefused:
        if "authorization" in request.headers:
            raise
        return NOBODY


async def _arguments(request: Request) -> dict[str, Any]:
    if request.method in ("GET", "HEAD"):
        return pairs(str(request.url.query))
    body = await read_body(request)
    if "json" in request.headers.get("content-type", ""):
        # Old clients compress JSON without a header for it.
        given = json_object(unpacked(body) if body[:2] == _GZIP else body)
        # Booleans become text as in a form, because the functions compare with ``"True"``.
        return {name: str(value) if isinstance(value, bool) else value for name, value in given.items()}
    given = pairs(body.decode("latin-1"))
    if any("\0" in value for value in given.values() if isinstance(value, str)):
        raise LegacyArgumentError("an argument holds a zero character")
    return given
