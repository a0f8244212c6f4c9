"""BigPanDA's paths ``/tasks/``, ``/task/<id>/``, ``/jobs/``, ``/job``: at the root, and below ``/bigmon/<key>``.

At the root a caller shows a token, as everywhere. Scripts written for a BigPanDA know no tokens: for them there is the
second place, whose path has a key that nobody can guess, and that the work folder keeps to its owner. Whoever has it
may read what every user of the server may, and change nothing. The answer is always JSON, as with ``?json`` there.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

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

#: Jobs, or tasks, that are read and written out at once; others' calls come in between.
_SLICE = 250
_SLICE_WITH_METADATA = 20

_Handler = Callable[["Server", Question, Request], Awaitable[Response]]


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
    ids = _one(question, "jeditaskid", request.path_params.get("task_id"))

    def read(tx: Transaction) -> dict[str, Any] | None:
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
    fields = question.words("fields")
    with_metadata = "metastruct" in fields | question.words("extra")
    records = JobRecords(fields, with_metadata=with_metadata)

    async def parts() -> AsyncIterator[str]:
        yield f'{{"selectionsummary":{dump(found.summary)},"errsByCount":{dump(found.errors)},"jobs":['
        async for text in _many(server, found.panda_ids, _SLICE_WITH_METADATA if with_metadata else _SLICE, records.of):
            yield text
        yield "]}"

    return _streamed(parts())


async def _job(server: Server, question: Question, request: Request) -> Response:
    """One job with its files."""
    ids = _one(question, "pandaid", request.path_params.get("panda_id"))
    find = _finder(server)

    def read(tx: Transaction) -> dict[str, Any] | None:
        row = tx.connection.execute(select(jobs).where(jobs.c.panda_id == ids[0])).one_or_none()
        if row is None:
            return None
        (record,) = JobRecords(frozenset(), with_metadata=True).of(tx, ids)
        record["jobparameters"] = parameters_of(tx, row)
        files = files_of(tx, row, find)
        return {"files": files, "job": record, "dsfiles": [file for file in files if file["type"] != "pseudo_input"]}

    found = await server.database.read(read)
    return _error(HTTPStatus.NOT_FOUND, f"there is no job {ids[0]}") if found is None else _json(found)


def _one(question: Question, name: str, in_path: str | None) -> list[int]:
    """The one id that is asked about, in the path or as a parameter."""
    ids = question.numbers(name) if in_path is None else Question({name: in_path}).numbers(name)
    if len(ids) != 1:
        raise QuestionError(f"one {name} is wanted")
    return ids


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
