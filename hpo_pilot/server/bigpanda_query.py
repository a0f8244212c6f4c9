"""BigPanDA's parameters, the jobs that they select, and tasks in its form."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.database import AnyRow, Transaction, in_slices, jobs, tasks
from hpo_pilot.server.descriptions import task_fields
from hpo_pilot.server.monitoring import SCANNED
from hpo_pilot.server.task_parameters import TaskParametersError, known_task, resource_type

# What a call asks for: BigPanDA's parameters, as its pages take them.
#
# Several values of one parameter stand with ``|`` or ``,`` between them, ``*`` is a wildcard, ``!`` in front means:
# not.
# Parameters that are not known are passed over, as there.

#: A column, or an expression on some.
Expression: TypeAlias = ColumnElement[Any]

_DAY, _HOUR = 86_400.0, 3600.0
_LONGEST = 100_000.0  # days
_MOST_VALUES = 1000
_LARGEST = 2**63 - 1


class QuestionError(Exception):
    """A parameter makes no sense; the message says which."""


@dataclass(frozen=True)
class Question:
    """The parameters of a call, the last value of each."""

    given: Mapping[str, str]

    def text(self, *names: str) -> str:
        """The first of these parameters that is given; empty: none is."""
        return next((value for name in names if (value := self.given.get(name, "").strip())), "")

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number between `least` and `most`; beyond them it is the one that is nearer."""
        text = self.text(name)
        if not text:
            return default
        if not text.lstrip("-").isdecimal() or len(text) > 18:
            raise QuestionError(f"{name} must be a whole number, not {text[:50]!r}")
        return max(least, min(int(text), most))

    def numbers(self, *names: str) -> list[int]:
        """Ids; empty: none are given."""
        found = []
        for value in _values(self.text(*names)):
            if not value.isdecimal() or len(value) > 19 or int(value) > _LARGEST:
                raise QuestionError(f"{names[0]} must be whole numbers, not {value[:50]!r}")
            found.append(int(value))
        return found

    def words(self, name: str) -> frozenset[str]:
        """What a parameter such as ``extra`` or ``fields`` lists."""
        return frozenset(_values(self.text(name)))

    def times(self, now: float) -> tuple[float | None, float | None]:
        """Between which times, in seconds since the epoch, changes are asked for; None: no bound."""
        if days := self.text("days"):
            return now - self._length("days", days) * _DAY, None
        if hours := self.text("hours"):
            return now - self._length("hours", hours) * _HOUR, None
        return self._date("date_from", 0.0), self._date("date_to", _DAY)

    @staticmethod
    def _length(name: str, text: str) -> float:
        try:
            length = float(text)
        except ValueError:
            length = -1.0
        if not 0 <= length <= _LONGEST:
            raise QuestionError(f"{name} must be a number from 0 to {_LONGEST:g}, not {text[:50]!r}")
        return length

    def _date(self, name: str, of_day: float) -> float | None:
        """A date, or a date and time, in UTC; `of_day` is what a date without a time means of its day."""
        text = self.text(name)
        if not text:
            return None
        try:
            moment = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError) as error:
            raise QuestionError(f"{name} must be a date such as 2026-01-31, not {text[:50]!r}") from error
        return moment + (of_day if len(text) <= 10 else 0.0)

    def matches(self, expression: Expression, *names: str) -> list[ColumnElement[bool]]:
        """The condition that one of these parameters puts on a text; none where none is given."""
        text = self.text(*names)
        return [condition(expression, _values(text))] if text else []

    def wanted(self, value: object, *names: str) -> bool:
        """Whether a text that stands in no column is what one of these parameters asks for."""
        text = self.text(*names)
        return not text or _fits(str(value or ""), _values(text))


def _values(text: str) -> list[str]:
    found = [value.strip() for value in text.replace("|", ",").split(",") if value.strip()]
    if len(found) > _MOST_VALUES:
        raise QuestionError(f"at most {_MOST_VALUES} values in one parameter")
    return found


def condition(expression: Expression, values: Sequence[str]) -> ColumnElement[bool]:
    """That a text is one of `values`, and none of those with a ``!`` in front."""
    not_these = [value[1:] for value in values if value.startswith("!")]
    these = [value for value in values if not value.startswith("!")]
    found = [~_is(expression, value) for value in not_these]
    if these:
        found.append(or_(*(_is(expression, value) for value in these)))
    return and_(*found)


