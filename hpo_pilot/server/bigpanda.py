"""BigPanDA's JSON pages of tasks and jobs, for programs written for a BigPanDA: pbook up to 1.5, pandamon, hpogrid.

The paths are ``/tasks/``, ``/task/<id>/``, ``/jobs/`` and ``/job``, at the root and below ``/bigmon/<key>``. At the
root a caller sends a token, as everywhere. Programs without tokens use the second place: its path has a random key,
which only the owner of the work folder can read. A caller with the key may read what every user of the server may
read, and may change nothing. The answer is always JSON, as with ``?json`` on a BigPanDA.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from http import HTTPStatus
from operator import attrgetter
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, case, or_, select
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hpo_pilot.databases import among
from hpo_pilot.jobs import OVER_TASKS, JobState, TaskState
from hpo_pilot.jobs.results import HPOGRID_KEYS
from hpo_pilot.server.calls import guarded
from hpo_pilot.server.database import LARGEST_ID, AnyRow, Transaction, in_slices, jobs, last_attempts, tasks
from hpo_pilot.server.descriptions import NO_JOB, dataset_id, file_fields, job_fields, task_fields, task_part
from hpo_pilot.server.job_records import ERRORS, FindFile, JobRecord, job_counts, job_records, job_reports
from hpo_pilot.server.monitoring import newest_jobs
from hpo_pilot.server.replies import dump, utc
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.task_parameters import KnownTask, TaskParameters, TaskParametersError, known_task, resource_type
from hpo_pilot.server.tokens import Role, TokenRefused

_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

#: Number of jobs or tasks that are read and written at once. Other calls can run between two slices.
_SLICE = 250
_SLICE_WITH_METADATA = 20

#: Number of jobs and tasks in an answer: the default, and the largest.
DEFAULT_JOBS, MOST_JOBS = 2000, 20_000
DEFAULT_TASKS, MOST_TASKS = 1000, 10_000

_DAY = 86_400.0
_LONGEST = 100_000.0  # days
_MOST_VALUES = 1000
_TIME = "%Y-%m-%d %H:%M:%S"  # panda-client reads it


_Handler = Callable[[ServerState, "Question", Request], Awaitable[Response]]


def routes(server: ServerState) -> list[Route]:
    """Returns the routes of one server."""
    return [
        Route(prefix + path + tail, _answering(server, handle), methods=["GET"])
        for path, handle in _PATHS.items()
        for prefix in ("", "/bigmon/{key}")
        for tail in ("", "/")
    ]


def _answering(server: ServerState, handle: _Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await handle(server, Question.of(request, _FILTERS[handle]), request)
        except QuestionError as error:
            return _error(str(error), HTTPStatus.BAD_REQUEST)

    async def checked(request: Request) -> Response:
        return _refusal(server, request) or await guarded(handle.__name__, answer(request), _error)

    return checked


def _refusal(server: ServerState, request: Request) -> Response | None:
    """Returns the refusal; None if the caller may read."""
    key = request.path_params.get("key")
    if key is not None:
        fits = hmac.compare_digest(server.reading_key, key.encode("utf-8", "replace"))
        return None if fits else _error("there is nothing here", HTTPStatus.NOT_FOUND)
    try:
        caller = server.tokens.caller(request)
    except TokenRefused as error:
        return _error(
            f"{error}; for a program without tokens, use the address in tokens/bigmon.url of the work folder",
            HTTPStatus.UNAUTHORIZED,
        )
    return _error("user role required", HTTPStatus.FORBIDDEN) if caller.role is Role.PILOT else None


def _error(message: str, status: int) -> Response:
    return _json({"error": message, "message": message}, status)


def _json(content: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(dump(content), status, media_type="application/json", headers=_HEADERS)


_Read = Callable[[Transaction, list[int]], list[dict[str, Any]]]


def _streamed(server: ServerState, ids: list[int], size: int, read: _Read, begin: str, end: str) -> Response:
    """Returns the records of `ids` as JSON between two texts; they are read in slices of `size`."""

    async def parts() -> AsyncIterator[str]:
        yield begin
        comma = ""
        for some in in_slices(ids, size):
            if records := await server.database.read(lambda tx, some=some: read(tx, some)):  # type: ignore[misc]
                text = await asyncio.to_thread(dump, records)
                yield comma + text[1:-1]
                comma = ","
        yield end

    return StreamingResponse(parts(), media_type="application/json", headers=_HEADERS)


async def _tasks(server: ServerState, question: Question, request: Request) -> Response:
    """Answers with a list of tasks."""
    ids = await server.database.read(lambda tx: find_tasks(tx, question))
    extra = question.words("extra")

    def read(tx: Transaction, some: list[int]) -> list[dict[str, Any]]:
        records = [task_record(tx, row) for row in _rows(tx, tasks.c.task_id, some)]
        counts = job_state_counts(tx, some) if "jobstatecount" in extra else {}
        reports = reports_by_task(tx, some) if "metastruct" in extra else {}
        for record in records:
            task_id = record["jeditaskid"]
            if task_id in counts:
                record["job_state_count"] = counts[task_id]
            if task_id in reports:
                record["jobs_metadata"] = reports[task_id]
        return records

    return _streamed(server, ids, _SLICE_WITH_METADATA if "metastruct" in extra else _SLICE, read, "[", "]")


async def _task(server: ServerState, question: Question, request: Request) -> Response:
    """Answers with one task: its record, its parameters as submitted, and its datasets."""
    task_id = _one(question, "jeditaskid", request.path_params.get("task_id"))

    def read(tx: Transaction) -> dict[str, Any] | None:
        for row in _rows(tx, tasks.c.task_id, [task_id]):
            counts = job_state_counts(tx, [task_id])
            record = task_record(tx, row) | {"job_state_count": counts[task_id]}
            del record["datasets"]
            return {
                "task": record,
                "taskparams": json.loads(row.params),
                "datasets": datasets(row, _parameters(tx, row)),
            }
        return None

    found = await server.database.read(read)
    return _error(f"there is no task {task_id}", HTTPStatus.NOT_FOUND) if found is None else _json(found)


async def _jobs(server: ServerState, question: Question, request: Request) -> Response:
    """Answers with a list of jobs, a summary of them, and their errors."""
    panda_ids, summary, errors = await server.database.read(lambda tx: find_jobs(tx, question))
    with_metadata = "metastruct" in question.words("extra")

    def read(tx: Transaction, some: list[int]) -> list[dict[str, Any]]:
        return describe_jobs(tx, some, with_metadata=with_metadata)

    begin = f'{{"selectionsummary":{dump(summary)},"errsByCount":{dump(errors)},"jobs":['
    return _streamed(server, panda_ids, _SLICE_WITH_METADATA if with_metadata else _SLICE, read, begin, "]}")


async def _job(server: ServerState, question: Question, request: Request) -> Response:
    """Answers with one job and its files."""
    panda_id = _one(question, "pandaid", request.path_params.get("panda_id"))

    def read(tx: Transaction) -> dict[str, Any] | None:
        for job in job_records(tx, _rows(tx, jobs.c.panda_id, [panda_id])):
            (record,) = describe_jobs(tx, [panda_id], with_metadata=True)
            record["jobparameters"] = job.texts.job_pars
            files = _files(job, server.find_file)
            return {"files": files, "job": record, "dsfiles": [one for one in files if one["type"] != "pseudo_input"]}
        return None

    found = await server.database.read(read)
    return _error(f"there is no job {panda_id}", HTTPStatus.NOT_FOUND) if found is None else _json(found)


_PATHS: dict[str, _Handler] = {
    "/tasks": _tasks,
    "/task": _task,
    "/task/{task_id}": _task,
    "/jobs": _jobs,
    "/job": _job,
    "/job/{panda_id}": _job,
}

#: The parameters of each page that have an effect.
_FILTERS: dict[_Handler, tuple[str, ...]] = {
    _tasks: ("jeditaskid", "reqid", "taskname", "username", "status", "superstatus", "days", "limit", "extra"),
    _task: ("jeditaskid",),
    _jobs: ("jeditaskid", "pandaid", "jobstatus", "mode", "days", "limit", "extra"),
    _job: ("pandaid",),
}
#: Parameters that select nothing, which programs for a BigPanDA send: pbook up to 1.5, hpogrid.
_NO_FILTERS = frozenset({"json", "datasets", "sync", "timestamp"})


def _one(question: Question, name: str, in_path: str | None) -> int:
    """Returns the one id in the path or the parameter."""
    ids = (question if in_path is None else Question({name: in_path})).numbers(name)
    if len(ids) != 1:
        raise QuestionError(f"give one {name}")
    return ids[0]


# Parameters. Several values of one parameter have ``|`` or ``,`` between them, ``*`` is a wildcard, ``!`` in front
# negates. A BigPanDA passes over a parameter that it does not know; here it is refused, because the answer would have
# all records where some were wanted.


class QuestionError(Exception):
    """A parameter is not valid; the message names it."""


@dataclass(frozen=True)
class Question:
    """The parameters of a call; of repeated ones, the last value."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, request: Request, known: Sequence[str]) -> Question:
        """Returns the parameters of a request.

        Raises:
            QuestionError: one of them is not known.
        """
        given = {name.lower(): value for name, value in request.query_params.items()}
        if unknown := sorted(given.keys() - _NO_FILTERS - set(known)):
            named = ", ".join(name[:50] for name in unknown[:10])
            raise QuestionError(f"this page has no filter {named}; it has {', '.join(known)}")
        return cls(given)

    def text(self, name: str) -> str:
        """Returns a parameter; empty: it is not given."""
        return self.given.get(name, "").strip()

    def limit(self, default: int, most: int) -> int:
        """Returns the number of records wanted, at most `most`."""
        text = self.text("limit")
        if not text:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise QuestionError(f"limit must be a whole number, not {text[:50]!r}")
        return min(int(text), most)

    def numbers(self, name: str) -> list[int]:
        """Returns ids; empty: none are given."""
        found = []
        for value in self.words(name):
            if not value.isdecimal() or len(value) > 19 or int(value) > LARGEST_ID:
                raise QuestionError(f"{name} must be whole numbers, not {value[:50]!r}")
            found.append(int(value))
        return found

    def changed(self, column: Column[float], now: float) -> list[ColumnElement[bool]]:
        """Returns the condition of ``days``; empty: it is not given."""
        text = self.text("days")
        if not text:
            return []
        try:
            days = float(text)
        except ValueError:
            days = -1.0
        if not 0 <= days <= _LONGEST:
            raise QuestionError(f"days must be a number from 0 to {_LONGEST:g}, not {text[:50]!r}")
        return [column >= now - days * _DAY]

    def matches(self, name: str, expression: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """Returns the condition of a parameter on a text; empty: it is not given."""
        values = self.words(name)
        if not values:
            return []
        found = [~_is(expression, value[1:]) for value in values if value.startswith("!")]
        if wanted := [_is(expression, value) for value in values if not value.startswith("!")]:
            found.append(or_(*wanted))
        return [and_(*found)]

    def words(self, name: str) -> list[str]:
        """Returns the values of a parameter."""
        found = [value.strip() for value in self.text(name).replace("|", ",").split(",") if value.strip()]
        if len(found) > _MOST_VALUES:
            raise QuestionError(f"at most {_MOST_VALUES} values in one parameter")
        return found


def _is(expression: ColumnElement[Any], value: str) -> ColumnElement[bool]:
    if "*" not in value:
        return expression == value
    pattern = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return expression.like(pattern, escape="\\")


# Jobs. A call that names a task or jobs looks at all their attempts; any other call looks at the newest jobs. The
# first query reads only what order, summary and errors need; the rest is read for the jobs shown, a slice at a time.

#: The fields of `selectionsummary`, and what they count.
_SUMMARIZED = {
    **{"attemptnr": "row.attempt_nr", "computingsite": "queue", "corecount": "row.core_count"},
    **{"jeditaskid": "row.task_id", "jobstatus": "row.status", "jobsubstatus": "row.sub_status"},
    **{"minramcount": "row.ram_mb", "priorityrange": "row.priority"},
    **{"processingtype": "parameters.processing_type", "prodsourcelabel": "row.label"},
    **{"produsername": "known.user_name", "resourcetype": "resource_type", "schedulerid": "row.scheduler_id"},
    **{"vo": "known.vo"},
}
_LIGHT = (
    *(jobs.c.panda_id, jobs.c.task_id, jobs.c.status, jobs.c.sub_status, jobs.c.attempt_nr, jobs.c.priority),
    *(jobs.c.core_count, jobs.c.ram_mb, jobs.c.label, jobs.c.site, jobs.c.queue, jobs.c.scheduler_id),
    *(jobs.c[column] for _, _, *columns in ERRORS for column in columns if column),
)


def find_jobs(tx: Transaction, question: Question) -> tuple[list[int], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the PandaIDs of the jobs to show, in order, with BigPanDA's `selectionsummary` and `errsByCount`.

    Raises:
        QuestionError: a parameter is not valid.
    """
    query = select(*_LIGHT)
    panda_ids, task_ids = question.numbers("pandaid"), question.numbers("jeditaskid")
    if panda_ids:
        query = query.where(jobs.c.panda_id.in_(panda_ids))
    if task_ids:
        query = query.where(jobs.c.task_id.in_(task_ids))
        if not panda_ids and question.text("mode") != "nodrop":
            # As on a BigPanDA: only the last attempt of each job.
            query = query.where(jobs.c.panda_id.in_(last_attempts(task_ids)))
    if not panda_ids and not task_ids:
        query = query.where(newest_jobs(tx))
    query = query.where(*question.matches("jobstatus", jobs.c.status), *question.changed(jobs.c.modified, tx.now))
    newest_first = query.order_by(jobs.c.modified.desc(), jobs.c.panda_id.desc())
    rows = tx.connection.execute(newest_first.limit(question.limit(DEFAULT_JOBS, MOST_JOBS))).all()
    records = job_records(tx, rows)
    return [row.panda_id for row in rows], _summary(records), _errors_by_count(records)


def _summary(records: Sequence[JobRecord]) -> list[dict[str, Any]]:
    """Counts the values of each field in which the jobs may differ."""
    found = {
        field: Counter("" if value is None else value for value in map(attrgetter(name), records))
        for field, name in _SUMMARIZED.items()
    }
    return [
        {"field": field, "list": [{"kname": name, "kvalue": many} for name, many in counts.most_common()]}
        for field, counts in found.items()
        if counts
    ]


def _errors_by_count(records: Iterable[JobRecord]) -> list[dict[str, Any]]:
    """Returns the errors of failed jobs, the most frequent first, each with the error text of one of its jobs."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for job in records:
        if job.row.status not in (JobState.FAILED, JobState.CANCELLED, JobState.CLOSED):
            continue
        for source, field, code, diag in job.errors:
            category, text = _DESCRIBED.get(f"{source}:{code}", (0, ""))
            entry = {"error": f"{source}:{code}", "codename": field.lower(), "codeval": code, "count": 0}
            entry |= {"diag": diag, "desc": text, "cat": {"name": _CATEGORIES[category], "id": category}}
            found.setdefault((source, code), entry | {"example_pandaid": job.row.panda_id})["count"] += 1
    return sorted(found.values(), key=lambda entry: (-entry["count"], entry["error"]))


_LONGEST_INFO = 300  # characters of `errorinfo`

#: BigPanDA's categories of errors, by their ids.
_CATEGORIES = (
    "Uncategorized",
    "File and Storage Issues",
    "Runtime Failures and Resource Violations",
    "Network and Communication Errors",
    "Job Termination and Kill Signals",
    "Software and Environment Issues",
    "Internal and Unknown Errors",
)
_PAYLOAD_FAILED = "pilot:1305"
#: Category and description of the errors of our pilot (`PilotErrorCode`) and of this server; a BigPanDA has a table.
_DESCRIBED = {
    "pilot:1098": (1, "The disk of the node is full."),
    "pilot:1099": (1, "The sandbox or an input cannot be fetched, or is not valid."),
    "pilot:1137": (1, "An output cannot be stored."),
    "pilot:1144": (4, "The server told the pilot to kill the job."),
    "pilot:1165": (2, "The payload has not written a promised output."),
    "pilot:1201": (4, "The pilot was told to stop."),
    "pilot:1213": (2, "The job ran for longer than its time limit."),
    _PAYLOAD_FAILED: (2, "The payload cannot be started, or its runner failed."),
    "pilot:1319": (6, "The pilot has a defect."),
    "pilot:1325": (5, "The image of the job cannot be run on this node."),
    "jobdispatcher:100": (3, "The server lost the job: its pilot sent no heartbeat."),
    "taskbuffer:100": (4, "The job was killed, or closed with its task."),
}

#: Fields whose unknown value is an empty text, not null.
_TEXTS = (
    *("jobsubstatus", "specialhandling", "modificationhost", "schedulerid", "pilotid", "batchid", "jobmetrics"),
    *("transexitcode", "piloterrordiag", "exeerrordiag", "jobdispatchererrordiag", "taskbuffererrordiag"),
)


def describe_jobs(tx: Transaction, panda_ids: Sequence[int], *, with_metadata: bool) -> list[dict[str, Any]]:
    """Returns the jobs with these ids, in this order; a job that was removed is left out.

    Args:
        tx: a transaction.
        panda_ids: PandaIDs of the jobs.
        with_metadata: adds `metastruct`, the job report.
    """
    reports: dict[int, Any] = {}
    if with_metadata:
        found = job_reports(tx, among(jobs.c.panda_id, panda_ids))
        reports = {row.panda_id: parse_report(row.meta_data) for row in found}
    listed = job_records(tx, _rows(tx, jobs.c.panda_id, panda_ids))
    known = {job.known.task_id: job.known for job in listed}
    shared = {task_id: _lowered(task_part(task)) | _of_task(task) for task_id, task in known.items()}
    records, nothing = [], _lowered(NO_JOB)
    for job in listed:
        record = nothing | _lowered(job_fields(job)) | shared[job.known.task_id] | _of_job(tx.now, job)
        record |= {name: record[name] or "" for name in _TEXTS}
        del record["jobparameters"], record["metadata"]
        if (report := reports.get(job.row.panda_id)) is not None:
            record["metastruct"] = report
        records.append(record)
    return records


def _of_task(known: KnownTask) -> dict[str, Any]:
    """Returns BigPanDA's fields with the same value in all jobs of a task."""
    sample = known.parameters.job(task_id=known.task_id, number=1, attempt_nr=1)
    return {
        "taskname": known.name,
        "transformation": known.parameters.transformation.rsplit("/", 1)[-1],
        "destinationdblock": sample.files[0].dataset if sample.files else None,
        "noutputdatafiles": sum(file.kind == "output" for file in sample.files),
        "category": "run",
        "eventservice": "ordinary",
    }


def _of_job(now: float, job: JobRecord) -> dict[str, Any]:
    """Returns the fields of a job that BigPanDA adds to JobSpec's."""
    end = job.row.ended if job.is_over else now
    seconds = max(0.0, end - job.row.started) if job.row.started and end else 0.0
    return {
        "durationsec": int(seconds),
        "durationmin": round(seconds / 60),
        "duration": duration(seconds),
        "waittime": duration((job.row.started or end or now) - job.row.created),
        "meancorecount": job.reported.get("meanCoreCount"),
        **_error_info(job),
    }


def _error_info(job: JobRecord) -> dict[str, str | None]:
    """Returns the errors of a job as texts, in BigPanDA's form: ``pilot:1305 text ``."""
    errors = job.errors
    text = "".join(f"{source}:{code} {' '.join(diag.split())} " for source, _, code, diag in errors)
    names = [f"{source}:{code}" for source, _, code, _ in errors]
    described = [name for name in names if name in _DESCRIBED]
    # The payload's own errors explain nothing more; of several categories none is the job's.
    counted = [name for name in described if name == _PAYLOAD_FAILED] or described
    categories = {_DESCRIBED[name][0] for name in counted} or {0}
    category = _CATEGORIES[categories.pop() if len(categories) == 1 else 0]
    return {
        "errorinfo": text if len(text) <= _LONGEST_INFO else f"{text[:_LONGEST_INFO]}...",
        "error_desc": "".join(f"{name} - {_DESCRIBED[name][1]} <br>" for name in described),
        "error_category": category if errors else None,
        "transformerrordiag": next((diag for source, _, _, diag in errors if source == "transform"), None),
    }


def _files(job: JobRecord, find: FindFile) -> list[dict[str, Any]]:
    """Returns a job's files, with their sizes if a storage has them."""
    found = []
    for file, fields in zip(job.files, file_fields(job), strict=True):
        size = (file.size(find) or 0) if file.kind != "pseudo_input" else 0
        found.append(
            _lowered(fields)
            | {
                "fsize": size,
                "fsizemb": f"{size / 1e6:.2f}",
                "datasetname": file.dataset,
                "datasetid": dataset_id(job.row.task_id, file.place),
                "creationdate": moment(job.row.created),
            }
        )
    return found


# Tasks.

_TYPE = "anal"  # of every task here: users submit them
_SUPERSTATUS = case((tasks.c.status.in_(OVER_TASKS), tasks.c.status), else_="running")


def find_tasks(tx: Transaction, question: Question) -> list[int]:
    """Returns the ids of the tasks to show, in order.

    Raises:
        QuestionError: a parameter is not valid.
    """
    query = select(tasks.c.task_id).order_by(tasks.c.task_id.desc()).limit(question.limit(DEFAULT_TASKS, MOST_TASKS))
    for name in ("jeditaskid", "reqid"):
        if ids := question.numbers(name):
            query = query.where(tasks.c.task_id.in_(ids))
    query = query.where(
        *question.matches("taskname", tasks.c.name),
        *question.matches("username", tasks.c.user_name),
        *question.matches("status", tasks.c.status),
        *question.matches("superstatus", _SUPERSTATUS),
        *question.changed(tasks.c.modified, tx.now),
    )
    return list(tx.connection.scalars(query))


def task_record(tx: Transaction, task: AnyRow) -> dict[str, Any]:
    """Returns one task; `task` is a whole row."""
    fields, done = _lowered(task_fields(task)), progress(task)
    group = fields["workinggroup"]
    end = task.ended if TaskState(task.status).is_over else None
    parameters = _parameters(tx, task)
    return fields | {
        "tasktype": _TYPE,
        "category": "group analysis" if group else "user analysis",
        "owner": group or task.user_name,
        "framework": fields["framework"] or "jedi",
        "transpath": str(fields["transpath"] or "").rsplit("/", 1)[-1],
        "corecount": fields["corecount"] or 1,
        "eventservice": "ordinary",
        "errordialog": fields["errordialog"] or "",
        "age": round(max(0.0, tx.now - task.created) / _DAY, 1),
        "duration_days": round(max(0.0, (end or tx.now) - task.created) / _DAY, 2),
        "campaign_cut": str(fields["campaign"] or "").partition(":")[2] or fields["campaign"],
        "totev": task.n_jobs,
        "totevrem": max(0, task.n_jobs - task.n_finished),
        "neventsused": task.n_finished,
        "resourcetype": resource_type(parameters.core_count, parameters.ram_mb) if parameters else None,
        "dsinfo": done,
        **done,
        "datasets": datasets(task, parameters, listed=True),
    }


def _parameters(tx: Transaction, task: AnyRow) -> TaskParameters | None:
    """Returns a task's parameters; None: it is broken."""
    try:
        return known_task(tx, task.task_id, task).parameters
    except TaskParametersError:
        return None


def progress(task: AnyRow) -> dict[str, float]:
    """Returns the counts of a task's jobs. BigPanDA counts a task's input files; here each job has one."""
    share = 100.0 / task.n_jobs if task.n_jobs else 0.0
    return {
        "nfiles": task.n_jobs,
        "nfilesfinished": task.n_finished,
        "nfilesfailed": task.n_failed,
        "nfilesmissing": 0,
        "pctfinished": round(task.n_finished * share, 2),
        "pctfailed": round(task.n_failed * share, 2),
    }


def job_state_counts(tx: Transaction, ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Returns the number of jobs in each state, by task; the last of several attempts counts."""
    found = {task_id: {state.value: 0 for state in JobState if state is not JobState.NOT_RUN} for task_id in ids}
    for (task_id, status), n_jobs in job_counts(tx, jobs.c.panda_id.in_(last_attempts(ids))).items():
        found[task_id][status] = n_jobs
    return found


def datasets(task: AnyRow, parameters: TaskParameters | None, *, listed: bool = False) -> list[dict[str, Any]]:
    """Returns the task's datasets: the job numbers, and unless `listed` outputs and logs; none for a broken task."""
    if parameters is None:
        return []
    common = {
        "jeditaskid": task.task_id,
        "status": "done" if TaskState(task.status).is_over else "ready",
        "creationtime": moment(task.created),
        "modificationtime": moment(task.modified),
        "vo": task.vo,
        "site": task.queue or None,
        "masterid": None,
        "streamname": None,
        "nevents": task.n_jobs,
        "neventsused": task.n_finished,
        "nfilesused": task.n_jobs,
        "nfilesonhold": 0,
        "nfileswaiting": 0,
        **progress(task),
    }
    return [
        common
        | {"datasetid": dataset_id(task.task_id, place), "datasetname": name, "containername": name, "type": kind}
        for place, (name, kind) in enumerate(parameters.datasets, start=1)
        if kind == "pseudo_input" or not listed
    ]


# Job reports: BigPanDA's `metastruct` and `jobs_metadata`. The report of hpogrid 1.3.3 (`components/validation.py`)
# takes a job's `user_job_metadata` only if it has hpogrid's keys and no others. In that case
# the runner's part for the service of hpo-pilot is beside it, not in it.

_USER, _OURS = "user_job_metadata", "hpo_pilot"


def parse_report(text: str) -> Any:
    """Returns a job report; None: it is not JSON. PanDA leaves such a report out too."""
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


def reports_by_task(tx: Transaction, task_ids: Sequence[int]) -> dict[int, dict[int, Any]]:
    """Returns the job reports of the tasks' finished jobs, by task and PandaID."""
    found: dict[int, dict[int, Any]] = {task_id: {} for task_id in task_ids}
    for row in job_reports(tx, among(jobs.c.task_id, task_ids), jobs.c.status == JobState.FINISHED.value):
        if (report := parse_report(row.meta_data)) is not None:
            found[row.task_id][row.panda_id] = report
    return found


def _rows(tx: Transaction, key: Column[int], ids: Sequence[int]) -> list[AnyRow]:
    """Returns whole rows in the order of `ids`, without rows that have been deleted."""
    rows = tx.connection.execute(select(key.table).where(among(key, ids)))
    found = {row._mapping[key]: row for row in rows}  # SQLAlchemy's public name
    return [found[one] for one in ids if one in found]


#: BigPanDA's names that are not PanDA's in small letters (panda-bigmon-core 1.1.7, its models).
_RENAMED = {
    "resource_type": "resourcetype",
    "rescueTime": "resquetime",
    "memory_leak": "memoryleak",
    "memory_leak_core": "memoryleakcore",
    "memory_leak_x2": "memoryleakx2",
}


def _lowered(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns PanDA's fields with BigPanDA's names and time format."""
    return {
        _name(name): value.strftime(_TIME) if isinstance(value, datetime) else value for name, value in fields.items()
    }


@cache
def _name(name: str) -> str:
    return _RENAMED.get(name, name.lower())


def moment(seconds: float | None) -> str | None:
    """Returns a time as ``2026-01-31 12:00:00``."""
    return None if (time := utc(seconds)) is None else time.strftime(_TIME)


def duration(seconds: float) -> str:
    """Returns ``1:02:03:04``, days first."""
    minutes, second = divmod(int(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}:{hour:02d}:{minute:02d}:{second:02d}"
