"""Hyper-parameter points of tasks, by iDDS's REST, for payloads."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import re
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import DBAPIError, NoResultFound
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.server.calls import check_owner, dump
from hpo_pilot.server.database import AT_PILOT_STATES, Transaction, jobs, point_losses
from hpo_pilot.server.file_store import read_secret
from hpo_pilot.server.task_parameters import known_task
from hpo_pilot.server.tokens import Caller, Role, TokenRefused

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server


# Points. A task of hpo-pilot has its points in the ``--task`` argument of its jobs: base64url(zlib(JSON)) of
# ``{"jobs": [[trial, fold, seed], …], "points": {"<trial>": {…}}}``; the entry of a job that runs several points is
# a list of such triples. Points are numbered from 1 in this order, so a point has the number of its job wherever
# each job has one point.

#: Where the job dictionary given to pilots has the job's capability.
CAPABILITY_KEY = "hpoPilotPoints"

_TASK_ARGUMENT = re.compile(r"--task ([A-Za-z0-9_-]+=*) --number ")
_MOST_BYTES = 8 << 20  # of a task's points, unpacked

#: The errors that reading a user's text may raise.
_UNREADABLE = (binascii.Error, zlib.error, ValueError, KeyError, TypeError, IndexError, RecursionError)


class PointStatus(StrEnum):
    """State of a point. The names are those of iDDS's `ContentStatus`; it calls the last one Available."""

    NEW = "New"
    PROCESSING = "Processing"
    FINISHED = "Finished"


@dataclass(frozen=True)
class Point:
    """A point and its result.

    Attributes:
        number: from 1, in its task.
        job: the number of the job that runs it, from 1.
        parameters: name -> value.
        loss: None: not reported.
    """

    number: int
    job: int
    trial: int
    fold: int
    parameters: Mapping[str, Any]
    status: PointStatus
    loss: float | None


class Capabilities:
    """Unguessable path segments, each good for the points of one job while a pilot has it.

    The payload's environment holds no token: what it can do with this is to read its own points and report on them.
    """

    def __init__(self, file: Path) -> None:
        """Reads the secret that they are made with; makes it if need be.

        Raises:
            InputError: it cannot be read or written.
        """
        self._secret = read_secret(file, lambda: secrets.token_bytes(32))

    def of(self, panda_id: int) -> str:
        """Returns the capability of a job."""
        digest = hmac.digest(self._secret, str(panda_id).encode(), hashlib.sha256)
        return f"{panda_id}-{base64.urlsafe_b64encode(digest[:24]).decode()}"

    def job(self, capability: str) -> int | None:
        """Returns the job of a capability; None: no job has it."""
        number = capability.partition("-")[0]
        if not (number.isascii() and number.isdecimal() and len(number) < 19):
            return None
        expected = self.of(int(number))
        return int(number) if hmac.compare_digest(expected.encode(), capability.encode("utf-8", "replace")) else None


def points_of(tx: Transaction, task_id: int, job: int | None = None) -> list[Point]:
    """Returns the points of a task that is not broken; empty: it is no task of hpo-pilot.

    Args:
        job: the number of the job whose points are wanted; None: all.
    """
    table = [
        (number, entry) for number, entry in enumerate(_table(_encoded(tx, task_id)), 1) if job in (None, entry[0])
    ]
    attempts = select(jobs.c.number, jobs.c.status).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id)
    if job is not None:
        attempts = attempts.where(jobs.c.number == job)
    states = {row.number: JobState(row.status) for row in tx.connection.execute(attempts)}  # the last one counts
    known = select(point_losses.c.number, point_losses.c.loss).where(point_losses.c.task_id == task_id)
    if job is not None:
        known = known.where(point_losses.c.number.in_([number for number, _ in table]))
    losses = {row.number: row.loss for row in tx.connection.execute(known)}
    return [
        Point(
            number,
            ran_by,
            trial,
            fold,
            parameters,
            _point_status(states.get(ran_by), losses.get(number)),
            losses.get(number),
        )
        for number, (ran_by, trial, fold, parameters) in table
    ]