def _is(expression: Expression, value: str) -> ColumnElement[bool]:
    if "*" not in value:
        return expression == value
    pattern = value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return expression.like(pattern, escape="\\")


def _fits(text: str, values: Sequence[str]) -> bool:
    """The same of a text at hand."""
    these = [value for value in values if not value.startswith("!")]
    barred = any(_is_like(text, value[1:]) for value in values if value.startswith("!"))
    return not barred and (not these or any(_is_like(text, value) for value in these))


def _is_like(text: str, value: str) -> bool:
    """Whether a text is `value`, in which ``*`` stands for anything; in time that grows with their product at most."""
    first, *rest = value.split("*")
    if not rest:
        return text == value
    *between, last = rest
    if not text.startswith(first) or len(text) < len(first) + len(last) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in between:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def moment(seconds: float | None) -> str | None:
    """``2026-01-31 12:00:00``; what panda-client reads as a time."""
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def duration(seconds: float) -> str:
    """``1:02:03:04``, days first."""
    minutes, second = divmod(int(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}:{hour:02d}:{minute:02d}:{second:02d}"


# Which jobs a question is about, in which order, and what they have in common.
#
# Of a task, all its attempts are looked at, and of other questions the newest `SCANNED`. Only what order, summary and
# errors need is read of each; the rest follows for those that are shown, a slice at a time (`job_records`).

#: How many jobs are given where the call does not say, and at most.
DEFAULT_JOBS, MOST_JOBS = 2000, 20_000

_SITE = func.coalesce(jobs.c.site, func.nullif(jobs.c.queue, ""))
_LONG = func.coalesce(jobs.c.ended, jobs.c.modified) - jobs.c.started
_NEWEST_JOB = jobs.c.panda_id.desc()
_JOB_ORDERS: dict[str, ColumnElement[Any]] = {
    "time-ascending": jobs.c.modified.asc(),
    "time-descending": jobs.c.modified.desc(),
    "statetime": jobs.c.state_changed.desc(),
    "priority": jobs.c.priority.desc(),
    "attemptnr": jobs.c.attempt_nr.desc(),
    "duration-ascending": _LONG.asc(),
    "duration-descending": _LONG.desc(),
    "duration": _LONG.asc(),
    "PandaID": _NEWEST_JOB,
    "pandaid": _NEWEST_JOB,
}
_LIGHT = (
    *(jobs.c.panda_id, jobs.c.task_id, jobs.c.status, jobs.c.sub_status, jobs.c.attempt_nr, jobs.c.priority),
    *(jobs.c.core_count, jobs.c.ram_mb, jobs.c.label, _SITE.label("site"), jobs.c.scheduler_id),
    *(jobs.c.trans_exit_code, jobs.c.pilot_error_code, jobs.c.pilot_error_diag, jobs.c.exe_error_code),
    *(jobs.c.exe_error_diag, jobs.c.dispatcher_error_code, jobs.c.dispatcher_error_diag),
    *(jobs.c.buffer_error_code, jobs.c.buffer_error_diag, tasks.c.user_name, tasks.c.vo),
)

#: BigPanDA's names of the sources of errors, their code's field, and the columns of code and diagnosis.
ERRORS = (
    ("transformation", "transexitcode", "trans_exit_code", None),
    ("pilot", "piloterrorcode", "pilot_error_code", "pilot_error_diag"),
    ("exe", "exeerrorcode", "exe_error_code", "exe_error_diag"),
    ("jobdispatcher", "jobdispatchererrorcode", "dispatcher_error_code", "dispatcher_error_diag"),
    ("taskbuffer", "taskbuffererrorcode", "buffer_error_code", "buffer_error_diag"),
)


@dataclass(frozen=True)
class Found:
    """What a question found.

    Attributes:
        panda_ids: the jobs to show, in order.
        summary: BigPanDA's `selectionsummary` of them.
        errors: its `errsByCount`.
    """

    panda_ids: list[int]
    summary: list[dict[str, Any]]
    errors: list[dict[str, Any]]


def find(tx: Transaction, question: Question) -> Found:
    """The jobs that a question is about.

    Raises:
        QuestionError: a parameter makes no sense.
    """
    limit, offset = question.number("limit", DEFAULT_JOBS, 0, MOST_JOBS), question.number("offset", 0, 0, 10**9)
    order = _JOB_ORDERS.get(question.text("sortby"), _JOB_ORDERS["time-descending"])
    query = _filtered(select(*_LIGHT).join(tasks, tasks.c.task_id == jobs.c.task_id), tx, question)
    query = query.order_by(order, _NEWEST_JOB)
    kinds: dict[int, str] = {}
    if question.text("processingtype"):
        rows = [
            row
            for row in tx.connection.execute(query)
            if question.wanted(_processing_type(tx, row.task_id, kinds), "processingtype")
        ][offset : offset + limit]
    else:
        rows = list(tx.connection.execute(query.limit(limit).offset(offset)).all())
    return Found([row.panda_id for row in rows], _summary(tx, rows, kinds), errors_by_count(rows))


def _processing_type(tx: Transaction, task_id: int, known: dict[int, str]) -> str:
    if task_id not in known:
        known[task_id] = known_task(tx, task_id).parameters.processing_type
    return known[task_id]


def _filtered(query: Select[Any], tx: Transaction, question: Question) -> Select[Any]:
    panda_ids, task_ids = question.numbers("pandaid"), question.numbers("jeditaskid", "taskid")
    if panda_ids:
        query = query.where(jobs.c.panda_id.in_(panda_ids))
    if task_ids:
        query = query.where(jobs.c.task_id.in_(task_ids))
        if not panda_ids and question.text("mode") != "nodrop":
            # As there: of a job that was tried again the last attempt alone.
            latest = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id.in_(task_ids))
            query = query.where(jobs.c.panda_id.in_(latest.group_by(jobs.c.task_id, jobs.c.number)))
    if not panda_ids and not task_ids:
        newest = tx.connection.scalar(select(func.max(jobs.c.panda_id))) or 0
        query = query.where(jobs.c.panda_id > newest - SCANNED)
    query = query.where(
        *question.matches(jobs.c.status, "jobstatus"),
        *question.matches(jobs.c.sub_status, "jobsubstatus"),
        *question.matches(_SITE, "computingsite", "site"),
        *question.matches(jobs.c.label, "prodsourcelabel"),
        *question.matches(jobs.c.node, "modificationhost"),
        *question.matches(tasks.c.user_name, "produsername", "username", "user"),
        *question.matches(tasks.c.name, "taskname"),
        *question.matches(tasks.c.vo, "vo"),
    )
    for name, column in (("attemptnr", jobs.c.attempt_nr), ("piloterrorcode", jobs.c.pilot_error_code)):
        if numbers := question.numbers(name):
            query = query.where(column.in_(numbers))
    since, until = question.times(tx.now)
    if since is not None:
        query = query.where(jobs.c.modified >= since)
    return query if until is None else query.where(jobs.c.modified < until)


