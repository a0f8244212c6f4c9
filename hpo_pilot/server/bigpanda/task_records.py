"""Tasks as BigPanDA's JSON has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, case, func, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.bigpanda.moments import moment
from hpo_pilot.server.bigpanda.question import Question
from hpo_pilot.server.data.database import AnyRow, Transaction, in_slices
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.task_parameters import TaskParametersError
from hpo_pilot.server.taskbuffer.task_views import task_fields

#: How many tasks are given where the call does not say, and at most.
DEFAULT_LIMIT, MOST = 1000, 10_000

_TYPE = "anal"  # of every task here: what users submit
_OVER = [state.value for state in TaskState if state.is_over]
_ORDERS = {
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
_NEWEST = tasks.c.task_id.desc()
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
    limit, offset = question.number("limit", DEFAULT_LIMIT, 0, MOST), question.number("offset", 0, 0, 10**9)
    order = question.text("sortby")
    query = filtered(select(tasks), tx, question).order_by(_ORDERS.get(order, _NEWEST), _NEWEST)
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
