"""Hyper-parameter points of tasks, by iDDS's REST, for payloads."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import unquote

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import DBAPIError, NoResultFound
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.server.calls import check_owner
from hpo_pilot.server.database import AT_PILOT, AT_PILOT_STATES, Transaction, jobs, point_losses
from hpo_pilot.server.replies import dump
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.task_parameters import known_task
from hpo_pilot.server.tokens import Caller, Role, TokenRefused

# Points. A task of hpo-pilot has its points in the ``--task`` argument of its jobs: base64url(zlib(JSON)) of
# ``{"jobs": [[trial, fold, seed], …], "points": {"<trial>": {…}}}``; the entry of a job that runs several points is
# a list of such triples. Points are numbered from 1 in this order, so a point has the number of its job wherever
# each job has one point.

#: Where the job dictionary given to pilots has the job's capability.
CAPABILITY_KEY = "hpoPilotPoints"

_TASK_ARGUMENT = re.compile(r"--task ([A-Za-z0-9_-]+=*) --number ")
_MOST_BYTES = 8 << 20  # of a task's points, unpacked

#: Errors of reading a user's text.
_UNREADABLE = (
    *(binascii.Error, zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError),
    OverflowError,
)


#: States of a point, by iDDS's names and numbers (`idds.common.constants.ContentStatus`).
_NEW, _PROCESSING, _FINISHED = "New", "Processing", "Finished"
_STATUSES = {
    **dict.fromkeys(("new", "0"), _NEW),
    **dict.fromkeys(("processing", "1"), _PROCESSING),
    **dict.fromkeys(("available", "finished", "2"), _FINISHED),
}


@dataclass(frozen=True)
class Point:
    """A point and its result.

    Attributes:
        number: from 1, in its task.
        job: the number of the job that runs it, from 1.
        parameters: name -> value.
        status: `_NEW`, `_PROCESSING` or `_FINISHED`.
        loss: None: not reported.
    """

    number: int
    job: int
    trial: int
    fold: int
    parameters: Mapping[str, Any]
    status: str
    loss: float | None


def points_of(tx: Transaction, task_id: int, job: int | None) -> list[Point]:
    """Returns the points of a task that is not broken; empty: it is not a task of hpo-pilot.

    Args:
        tx: a transaction.
        task_id: the task.
        job: only the points of the job with this number; None: all.
    """
    table = [(number, *row) for number, row in enumerate(_read(_encoded(tx, task_id)).rows, 1) if job in (None, row[0])]
    attempts = select(jobs.c.number, jobs.c.status).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id)
    reported = select(point_losses.c.number, point_losses.c.loss).where(point_losses.c.task_id == task_id)
    if job is not None:
        attempts = attempts.where(jobs.c.number == job)
        reported = reported.where(point_losses.c.number.in_([number for number, *_ in table]))
    states = {row.number: JobState(row.status) for row in tx.connection.execute(attempts)}  # the last one counts
    losses = {row.number: row.loss for row in tx.connection.execute(reported)}
    found = []
    for number, its_job, trial, fold, parameters in table:
        state, loss = states.get(its_job), losses.get(number)
        status = _PROCESSING if state in AT_PILOT_STATES else _NEW
        if loss is not None or (state is not None and state.is_over):
            status = _FINISHED
        found.append(Point(number, its_job, trial, fold, parameters, status, loss))
    return found


def trial_of(tx: Transaction, task_id: int, job: int) -> tuple[int, Mapping[str, Any]]:
    """Returns number and point of the trial that a job of one point runs; LookupError: it is not of hpo-pilot."""
    found = next((row for row in _read(_encoded(tx, task_id)).rows if row[0] == job), None)
    if found is None:
        raise LookupError(f"task {task_id} has no trial for job {job}")
    return found[1], found[3]


def set_loss(tx: Transaction, task_id: int, number: int, loss: float | None) -> None:
    """Stores the loss of a point; None removes it."""
    tx.connection.execute(
        delete(point_losses).where(point_losses.c.task_id == task_id, point_losses.c.number == number)
    )
    if loss is not None:
        tx.connection.execute(insert(point_losses).values(task_id=task_id, number=number, loss=loss, modified=tx.now))


def _encoded(tx: Transaction, task_id: int) -> str:
    match = _TASK_ARGUMENT.search(unquote(known_task(tx, task_id).parameters.template))
    return match[1] if match else ""


@dataclass(frozen=True)
class Assignment:
    """The search, generation and points of a task of hpo-pilot.

    Attributes:
        uid: the search's identity in its store.
        members: by the job's number, (trial, fold) of each point that it runs.
        chains: by the number of a trial that goes on from earlier ones, the number of the first of them.
    """

    search: str
    uid: str
    generation: int
    members: Mapping[int, tuple[tuple[int, int], ...]]
    chains: Mapping[int, int]


def assignment_of(tx: Transaction, task_id: int) -> Assignment | None:
    """Returns a task's assignment by its parameters; None: it is not a task of hpo-pilot, or it is broken."""
    try:
        return _read(_encoded(tx, task_id)).assignment
    except InputError:  # its parameters are not valid
        return None


