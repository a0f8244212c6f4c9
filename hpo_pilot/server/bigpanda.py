"""BigPanDA's JSON pages of tasks and jobs, as pandamon and other scripts read them."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.server import bigpanda_query
from hpo_pilot.server.bigpanda_query import ERRORS, Question, QuestionError, duration, moment
from hpo_pilot.server.database import AnyRow, Transaction, in_slices, job_documents, jobs, tasks
from hpo_pilot.server.descriptions import describe, scope
from hpo_pilot.server.envelope import dump
from hpo_pilot.server.monitoring import FindFile
from hpo_pilot.server.queues import find_output
from hpo_pilot.server.task_parameters import JOB_FIELDS, ZERO_FIELDS, KnownTask, known_task, resource_type
from hpo_pilot.server.tokens import Role, TokenRefused

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server


# Jobs' metadata: BigPanDA's `metastruct` and `jobs_metadata`.
#
# hpogrid's report (hpogrid 1.3.3, `components/validation.py`) takes a job's `user_job_metadata` only where it has no
# key
# but its own. So what the runner says to hpo-pilot's service stands beside it here, not in it, wherever the rest is
# hpogrid's.

#: `kHPOGridMetadataFormat` of `hpogrid/core/defaults.py`.
HPOGRID_KEYS = frozenset(
    {
        *("task_time_s", "start_timestamp", "project_name", "result", "hyperparameters", "metric"),
        *("start_datetime", "best_config", "best_metric_score", "end_datetime", "mode"),
    }
)
_USER, _OURS = "user_job_metadata", "hpo_pilot"


def understood(text: str) -> Any:
    """A job report as scripts get it; None: it is no JSON, and PanDA leaves it out as well."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return None
    merged = report.get(_USER) if isinstance(report, dict) else None
    if isinstance(merged, dict) and _OURS in merged and merged.keys() - {_OURS} <= HPOGRID_KEYS:
        rest = {key: value for key, value in merged.items() if key != _OURS}
        report = {**report, _USER: rest, _OURS: merged[_OURS]}
        if not rest:
            del report[_USER]
    return report


def of_jobs(tx: Transaction, panda_ids: Sequence[int]) -> dict[int, Any]:
    """The metadata of those of the jobs that have some."""
    found = {}
    for some in in_slices(panda_ids):
        query = select(job_documents.c.panda_id, job_documents.c.meta_data).where(
            job_documents.c.panda_id.in_(some), job_documents.c.meta_data.is_not(None)
        )
        for row in tx.connection.execute(query):
            if (report := understood(row.meta_data)) is not None:
                found[row.panda_id] = report
    return found


def of_tasks(tx: Transaction, task_ids: Sequence[int]) -> dict[int, dict[int, Any]]:
    """The metadata of the tasks' finished jobs, by task and PandaID."""
    found: dict[int, dict[int, Any]] = {task_id: {} for task_id in task_ids}
    for some in in_slices(task_ids):
        query = (
            select(jobs.c.task_id, jobs.c.panda_id, job_documents.c.meta_data)
            .join(job_documents, job_documents.c.panda_id == jobs.c.panda_id)
            .where(
                jobs.c.task_id.in_(some),
                jobs.c.status == JobState.FINISHED.value,
                job_documents.c.meta_data.is_not(None),
            )
            .order_by(jobs.c.panda_id)
        )
        for row in tx.connection.execute(query):
            if (report := understood(row.meta_data)) is not None:
                found[row.task_id][row.panda_id] = report
    return found


#: The file, among the server's, that holds the key.
KEY_FILE = "bigmon.key"

_KEY_BYTES = 32


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


#: What the list of jobs does not show: the text that every job has, and what has calls of its own.
_LEFT_OUT = frozenset({"jobparameters", "metadata"})
_EMPTY = {name.lower(): None for name in JOB_FIELDS} | dict.fromkeys((name.lower() for name in ZERO_FIELDS), 0)