def _summary(tx: Transaction, rows: Iterable[AnyRow], kinds: dict[int, str]) -> list[dict[str, Any]]:
    """How many of the jobs have which value of what they may differ in."""
    counts: dict[str, Counter[Any]] = {}

    def count(field: str, value: Any) -> None:
        counts.setdefault(field, Counter())[value] += 1

    for row in rows:
        count("attemptnr", row.attempt_nr)
        count("computingsite", row.site or "")
        count("corecount", row.core_count)
        count("jeditaskid", row.task_id)
        count("jobstatus", row.status)
        count("jobsubstatus", row.sub_status or "")
        count("minramcount", row.ram_mb)
        count("priorityrange", row.priority)
        count("processingtype", _processing_type(tx, row.task_id, kinds))
        count("prodsourcelabel", row.label)
        count("produsername", row.user_name)
        count("resourcetype", resource_type(row.core_count, row.ram_mb))
        count("schedulerid", row.scheduler_id or "")
        count("vo", row.vo)
    return [
        {"field": field, "list": [{"kname": name, "kvalue": many} for name, many in found.most_common()]}
        for field, found in sorted(counts.items())
    ]


def errors_by_count(rows: Iterable[AnyRow]) -> list[dict[str, Any]]:
    """The errors of jobs that failed, the most frequent first, each with what is said of it in one of the jobs."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        if row.status not in (JobState.FAILED, JobState.CANCELLED, JobState.CLOSED):
            continue
        for source, field, code_column, diag_column in ERRORS:
            code = getattr(row, code_column)
            if not code:
                continue
            entry = found.setdefault(
                (source, code),
                {
                    "error": f"{source}:{code}",
                    "codename": field,
                    "codeval": code,
                    "diag": (diag_column and getattr(row, diag_column)) or "",
                    "example_pandaid": row.panda_id,
                    "count": 0,
                },
            )
            entry["count"] += 1
    return sorted(found.values(), key=lambda entry: (-entry["count"], entry["error"]))


#: How many tasks are given where the call does not say, and at most.
DEFAULT_TASKS, MOST_TASKS = 1000, 10_000

_TYPE = "anal"  # of every task here: what users submit
_OVER = [state.value for state in TaskState if state.is_over]
_TASK_ORDERS = {
    "time-ascending": tasks.c.modified,
    "time-descending": tasks.c.modified.desc(),
    "statetime-descending": tasks.c.state_changed.desc(),
    "creationdate-ascending": tasks.c.created,
    "creationdate-descending": tasks.c.created.desc(),
    "priority": tasks.c.priority.desc(),
    "taskname": tasks.c.name,
    "jeditaskid": tasks.c.task_id.desc(),
    "taskid": tasks.c.task_id.desc(),
}
_NEWEST_TASK = tasks.c.task_id.desc()
_SUPERSTATUS = case((tasks.c.status.in_(_OVER), tasks.c.status), else_="running")
#: Orders that are made of what several columns say.
_FIGURES = ("nfiles", "pctfinished", "pctfailed")
#: What is filtered by, and stands in tasks' parameters alone.
_OF_PARAMETERS = ("processingtype", "workinggroup", "container_name", "transpath", "campaign", "framework", "tasktype")


def task_ids(tx: Transaction, question: Question) -> list[int]:
    """The tasks that a question is about, in the order it wants.

    Raises:
        QuestionError: a parameter makes no sense.
    """
    limit, offset = question.number("limit", DEFAULT_TASKS, 0, MOST_TASKS), question.number("offset", 0, 0, 10**9)
    order = question.text("sortby")
    query = filtered(select(tasks), tx, question).order_by(_TASK_ORDERS.get(order, _NEWEST_TASK), _NEWEST_TASK)
    in_python = any(question.text(name) for name in _OF_PARAMETERS) or order in _FIGURES
    if not in_python:
        ids = query.with_only_columns(tasks.c.task_id).limit(limit).offset(offset)
        return list(tx.connection.scalars(ids))
    rows = [row for row in tx.connection.execute(query).all() if _wanted(row, question)]
    if order in _FIGURES:
        rows.sort(key=lambda row: float(progress(row)[order]), reverse=True)
    return [row.task_id for row in rows[offset : offset + limit]]


def filtered(query: Select[Any], tx: Transaction, question: Question) -> Select[Any]:
    """The query with what the question says of tasks.

    Raises:
        QuestionError: a parameter makes no sense.
    """
    if ids := question.numbers("jeditaskid", "taskid"):
        query = query.where(tasks.c.task_id.in_(ids))
    if ids := question.numbers("reqid"):
        query = query.where(tasks.c.task_id.in_(ids))
    query = query.where(
        *question.matches(tasks.c.name, "taskname"),
        *question.matches(tasks.c.user_name, "username", "user", "produsername"),
        *question.matches(tasks.c.status, "status"),
        *question.matches(tasks.c.label, "prodsourcelabel"),
        *question.matches(tasks.c.vo, "vo"),
        *question.matches(tasks.c.queue, "site"),
        *question.matches(_SUPERSTATUS, "superstatus"),
    )
    since, until = question.times(tx.now)
    if since is not None:
        query = query.where(tasks.c.modified >= since)
    return query if until is None else query.where(tasks.c.modified < until)


def _wanted(row: AnyRow, question: Question) -> bool:
    params = json.loads(row.params)
    known = {
        "processingtype": params.get("processingType"),
        "workinggroup": params.get("workingGroup"),
        "container_name": params.get("container_name"),
        "transpath": str(params.get("transPath") or "").rsplit("/", 1)[-1],
        "campaign": params.get("campaign"),
        "framework": params.get("framework"),
        "tasktype": _TYPE,
    }
    return all(question.wanted(value, name) for name, value in known.items())


def records(tx: Transaction, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The tasks with these ids, in this order; one that is gone is left out."""
    rows: dict[int, AnyRow] = {}
    for some in in_slices(ids):
        rows |= {row.task_id: row for row in tx.connection.execute(select(tasks).where(tasks.c.task_id.in_(some)))}
    return [record(tx, rows[task_id]) for task_id in ids if task_id in rows]