def job_at_pilot(tx: Transaction, panda_id: int) -> tuple[int, int] | None:
    """(task, job number) of a job that a pilot has; None: it is over, or was never there."""
    row = tx.connection.execute(
        select(jobs.c.task_id, jobs.c.number, jobs.c.status).where(jobs.c.panda_id == panda_id)
    ).first()
    return None if row is None or JobState(row.status) not in AT_PILOT_STATES else (row.task_id, row.number)


def set_loss(tx: Transaction, task_id: int, number: int, loss: float | None) -> None:
    """Stores the loss of a point; None removes it."""
    tx.connection.execute(
        delete(point_losses).where(point_losses.c.task_id == task_id, point_losses.c.number == number)
    )
    if loss is not None:
        tx.connection.execute(insert(point_losses).values(task_id=task_id, number=number, loss=loss, modified=tx.now))


def _point_status(state: JobState | None, loss: float | None) -> PointStatus:
    if loss is not None or (state is not None and state.is_over):
        return PointStatus.FINISHED
    return PointStatus.PROCESSING if state in AT_PILOT_STATES else PointStatus.NEW


def _encoded(tx: Transaction, task_id: int) -> str:
    match = _TASK_ARGUMENT.search(unquote(known_task(tx, task_id).parameters.template))
    return match[1] if match else ""


@dataclass(frozen=True)
class Assignment:
    """The search, generation and points of a task of hpo-pilot.

    Attributes:
        uid: the search's identity in its store.
        members: by the job's number, (trial, fold) of each point that it runs.
    """

    search: str
    uid: str
    generation: int
    members: Mapping[int, tuple[tuple[int, int], ...]]


def assignment_of(tx: Transaction, task_id: int) -> Assignment | None:
    """Returns a task's assignment by its parameters; None: it is no task of hpo-pilot, or broken."""
    try:
        return _assignment(_encoded(tx, task_id))
    except InputError:  # its parameters are not valid
        return None


@lru_cache(maxsize=512)
def _assignment(encoded: str) -> Assignment | None:
    try:
        document = _document(encoded)
        members: dict[int, list[tuple[int, int]]] = {}
        for number, trial, fold, _ in _table(encoded):
            members.setdefault(number, []).append((trial, fold))
        return Assignment(
            str(document["search"]),
            str(document["uid"]),
            int(document["generation"]),
            {number: tuple(found) for number, found in members.items()},
        )
    except _UNREADABLE:
        return None


def _document(encoded: str) -> Any:
    """Returns the content of a `--task` argument; raises one of `_UNREADABLE` if it is not of hpo-pilot."""
    return json.loads(zlib.decompressobj().decompress(base64.urlsafe_b64decode(encoded), _MOST_BYTES))


@lru_cache(maxsize=64)
def _table(encoded: str) -> tuple[tuple[int, int, int, Mapping[str, Any]], ...]:
    """(job, trial, fold, point) of each; what cannot be read is as if it were not there: it is a user's text."""
    if not encoded:
        return ()
    try:
        document = _document(encoded)
        found = []
        for job, entry in enumerate(document["jobs"], 1):
            for trial, fold, _seed in entry if isinstance(entry[0], list) else [entry]:
                found.append((job, int(trial), int(fold), dict(document["points"][str(trial)])))
    except _UNREADABLE:
        return ()
    return tuple(found)


# iDDS's REST for hyper-parameter points (idds-server 2.6, `rest/v1/hyperparameteropt.py`):
#
# - ``GET  …/hpo/<workload_id>/<request_id>/<id>/<status>/<limit>`` -> ``[{id, parameters, loss}]``
# - ``PUT  …/hpo/<workload_id>/<request_id>/<id>/<loss>``
#
# ``null`` means any. Workload and request are both the jediTaskID here. Below ``/idds`` a token is needed. Below
# ``/points/<capability>/idds`` no token is needed, and the points are those of one job: its payload gets this
# address. ``/points/<capability>/t<trial>f<fold>/idds`` has one point of a job that runs several.