class JobRecords:
    """Makes records; what all jobs of a task share is made once."""

    def __init__(self, fields: frozenset[str], *, with_metadata: bool) -> None:
        """Makes none yet.

        Args:
            fields: those that are wanted; empty: all.
            with_metadata: whether `metastruct`, a job's metadata, is.
        """
        self._fields, self._with_metadata = fields, with_metadata
        self._common: dict[int, dict[str, Any]] = {}

    def of(self, tx: Transaction, panda_ids: Sequence[int]) -> list[dict[str, Any]]:
        """The jobs with these ids, in this order; one that is gone is left out."""
        rows: dict[int, AnyRow] = {}
        for some in in_slices(panda_ids):
            rows |= {row.panda_id: row for row in tx.connection.execute(select(jobs).where(jobs.c.panda_id.in_(some)))}
        reports = of_jobs(tx, panda_ids) if self._with_metadata else {}
        records = []
        for panda_id in panda_ids:
            if panda_id in rows:
                record = self._record(tx, rows[panda_id])
                records.append(record | {"metastruct": reports[panda_id]} if panda_id in reports else record)
        return records

    def _record(self, tx: Transaction, job: AnyRow) -> dict[str, Any]:
        if job.task_id not in self._common:
            self._common[job.task_id] = _of_task(known_task(tx, job.task_id))
        common = self._common[job.task_id]
        record = common | _of_job(tx.now, job) | {"jobname": f"{common['taskname']}.{job.panda_id}"}
        if self._fields:
            return {name: value for name, value in record.items() if name in self._fields}
        return record


def _of_task(known: KnownTask) -> dict[str, Any]:
    """What all jobs of a task have."""
    parameters = known.parameters
    sample = parameters.job(task_id=known.task_id, number=1, attempt_nr=1)
    outputs = [file for file in sample.files if file.kind == "output"]
    common = {name: value for name, value in _EMPTY.items() if name not in _LEFT_OUT}
    return common | {
        "jeditaskid": known.task_id,
        "taskid": known.task_id,
        "reqid": known.task_id,
        "jobsetid": known.task_id,
        "taskname": known.name,
        "produsername": known.user_name,
        "produserid": known.user_name,
        "vo": known.vo,
        "atlasrelease": parameters.params.get("transUses"),
        "homepackage": parameters.params.get("transHome"),
        "transformation": parameters.transformation.rsplit("/", 1)[-1],
        "workinggroup": parameters.working_group or None,
        "processingtype": parameters.processing_type,
        "cmtconfig": parameters.architecture,
        "container_name": parameters.container or None,
        "destinationdblock": sample.files[0].dataset if sample.files else None,
        "nevents": parameters.n_events_per_job,
        "noutputdatafiles": len(outputs),
        "minramunit": "MB",
        "lockedby": "jedi",
        "category": "run",
        "eventservice": "ordinary",
    }


def _of_job(now: float, job: AnyRow) -> dict[str, Any]:
    over = JobState(job.status).is_over
    end = job.ended if over else now
    seconds = max(0.0, end - job.started) if job.started and end else 0.0
    wait = max(0.0, (job.started or end or now) - job.created)
    measured = json.loads(job.report) if job.report else {}
    return {
        **{low: value for name, value in measured.items() if (low := name.lower()) in _EMPTY},
        "pandaid": job.panda_id,
        "jobdefinitionid": 0,
        "attemptnr": job.attempt_nr,
        "maxattempt": job.max_attempt,
        "jobstatus": job.status,
        "jobsubstatus": job.sub_status or "",
        "commandtopilot": job.command,
        "specialhandling": "dm" if job.debug else "",
        "computingsite": job.site or job.queue or None,
        "computingelement": job.computing_element,
        "modificationhost": job.node or "",
        "schedulerid": job.scheduler_id or "",
        "pilotid": job.pilot_id or "",
        "batchid": job.batch_id or "",
        "prodsourcelabel": job.label,
        "assignedpriority": job.priority,
        "currentpriority": job.priority,
        "corecount": job.core_count,
        "minramcount": job.ram_mb,
        "maxwalltime": job.max_walltime,
        "resourcetype": resource_type(job.core_count, job.ram_mb),
        "resource_type": resource_type(job.core_count, job.ram_mb),
        "jobmetrics": job.job_metrics or "",
        "creationtime": moment(job.created),
        "modificationtime": moment(job.modified),
        "statechangetime": moment(job.state_changed),
        "starttime": moment(job.started),
        "endtime": moment(job.ended),
        "durationsec": int(seconds),
        "durationmin": round(seconds / 60),
        "duration": duration(seconds),
        "waittime": duration(wait),
        "errorinfo": _errors(job),
        "transexitcode": "" if job.trans_exit_code is None else str(job.trans_exit_code),
        "piloterrorcode": job.pilot_error_code or 0,
        "piloterrordiag": job.pilot_error_diag or "",
        "exeerrorcode": job.exe_error_code or 0,
        "exeerrordiag": job.exe_error_diag or "",
        "jobdispatchererrorcode": job.dispatcher_error_code or 0,
        "jobdispatchererrordiag": job.dispatcher_error_diag or "",
        "taskbuffererrorcode": job.buffer_error_code or 0,
        "taskbuffererrordiag": job.buffer_error_diag or "",
    }


