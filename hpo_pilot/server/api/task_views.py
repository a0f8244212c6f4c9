"""``task/*``: watching tasks."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import regex
from sqlalchemy import select

from hpo_pilot.jobs import TaskState
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.json_text import load
from hpo_pilot.server.taskbuffer.descriptions import describe_task_jobs
from hpo_pilot.server.taskbuffer.field_names import LISTED_TASK_FIELDS, TASK_FIELDS
from hpo_pilot.server.taskbuffer.task_views import (
    FILTERS,
    NUMBER_FILTERS,
    datasets_and_files,
    detailed,
    details,
    digest,
    statistics,
    task_fields,
)
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint

_TIME = "%Y-%m-%d %H:%M:%S"
_NOT_FOUND = "Task not found"
_MODIFIED_DAYS, _DETAILED_DAYS = 30, 90  # how far back the two lists reach, as on a real server
_MAX_LISTED = 500
_MATCHING_SECONDS = 1.0  # a pattern of one user must not keep all others waiting
_REGEX_SIGNS = frozenset(r"^$*+?\|()")


def _whole_row(tx: Transaction, task_id: int) -> AnyRow | None:
    return tx.connection.execute(select(tasks).where(tasks.c.task_id == task_id)).one_or_none()


@endpoint("task/get_status", "GET", USERS, Access.READ)
def get_status(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """The task's state."""
    status = tx.connection.scalar(select(tasks.c.status).where(tasks.c.task_id == task_id))
    return failure(_NOT_FOUND) if status is None else success(status)


@endpoint("task/get_details", "GET", USERS, Access.READ)
def get_details(
    tx: Transaction, call: Call, *, task_id: int, include_parameters: bool = False, include_status: bool = False
) -> Envelope:
    """Datasets, statistics and PandaIDs of a task."""
    if (task := _whole_row(tx, task_id)) is None:
        return failure("Task not found or error retrieving the details")
    return success(details(tx, task, with_parameters=include_parameters, with_status=include_status))


@endpoint("task/get_task_parameters", "GET", USERS, Access.READ)
def get_task_parameters(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """The parameters that made the task."""
    params = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task_id))
    return failure(_NOT_FOUND) if params is None else success(json.loads(params))


@endpoint("task/get_detailed_info", "GET", USERS, Access.READ)
def get_detailed_info(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """All about a task."""
    if (task := _whole_row(tx, task_id)) is None:
        return failure("Task not found or error retrieving task info")
    return success(detailed(task))


@endpoint("task/get_job_ids", "GET", USERS, Access.READ)
def get_job_ids(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """The PandaIDs of all attempts."""
    query = select(jobs.c.panda_id).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id)
    return success(list(tx.connection.scalars(query)))


@endpoint("task/get_job_descriptions", "GET", USERS, Access.READ)
def get_job_descriptions(tx: Transaction, call: Call, *, task_id: int, unsuccessful_only: bool = False) -> Envelope:
    """The descriptions of all attempts."""
    return success(describe_task_jobs(tx, task_id, unsuccessful_only=unsuccessful_only))


@endpoint("task/get_datasets_and_files", "GET", USERS, Access.READ)
def get_datasets_and_files(
    tx: Transaction,
    call: Call,
    *,
    task_id: int,
    dataset_types: list[str] = ["input", "pseudo_input"],  # noqa: B006  # declares the default; nobody changes it
    dataset_only: bool = False,
) -> Envelope:
    """The task's datasets with their files."""
    status = tx.connection.scalar(select(tasks.c.status).where(tasks.c.task_id == task_id))
    if status is None or status == TaskState.BROKEN:
        return failure("No data found for the task")
    found = datasets_and_files(tx, task_id, dataset_types, dataset_only=dataset_only)
    return success(found) if found else failure("No data found for the task")


def _since(text: str, now: float, days: int) -> float | None:
    """The time that a query asks for, no further back than `days`; None: no time."""
    try:
        asked = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return max(asked, datetime.fromtimestamp(now, UTC) - timedelta(days=days)).timestamp()


@endpoint("task/get_tasks_modified_since", "GET", USERS, Access.READ)
def get_tasks_modified_since(
    tx: Transaction,
    call: Call,
    *,
    since: str,
    dn: str | None = None,
    full: bool = False,
    min_task_id: int | None = None,
    prod_source_label: str = "user",
) -> Envelope:
    """Somebody's tasks (the caller's own unless `dn` names another) that changed since then, by request id.

    The full list holds the newest ones alone.
    """
    if (start := _since(since, tx.now, _MODIFIED_DAYS)) is None:
        return success({})
    query = (
        select(tasks)
        .where(
            tasks.c.user_name == (dn or call.caller.name),
            tasks.c.modified >= start,
            tasks.c.label == prod_source_label,
        )
        .order_by(tasks.c.task_id.desc())
    )
    if min_task_id is not None:
        query = query.where(tasks.c.task_id > min_task_id)
    if full:
        query = query.limit(_MAX_LISTED)
    rows = tx.connection.execute(query).all()
    numbers = statistics(tx, rows) if full else {}
    listed = {}
    for row in rows:
        fields = task_fields(row)
        listed[row.task_id] = {name: fields[name] for name in LISTED_TASK_FIELDS}
        if full:
            listed[row.task_id] |= digest(row, numbers[row.task_id])
    return success(listed)


@endpoint("task/get_tasks_detailed_info_since", "GET", USERS, Access.READ)
def get_tasks_detailed_info_since(
    tx: Transaction, call: Call, *, since: str | None = None, filters: str | None = None, n_tasks: int = 500
) -> Envelope:
    """All about the tasks that fit: the caller's own unless the filters name another user."""
    try:
        wanted = load(filters) if filters else {}
    except ValueError:
        return failure("filters is not valid JSON")
    if not isinstance(wanted, dict) or not all(isinstance(value, str | int) for value in wanted.values()):
        return failure("filters must be a JSON object")
    equal = {"userName": call.caller.name}
    patterns = {}
    for name, value in wanted.items():
        pattern = str(value)
        if _REGEX_SIGNS & set(pattern):
            patterns[name] = pattern
        else:
            equal[name] = pattern
    query = select(tasks).order_by(tasks.c.task_id).limit(max(0, min(n_tasks, 10 * _MAX_LISTED)))
    later = {}
    for name, value in equal.items():
        if name not in TASK_FIELDS or (name in NUMBER_FILTERS and not re.fullmatch(r"-?\d{1,18}", value)):
            return failure("Failed to retrieve task IDs")
        if name in FILTERS:
            query = query.where(FILTERS[name] == (int(value) if name in NUMBER_FILTERS else value))
        else:
            later[name] = value
    if since is not None:
        if (start := _since(since, tx.now, _DETAILED_DAYS)) is None:
            return failure("Failed to retrieve task IDs")
        query = query.where(tasks.c.modified >= start)
    found = [detailed(row) for row in tx.connection.execute(query)]
    end = time.monotonic() + _MATCHING_SECONDS
    try:
        return success([task for task in found if _fits(task, later, patterns, end)])
    except TimeoutError:
        return failure("Failed to retrieve task IDs: a pattern in filters takes too long")


def _fits(task: dict[str, Any], equal: dict[str, str], patterns: dict[str, str], end: float) -> bool:
    if any(str(task[name]) != value for name, value in equal.items()):
        return False
    try:
        # A field that tasks do not have is no condition, as on a real server.
        return all(
            regex.search(pattern, str(task[name]), timeout=max(0.001, end - time.monotonic()))
            for name, pattern in patterns.items()
            if name in task
        )
    except regex.error:
        return False