_ANY = "null"
_MEMBER = re.compile(r"t(\d{1,9})f(\d{1,9})")

#: iDDS's names and numbers of a content's status (`idds.common.constants.ContentStatus`).
_STATUSES = {
    "new": PointStatus.NEW,
    "0": PointStatus.NEW,
    "processing": PointStatus.PROCESSING,
    "1": PointStatus.PROCESSING,
    "available": PointStatus.FINISHED,
    "finished": PointStatus.FINISHED,
    "2": PointStatus.FINISHED,
}


class _Refused(Exception):
    """The call is refused; iDDS's clients raise the exception with this name."""

    def __init__(self, status: HTTPStatus, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class _Asked:
    """The points that a call names.

    Attributes:
        job: only this job's points; None: the whole task's.
        member: only this trial and fold.
    """

    task_id: int
    job: int | None = None
    member: tuple[int, int] | None = None


def routes(server: Server) -> Sequence[Route]:
    """Returns the routes of one server."""

    def route(prefix: str, path: str, handle: Callable[[Server, Request], Any], method: str) -> Route:
        async def answer(request: Request) -> Response:
            try:
                return _reply(request, await handle(server, request))
            except _Refused as error:
                return _reply(request, None, error)
            except DBAPIError:
                trouble = "database error in the PanDA server"
                return _reply(request, None, _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "DatabaseException", trouble))

        return Route(f"{prefix}/hpo/{{workload_id}}/{{request_id}}/{path}", answer, methods=[method])

    return [
        made
        for prefix in ("/idds", "/points/{capability}/idds", "/points/{capability}/{member}/idds")
        for made in (
            route(prefix, "{id}/{status}/{limit}", _get, "GET"),
            route(prefix, "{id}/{loss}", _put, "PUT"),
        )
    ]


async def _get(server: Server, request: Request) -> list[dict[str, Any]]:
    given = request.path_params
    wanted, status, limit = _number(given["id"], "id"), _status(given["status"]), _number(given["limit"], "limit")

    def work(tx: Transaction) -> list[dict[str, Any]]:
        found = [
            point
            for point in _points(tx, _asked(tx, server, request, change=False))
            if wanted in (None, point.number) and status in (None, point.status)
        ]
        return [
            {"id": point.number, "parameters": dict(point.parameters), "loss": point.loss} for point in found[:limit]
        ]

    found: list[dict[str, Any]] = await server.database.read(work)
    return found


async def _put(server: Server, request: Request) -> dict[str, Any]:
    given = request.path_params
    wanted, loss = _number(given["id"], "id"), _loss(given["loss"])

    def work(tx: Transaction) -> None:
        asked = _asked(tx, server, request, change=True)
        found = [point for point in _points(tx, asked) if wanted in (None, point.number)]
        if len(found) != 1:
            what = f"no point {given['id']}" if not found else f"{len(found)} points: say which one"
            raise _Refused(HTTPStatus.NOT_FOUND, "NoObject", f"task {asked.task_id} has {what}")
        set_loss(tx, asked.task_id, found[0].number, loss)

    await server.database.write(work)
    return {"status": 0, "message": "update successfully"}


def _asked(tx: Transaction, server: Server, request: Request, *, change: bool) -> _Asked:
    """Returns the points that the call names, after a check of its sender.

    Raises:
        _Refused: they may not, or there is no such task.
    """
    given = request.path_params
    named = {number for key in ("workload_id", "request_id") if (number := _number(given[key], key)) is not None}
    if len(named) > 1:
        raise _Refused(HTTPStatus.NOT_FOUND, "NoObject", "workload_id and request_id are both the jediTaskID here")
    if not named:
        trouble = "One of workload_id and request_id should not be None or empty"
        raise _Refused(HTTPStatus.BAD_REQUEST, "WrongParameterException", trouble)
    (task_id,) = named
    if "capability" in given:
        return _of_capability(tx, server, given, task_id)
    caller = _caller(server, request)
    _points(tx, _Asked(task_id))
    if change:
        if caller.role is Role.PILOT:
            raise _Refused(HTTPStatus.FORBIDDEN, "AuthenticationNoPermission", "user role required")
        if refusal := check_owner(tx, caller, task_id):
            raise _Refused(HTTPStatus.FORBIDDEN, "AuthenticationNoPermission", str(refusal["message"]))
    return _Asked(task_id)


