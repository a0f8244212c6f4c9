"""Which jobs a question is about, in which order, and what they have in common.

Of a task, all its attempts are looked at, and of other questions the newest `SCANNED`. Only what order, summary and
errors need is read of each; the rest follows for those that are shown, a slice at a time (`job_records`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from hpo_pilot.jobs import JobState
from hpo_pilot.server.bigpanda.question import Question
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.taskbuffer.job_pages import SCANNED
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.resource_types import resource_type

#: How many jobs are given where the call does not say, and at most.
DEFAULT_LIMIT, MOST = 2000, 20_000

_SITE = func.coalesce(jobs.c.site, func.nullif(jobs.c.queue, ""))
_LONG = func.coalesce(jobs.c.ended, jobs.c.modified) - jobs.c.started
_NEWEST = jobs.c.panda_id.desc()
_ORDERS: dict[str, ColumnElement[Any]] = {
    "time-ascending": jobs.c.modified.asc(),
    "time-descending": jobs.c.modified.desc(),
    "statetime": jobs.c.state_changed.desc(),
    "priority": jobs.c.priority.desc(),
    "attemptnr": jobs.c.attempt_nr.desc(),
    "duration-ascending": _LONG.asc(),
    "duration-descending": _LONG.desc(),
    "duration": _LONG.asc(),
    "PandaID": _NEWEST,
    "pandaid": _NEWEST,
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
    limit, offset = question.number("limit", DEFAULT_LIMIT, 0, MOST), question.number("offset", 0, 0, 10**9)
    order = _ORDERS.get(question.text("sortby"), _ORDERS["time-descending"])
    query = _filtered(select(*_LIGHT).join(tasks, tasks.c.task_id == jobs.c.task_id), tx, question)
    query = query.order_by(order, _NEWEST)
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
