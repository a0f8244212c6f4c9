"""BigPanDA's paths: ``/tasks/``, ``/task/<id>/``, ``/jobs/``, ``/job``; below the server's root, and below ``/bigmon/<key>``.

At the root a caller shows a token, as everywhere. Scripts written for a BigPanDA know no tokens: for them there is the
second place, whose path has a key that nobody can guess, and that the work folder keeps to its owner. Whoever has it
may read what every user of the server may, and change nothing. The answer is JSON, whether ``json`` is asked for or not.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Role, TokenRefused
from hpo_pilot.server.bigpanda import job_query, metadata, task_records
from hpo_pilot.server.bigpanda.job_records import JobRecords, files_of, parameters_of
from hpo_pilot.server.bigpanda.question import Question, QuestionError
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.json_text import dump
from hpo_pilot.server.taskbuffer.job_pages import FindFile
from hpo_pilot.server.taskbuffer.queuedata import find_output

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server

log = logging.getLogger(__name__)

#: The file, among the server's, that holds the key.
KEY_FILE = "bigmon.key"

_KEY_BYTES = 32
#: Jobs, or tasks, that are read and written out at once; others' calls come in between.
_SLICE = 250
_SLICE_WITH_METADATA = 20

_Handler = Callable[["Server", Question, Request], Awaitable[Response]]


class ReadingKey:
    """The key in the path under which everybody may read."""

    def __init__(self, file: Path) -> None:
        """Reads the key; makes it if need be.

        Raises:
            InputError: it cannot be read or written.
        """
        try:
            try:
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                self._key = file.read_text().strip()
            else:
                self._key = secrets.token_urlsafe(_KEY_BYTES)
                with os.fdopen(descriptor, "w") as stream:
                    stream.write(self._key)
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: {error}; without it another is made") from error
        if len(self._key) < _KEY_BYTES:
            raise InputError(f"{file} is damaged: without it another is made")

    def fits(self, text: str) -> bool:
        """Whether this is the key."""
        return hmac.compare_digest(self._key.encode(), text.encode("utf-8", "replace"))


def routes(server: Server) -> list[Route]:
    """The routes of one server."""
    found = []
    for path, handle in _PATHS.items():
        for prefix in ("", "/bigmon/{key}"):
            for tail in ("", "/"):
                found.append(Route(prefix + path + tail, _answering(server, handle), methods=["GET"]))
    return found


def _answering(server: Server, handle: _Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if (refused := _refusal(server, request)) is not None:
            return refused
        try:
            return await handle(server, Question(dict(request.query_params)), request)
        except QuestionError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        except DBAPIError as error:
            log.error("%s: %s", request.url.path.rsplit("/bigmon/", 1)[0], error.orig)
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "database error in the PanDA server")

    return answer


def _refusal(server: Server, request: Request) -> Response | None:
    """None: whoever calls may read."""
    key = request.path_params.get("key")
    if key is not None:
        return None if server.reading_key.fits(key) else _error(HTTPStatus.NOT_FOUND, "there is nothing here")
    try:
        caller = server.gate.caller(request)
    except TokenRefused as error:
        return _error(
            HTTPStatus.UNAUTHORIZED,
            f"{error}; a program that knows no tokens takes the address in the work folder's tokens/bigmon.url",
        )
    return _error(HTTPStatus.FORBIDDEN, "user role required") if caller.role is Role.PILOT else None


def _error(status: HTTPStatus, message: str) -> Response:
    return _json({"error": message, "message": message}, status)


def _json(content: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(dump(content), status, media_type="application/json", headers=_HEADERS)


_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


def _streamed(parts: AsyncIterator[str]) -> Response:
    return StreamingResponse(parts, media_type="application/json", headers=_HEADERS)


async def _many(
    server: Server, ids: list[int], size: int, read: Callable[[Transaction, list[int]], list[dict[str, Any]]]
) -> AsyncIterator[str]:
    """The records of `ids`, written out slice by slice, with commas between."""
    first = True
    for start in range(0, len(ids), size):
        some = ids[start : start + size]
        records = await server.database.read(lambda tx, some=some: read(tx, some))  # type: ignore[misc]
        if records:
            text = await asyncio.to_thread(dump, records)
            yield text[1:-1] if first else f",{text[1:-1]}"
            first = False


async def _tasks(server: Server, question: Question, request: Request) -> Response:
    """A list of tasks."""
    if question.text("jeditaskid") == "" and (one := request.path_params.get("task_id")):
        question = Question({**question.given, "jeditaskid": one})
    ids = await server.database.read(lambda tx: task_records.task_ids(tx, question))
    extra = question.words("extra")
    fields = question.words("fields")

    def read(tx: Transaction, some: list[int]) -> list[dict[str, Any]]:
        records = task_records.records(tx, some)
        counts = task_records.job_state_counts(tx, some) if "jobstatecount" in extra else {}
        reports = metadata.of_tasks(tx, some) if "metastruct" in extra else {}
        for record in records:
            task_id = record["jeditaskid"]
            if task_id in counts:
                record["job_state_count"] = counts[task_id]
            if task_id in reports:
                record["jobs_metadata"] = reports[task_id]
        if fields:
            return [{name: value for name, value in record.items() if name in fields} for record in records]
        return records

    async def parts() -> AsyncIterator[str]:
        yield "["
        async for text in _many(server, ids, _SLICE_WITH_METADATA if "metastruct" in extra else _SLICE, read):
            yield text
        yield "]"

    return _streamed(parts())


async def _task(server: Server, question: Question, request: Request) -> Response:
    """One task: its record, its parameters as submitted, its datasets."""
    ids = question.numbers("jeditaskid") or Question({"jeditaskid": request.path_params.get("task_id", "")}).numbers(
        "jeditaskid"
    )
    if len(ids) != 1:
        raise QuestionError("one jeditaskid is wanted")

    def read(tx: Transaction) -> dict[str, Any] | None:
        import json

        row = tx.connection.execute(select(tasks).where(tasks.c.task_id == ids[0])).one_or_none()
        if row is None:
            return None
        return {
            "task": task_records.record(tx, row) | {"job_state_count": task_records.job_state_counts(tx, ids)[ids[0]]},
            "taskparams": json.loads(row.params),
            "datasets": task_records.datasets(tx, row),
        }

    found = await server.database.read(read)
    return _error(HTTPStatus.NOT_FOUND, f"there is no task {ids[0]}") if found is None else _json(found)


async def _jobs(server: Server, question: Question, request: Request) -> Response:
    """A list of jobs, what they have in common, and their errors."""
    found = await server.database.read(lambda tx: job_query.find(tx, question))
    fields, extra = question.words("fields"), question.words("extra")
    with_metadata = "metastruct" in fields | extra
    records = JobRecords(fields)

    def read(tx: Transaction, some: list[int]) -> list[dict[str, Any]]:
        made = records.of(tx, some)
        if with_metadata:
            reports = metadata.of_jobs(tx, some)
            for record, panda_id in zip(made, some, strict=False):
                if panda_id in reports:
                    record["metastruct"] = reports[panda_id]
        return made

    async def parts() -> AsyncIterator[str]:
        yield f'{{"selectionsummary":{dump(found.summary)},"errsByCount":{dump(found.errors)},"jobs":['
        async for text in _many(server, found.panda_ids, _SLICE_WITH_METADATA if with_metadata else _SLICE, read):
            yield text
        yield "]}"

    return _streamed(parts())


async def _job(server: Server, question: Question, request: Request) -> Response:
    """One job with its files."""
    ids = question.numbers("pandaid") or Question({"pandaid": request.path_params.get("panda_id", "")}).numbers(
        "pandaid"
    )
    if len(ids) != 1:
        raise QuestionError("one pandaid is wanted")
    find = _finder(server)

    def read(tx: Transaction) -> dict[str, Any] | None:
        row = tx.connection.execute(select(jobs).where(jobs.c.panda_id == ids[0])).one_or_none()
        if row is None:
            return None
        (record,) = JobRecords(frozenset()).of(tx, ids)
        record |= {"jobparameters": parameters_of(tx, row), "metastruct": metadata.of_jobs(tx, ids).get(ids[0])}
        files = files_of(tx, row, find)
        return {"files": files, "job": record, "dsfiles": [file for file in files if file["type"] != "pseudo_input"]}

    found = await server.database.read(read)
    return _error(HTTPStatus.NOT_FOUND, f"there is no job {ids[0]}") if found is None else _json(found)


def _finder(server: Server) -> FindFile:
    def find(name: str) -> Path | None:
        return server.storage.find(name) or find_output(server.queues, name)

    return find


_PATHS: dict[str, _Handler] = {
    "/tasks": _tasks,
    "/task": _task,
    "/task/{task_id}": _task,
    "/tasknew/{task_id}": _task,
    "/jobs": _jobs,
    "/job": _job,
    "/job/{panda_id}": _job,
}