def _caller(server: Server, request: Request) -> Caller:
    """Returns the caller, by the usual token or by iDDS's header."""
    token = request.headers.get("x-idds-auth-token")
    try:
        if token is None or "authorization" in request.headers:
            return server.tokens.caller(request)
        return server.tokens.verify(f"Bearer {token}", request.headers.get("x-idds-auth-vo"))
    except TokenRefused as error:
        raise _Refused(HTTPStatus.UNAUTHORIZED, "AuthenticationException", str(error)) from None


def _of_capability(tx: Transaction, server: Server, given: dict[str, str], task_id: int) -> _Asked:
    panda_id = server.capabilities.job(given["capability"])
    job = None if panda_id is None else job_at_pilot(tx, panda_id)
    if job is None or job[0] != task_id:
        # One answer for all cases, so that it does not tell which jobs exist.
        raise _Refused(HTTPStatus.FORBIDDEN, "AuthenticationNoPermission", "this address is no running job's")
    if "member" not in given:
        return _Asked(task_id, job[1])
    match = _MEMBER.fullmatch(given["member"])
    if match is None:
        raise _Refused(HTTPStatus.NOT_FOUND, "NoObject", "there is no such point")
    return _Asked(task_id, job[1], (int(match[1]), int(match[2])))


def _points(tx: Transaction, asked: _Asked) -> list[Point]:
    try:
        found = points_of(tx, asked.task_id, asked.job)
    except (NoResultFound, InputError):
        found = []  # there is no such task, or its parameters are not valid
    if not found:
        raise _Refused(HTTPStatus.NOT_FOUND, "NoObject", f"task {asked.task_id} has no points here")
    return [point for point in found if asked.member in (None, (point.trial, point.fold))]


def _number(text: str, name: str) -> int | None:
    if text == _ANY:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        message = f"{name} must be a number or null, not {text[:100]!r}"
        raise _Refused(HTTPStatus.BAD_REQUEST, "WrongParameterException", message)
    return int(text)


def _status(text: str) -> PointStatus | None:
    if text == _ANY:
        return None
    status = _STATUSES.get(text.rpartition(".")[2].lower())
    if status is None:
        message = f"status must be New, Processing, Finished or null, not {text[:100]!r}"
        raise _Refused(HTTPStatus.BAD_REQUEST, "WrongParameterException", message)
    return status


def _loss(text: str) -> float | None:
    if text in (_ANY, "None"):  # the latter is what iDDS's client makes of None
        return None
    try:
        loss = float(text)
    except ValueError:
        loss = math.nan
    if not math.isfinite(loss):
        message = f"the loss must be a finite number or null, not {text[:100]!r}"
        raise _Refused(HTTPStatus.BAD_REQUEST, "WrongParameterException", message)
    return loss


def _reply(request: Request, data: Any, refused: _Refused | None = None) -> Response:
    """Returns an answer in the form of iDDS's controller; with ``json_outputs=true`` all of it is in the body."""
    error = {"ExceptionClass": refused.kind, "ExceptionMessage": json.dumps({"msg": str(refused)})} if refused else None
    if request.query_params.get("json_outputs", "").lower() == "true":
        content = {"status": refused.status if refused else 0, "data": data, "error": error}
        return Response(dump(content), media_type="application/json")
    body = dump(data) if refused is None else json.dumps({"msg": str(refused)})
    status = refused.status if refused else HTTPStatus.OK
    return Response(body, status, headers=error, media_type="application/json")