@dataclass(frozen=True)
class _Text:
    """What a `--task` argument says.

    Attributes:
        size: about the bytes of memory for it.
        rows: (job, trial, fold, parameters) of each point; none if the user's text cannot be read.
        assignment: None: it is not of hpo-pilot.
    """

    size: int
    rows: tuple[tuple[int, int, int, Mapping[str, Any]], ...] = ()
    assignment: Assignment | None = None

    @classmethod
    def of(cls, encoded: str) -> Self:
        """Reads the text of a user, who may have written anything."""
        text, rows = b"", []
        try:
            text = zlib.decompressobj().decompress(base64.urlsafe_b64decode(encoded), _MOST_BYTES)
            document = json.loads(text)
            points = {trial: dict(point) for trial, point in document["points"].items()}
            for job, entry in enumerate(document["jobs"], 1):
                for trial, fold, _seed in entry if isinstance(entry[0], list) else [entry]:
                    rows.append((job, int(trial), int(fold), points[str(trial)]))
        except _UNREADABLE:
            return cls(len(encoded) + len(text))
        size = len(encoded) + 10 * len(text)  # small objects take ten times the memory of their text, and more
        try:
            members: dict[int, list[tuple[int, int]]] = {}
            for number, trial, fold, _ in rows:
                members.setdefault(number, []).append((trial, fold))
            assignment = Assignment(
                str(document["search"]),
                str(document["uid"]),
                int(document["generation"]),
                {number: tuple(found) for number, found in members.items()},
                {
                    int(trial): int(said["chain"])
                    for trial, said in document.get("levels", {}).items()
                    if "chain" in said
                },
            )
        except _UNREADABLE:
            return cls(size, tuple(rows))
        return cls(size, tuple(rows), assignment)


class _Recent:
    """The texts that were asked for last; bounded by their sizes, because a text of a few kB may say 8 MB."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, _Text] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def read(self, encoded: str) -> _Text:
        with self._lock:
            if (known := self._found.get(encoded)) is not None:
                self._found.move_to_end(encoded)
                return known
        text = _Text.of(encoded)
        with self._lock:
            if encoded not in self._found:
                self._found[encoded] = text
                self._size += text.size
            while self._size > _KEPT_BYTES or len(self._found) > _KEPT:
                self._size -= self._found.popitem(last=False)[1].size
        return text


#: Texts that are kept, and their bytes.
_KEPT, _KEPT_BYTES = 512, 128 << 20
_read = _Recent().read


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


class _Refused(Exception):
    """The call is refused; iDDS's clients raise the exception named `kind`."""

    def __init__(self, status: HTTPStatus, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


def _no_object(message: str) -> _Refused:
    return _Refused(HTTPStatus.NOT_FOUND, "NoObject", message)


def _wrong(message: str) -> _Refused:
    return _Refused(HTTPStatus.BAD_REQUEST, "WrongParameterException", message)


def _forbidden(message: str) -> _Refused:
    return _Refused(HTTPStatus.FORBIDDEN, "AuthenticationNoPermission", message)


def routes(server: ServerState) -> Sequence[Route]:
    """Returns the routes of one server."""

    def route(prefix: str, path: str, handle: Callable[[ServerState, Request], Any], method: str) -> Route:
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
        for made in (route(prefix, "{id}/{status}/{limit}", _get, "GET"), route(prefix, "{id}/{loss}", _put, "PUT"))
    ]