def _errors(job: AnyRow) -> str:
    """The errors in one text, as BigPanDA shows them."""
    said = []
    for source, _, code_column, diag_column in ERRORS:
        code = getattr(job, code_column)
        if code:
            diag = getattr(job, diag_column) if diag_column else None
            said.append(f"{source} error {code}: {diag}" if diag else f"{source} error {code}")
    return "; ".join(said)


def files_of(tx: Transaction, job: AnyRow, find: FindFile) -> list[dict[str, Any]]:
    """A job's files, those that a storage has with their sizes."""
    known = known_task(tx, job.task_id)
    described = describe(tx, job)
    place = {dataset: number for number, dataset in enumerate(_datasets(known), start=1)}
    found = []
    for file in described["Files"]:
        path = find(file["lfn"]) if file["type"] != "pseudo_input" else None
        size = path.stat().st_size if path is not None and path.is_file() else 0
        found.append(
            {name.lower(): value for name, value in file.items()}
            | {
                "fsize": size,
                "fsizemb": f"{size / 1e6:.2f}",
                "datasetname": file["dataset"],
                "datasetid": job.task_id * 100 + place.get(file["dataset"], 0),
                "scope": file["scope"] or (scope(file["dataset"]) if file["type"] != "pseudo_input" else None),
                "creationdate": moment(job.created),
            }
        )
    return found


def _datasets(known: KnownTask) -> list[str]:
    parameters = known.parameters
    first = [parameters.sequence_dataset] if parameters.sequence_offset is not None else []
    return [*first, *parameters.output_datasets]


def parameters_of(tx: Transaction, job: AnyRow) -> str:
    """What the job's transformation is called with."""
    known = known_task(tx, job.task_id)
    return known.parameters.job(task_id=job.task_id, number=job.number, attempt_nr=job.attempt_nr).job_pars


# BigPanDA's paths ``/tasks/``, ``/task/<id>/``, ``/jobs/``, ``/job``: at the root, and below ``/bigmon/<key>``.
#
# At the root a caller shows a token, as everywhere. Scripts written for a BigPanDA know no tokens: for them there is
# the
# second place, whose path has a key that nobody can guess, and that the work folder keeps to its owner. Whoever has
# it
# may read what every user of the server may, and change nothing. The answer is always JSON, as with ``?json`` there.

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
    ids = await server.database.read(lambda tx: bigpanda_query.task_ids(tx, question))
    extra = question.words("extra")
    fields = question.words("fields")

    def read(tx: Transaction, some: list[int]) -> list[dict[str, Any]]:
        records = bigpanda_query.records(tx, some)
        counts = bigpanda_query.job_state_counts(tx, some) if "jobstatecount" in extra else {}
        reports = of_tasks(tx, some) if "metastruct" in extra else {}
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
            "task": bigpanda_query.record(tx, row)
            | {"job_state_count": bigpanda_query.job_state_counts(tx, ids)[ids[0]]},
            "taskparams": json.loads(row.params),
            "datasets": bigpanda_query.datasets(tx, row),
        }

    found = await server.database.read(read)
    return _error(HTTPStatus.NOT_FOUND, f"there is no task {ids[0]}") if found is None else _json(found)


async def _jobs(server: Server, question: Question, request: Request) -> Response:
    """A list of jobs, what they have in common, and their errors."""
    found = await server.database.read(lambda tx: bigpanda_query.find(tx, question))
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