def record(tx: Transaction, task: AnyRow) -> dict[str, Any]:
    """One task; `task` is a whole row."""
    fields = {name.lower(): value for name, value in (task_fields(task) | _times(task)).items()}
    return (
        fields
        | {
            "tasktype": _TYPE,
            "category": "analysis",
            "framework": fields["framework"] or "jedi",
            "transpath": str(fields["transpath"] or "").rsplit("/", 1)[-1],
            "corecount": fields["corecount"] or 1,
            "eventservice": "ordinary",
            "errordialog": fields["errordialog"] or "",
            "age": round(max(0.0, tx.now - task.created) / 86_400, 1),
            "campaign_cut": str(fields["campaign"] or "").partition(":")[2] or fields["campaign"],
            "totev": task.n_jobs,
            "totevrem": max(0, task.n_jobs - task.n_finished),
            "neventsused": task.n_finished,
            "dsinfo": progress(task),
        }
        | progress(task)
    )


def _times(task: AnyRow) -> dict[str, str | None]:
    return {
        "creationDate": moment(task.created),
        "modificationTime": moment(task.modified),
        "stateChangeTime": moment(task.state_changed),
        "startTime": moment(task.started),
        "endTime": moment(task.ended),
    }


def progress(task: AnyRow) -> dict[str, float]:
    """How many of its jobs are done: BigPanDA counts a task's input files, of which each job has one."""
    share = 100.0 / task.n_jobs if task.n_jobs else 0.0
    return {
        "nfiles": task.n_jobs,
        "nfilesfinished": task.n_finished,
        "nfilesfailed": task.n_failed,
        "pctfinished": round(task.n_finished * share, 2),
        "pctfailed": round(task.n_failed * share, 2),
    }