async def _get(server: ServerState, request: Request) -> list[dict[str, Any]]:
    given = request.path_params
    wanted, status, limit = _number(given["id"], "id"), _status(given["status"]), _number(given["limit"], "limit")

    def work(tx: Transaction) -> list[dict[str, Any]]:
        _, points = _points(tx, server, request, change=False)
        found = [one for one in points if wanted in (None, one.number) and status in (None, one.status)]
        return [{"id": one.number, "parameters": dict(one.parameters), "loss": one.loss} for one in found[:limit]]

    return await server.database.read(work)


async def _put(server: ServerState, request: Request) -> dict[str, Any]:
    given = request.path_params
    wanted, loss = _number(given["id"], "id"), _loss(given["loss"])

    def work(tx: Transaction) -> None:
        task_id, points = _points(tx, server, request, change=True)
        found = [point for point in points if wanted in (None, point.number)]
        if len(found) != 1:
            what = f"no point {given['id']}" if not found else f"{len(found)} points: give the id of one"
            raise _no_object(f"task {task_id} has {what}")
        set_loss(tx, task_id, found[0].number, loss)

    await server.database.read(lambda tx: _points(tx, server, request, change=True))  # refusals must not wait to write
    await server.database.write(work)
    return {"status": 0, "message": "update successfully"}


def _points(tx: Transaction, server: ServerState, request: Request, *, change: bool) -> tuple[int, list[Point]]:
    """Returns the task and the points that the call names, after a check of its sender.

    Raises:
        _Refused: the sender has no right to them, or there are none.
    """
    given = request.path_params
    named = {number for key in ("workload_id", "request_id") if (number := _number(given[key], key)) is not None}
    if len(named) > 1:
        raise _no_object("workload_id and request_id are both the jediTaskID here")
    if not named:
        raise _wrong("One of workload_id and request_id should not be None or empty")
    (task_id,) = named
    caller, job = None, None
    if "capability" in given:
        job = _job_of(tx, server.capabilities.job(given["capability"]), task_id)
    else:
        caller = _caller(server, request)
    member = _MEMBER.fullmatch(given.get("member", "t0f0"))
    if member is None:
        raise _no_object("there is no such point")
    try:
        found = points_of(tx, task_id, job)
    except (NoResultFound, InputError):
        found = []  # there is no such task, or its parameters are not valid
    if not found:
        raise _no_object(f"task {task_id} has no points here")
    if change and caller is not None:
        if caller.role is Role.PILOT:
            raise _forbidden("user role required")
        if refusal := check_owner(tx, caller, task_id):
            raise _forbidden(str(refusal["message"]))
    if "member" in given:
        found = [point for point in found if (point.trial, point.fold) == (int(member[1]), int(member[2]))]
    return task_id, found


def _job_of(tx: Transaction, panda_id: int | None, task_id: int) -> int:
    """Returns the number of a capability's job, which a pilot must have."""
    job = tx.connection.execute(
        select(jobs.c.number).where(jobs.c.panda_id == panda_id, jobs.c.task_id == task_id, AT_PILOT)
    ).first()
    if job is None:
        # One answer for all cases, so that it does not tell which jobs exist.
        raise _forbidden("this address is not of a running job")
    return int(job.number)


def _caller(server: ServerState, request: Request) -> Caller:
    """Returns the caller, by the usual token or by iDDS's header."""
    token = request.headers.get("x-idds-auth-token")
    try:
        if token is None or "authorization" in request.headers:
            return server.tokens.caller(request)
        return server.tokens.verify(f"Bearer {token}", request.headers.get("x-idds-auth-vo"))
    except TokenRefused as error:
        raise _Refused(HTTPStatus.UNAUTHORIZED, "AuthenticationException", str(error)) from None


def _number(text: str, name: str) -> int | None:
    if text == _ANY:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise _wrong(f"{name} must be a number or null, not {text[:100]!r}")
    return int(text)


def _status(text: str) -> str | None:
    if text == _ANY:
        return None
    status = _STATUSES.get(text.rpartition(".")[2].lower())
    if status is None:
        raise _wrong(f"status must be New, Processing, Finished or null, not {text[:100]!r}")
    return status


def _loss(text: str) -> float | None:
    if text in (_ANY, "None"):  # the latter is what iDDS's client makes of None
        return None
    try:
        loss = float(text)
    except ValueError:
        loss = math.nan
    if not math.isfinite(loss):
        raise _wrong(f"the loss must be a finite number or null, not {text[:100]!r}")
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
