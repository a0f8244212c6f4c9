"""iDDS's REST for hyper-parameter points (idds-server 2.6, `rest/v1/hyperparameteropt.py`), for payloads.

- ``GET  …/hpo/<workload_id>/<request_id>/<id>/<status>/<limit>`` -> ``[{id, parameters, loss}]``
- ``PUT  …/hpo/<workload_id>/<request_id>/<id>/<loss>``

``null`` stands for: any. Workload and request are both the jediTaskID here. Below ``/idds`` a token is needed; below
``/points/<capability>/idds`` nothing else is, and the points are those of one job: what its payload is given. Between
the two may stand ``t<trial>f<fold>``, for one point of a job that runs several.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError, NoResultFound
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Caller, Role, TokenRefused
from hpo_pilot.server.access.ownership import check_owner
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.json_text import dump
from hpo_pilot.server.taskbuffer.points import Point, PointStatus, job_at_pilot, points_of, set_loss

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server

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
    """The call is not answered as it wants; iDDS's clients raise the exception of that name."""

    def __init__(self, status: HTTPStatus, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class _Asked:
    """What a call is about.

    Attributes:
        job: only this job's points; None: the whole task's.
        member: only this trial and fold.
    """

    task_id: int
    job: int | None = None
    member: tuple[int, int] | None = None


def routes(server: Server) -> Sequence[Route]:
    """The routes of one server."""

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
    """What the call is about, once whoever sends it may ask.

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
    """Who sends the call: with a token as everywhere, or where iDDS's client puts it."""
    token = request.headers.get("x-idds-auth-token")
    try:
        if token is None or "authorization" in request.headers:
            return server.gate.caller(request)
        return server.gate.tokens.verify(f"Bearer {token}", request.headers.get("x-idds-auth-vo"))
    except TokenRefused as error:
        raise _Refused(HTTPStatus.UNAUTHORIZED, "AuthenticationException", str(error)) from None


def _of_capability(tx: Transaction, server: Server, given: dict[str, str], task_id: int) -> _Asked:
    panda_id = server.capabilities.job(given["capability"])
    job = None if panda_id is None else job_at_pilot(tx, panda_id)
    if job is None or job[0] != task_id:
        # One answer for all: nobody learns which jobs there are.
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
        found = []  # a task that never was, or whose parameters make no sense
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
    """An answer as iDDS's controller gives it; with ``json_outputs=true`` everything is in the body."""
    error = {"ExceptionClass": refused.kind, "ExceptionMessage": json.dumps({"msg": str(refused)})} if refused else None
    if request.query_params.get("json_outputs", "").lower() == "true":
        content = {"status": refused.status if refused else 0, "data": data, "error": error}
        return Response(dump(content), media_type="application/json")
    body = dump(data) if refused is None else json.dumps({"msg": str(refused)})
    status = refused.status if refused else HTTPStatus.OK
    return Response(body, status, headers=error, media_type="application/json")