def job_state_counts(tx: Transaction, ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """How many jobs of each task are in which state: of several attempts the last one counts."""
    found = {task_id: {state.value: 0 for state in JobState if state is not JobState.NOT_RUN} for task_id in ids}
    for some in in_slices(ids):
        latest = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id.in_(some))
        query = (
            select(jobs.c.task_id, jobs.c.status, func.count().label("n_jobs"))
            .where(jobs.c.panda_id.in_(latest.group_by(jobs.c.task_id, jobs.c.number)))
            .group_by(jobs.c.task_id, jobs.c.status)
        )
        for row in tx.connection.execute(query):
            found[row.task_id][row.status] = row.n_jobs
    return found


def datasets(tx: Transaction, task: AnyRow) -> list[dict[str, Any]]:
    """The task's datasets: what numbers its jobs, its outputs and its logs; none of a task that is broken."""
    try:
        parameters = known_task(tx, task.task_id).parameters
    except TaskParametersError:
        return []
    sample = parameters.job(task_id=task.task_id, number=1, attempt_nr=1)
    named = [(parameters.sequence_dataset, "pseudo_input")] if parameters.sequence_offset is not None else []
    named += [(name, kind) for name, kind in dict.fromkeys((file.dataset, file.kind) for file in sample.files)]
    return [_dataset(task, task.task_id * 100 + place, *one) for place, one in enumerate(named, start=1)]


def _dataset(task: AnyRow, dataset_id: int, name: str, kind: str) -> dict[str, Any]:
    known: Mapping[str, Any] = progress(task)
    return {
        "jeditaskid": task.task_id,
        "datasetid": dataset_id,
        "datasetname": name,
        "containername": name,
        "type": kind,
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
        **known,
    }
