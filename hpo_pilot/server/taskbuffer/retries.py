"""New attempts for jobs that were given up, when their owner asks.

After `retryTask_JEDI` and the incremental execution of `insertTaskParamsPanda` in panda-server 1.0.4. Attempt numbers
only ever grow: a pilot that still has an old attempt can never be taken for one with the new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import cache_files, jobs, tasks
from hpo_pilot.server.taskbuffer.attempts import (
    NO_SANDBOX,
    add_attempt,
    change_task,
    first_attempts,
    job_row,
    make_jobs,
    task_row,
)
from hpo_pilot.server.taskbuffer.field_names import CHANGEABLE_PARAMETERS, SPLIT_RULES
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.task_parameters import TaskParameters

#: A task that was retried as often as this is exhausted, JEDI's ``TASK_MAX_ATTEMPT``; see `retry_over`.
MAX_TASK_ATTEMPTS = 10

_GIVEN_UP = (JobState.FAILED, JobState.CANCELLED, JobState.CLOSED)


def _given_up(tx: Transaction, task_id: int) -> list[AnyRow]:
    """The last attempts of a task's jobs that did not finish and have ended, by number."""
    last = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id == task_id).group_by(jobs.c.number)
    ids = tx.connection.scalars(
        select(jobs.c.panda_id)
        .where(jobs.c.panda_id.in_(last), jobs.c.status.in_([state.value for state in _GIVEN_UP]))
        .order_by(jobs.c.number)
    ).all()
    return [row for panda_id in ids if (row := job_row(tx, panda_id)) is not None]


def retry_over(tx: Transaction, task: AnyRow, *, ignore_limit: bool = False) -> None:
    """Retries a task that is over.

    One that was retried `MAX_TASK_ATTEMPTS` times becomes exhausted instead, unless it was submitted with
    ``skipScout`` (its owner knows what they do) or `ignore_limit` is set.
    """
    limited = not (ignore_limit or known_task(tx, task.task_id).parameters.params.get("skipScout"))
    if limited and task.attempt_nr >= MAX_TASK_ATTEMPTS:
        dialog = (
            "This task can no longer continue following the retry attempt because too many task attempts "
            f"more than {MAX_TASK_ATTEMPTS} are forbidden. No further retries are accepted."
        )
        change_task(tx, task, status=TaskState.EXHAUSTED.value, error_dialog=dialog)
        return
    change_task(tx, task, attempt_nr=task.attempt_nr + 1)
    retry_jobs(tx, task)


def retry_jobs(tx: Transaction, task: AnyRow) -> None:
    """Another round of attempts for every job of the task whose last attempt did not finish."""
    given_up = _given_up(tx, task.task_id)
    if not given_up:
        if task.status not in (TaskState.RUNNING, TaskState.PENDING) and not task.n_finished:
            _start_over(tx, task)
        return
    max_attempt = known_task(tx, task.task_id).parameters.max_attempt
    for job in given_up:
        add_attempt(tx, task, job, job.attempt_nr + max_attempt)
    values = {"n_failed": task.n_failed - len(given_up), "error_dialog": None, "ended": None}
    change_task(tx, task, status=TaskState.RUNNING.value, **values)


def _start_over(tx: Transaction, task: AnyRow) -> None:
    """A task that ended before it had jobs."""
    there = select(func.count()).where(cache_files.c.name == task.sandbox)
    if task.sandbox is None or tx.connection.scalar(there):
        make_jobs(tx, task)
    else:
        change_task(tx, task, status=TaskState.PENDING.value, n_failed=0, error_dialog=NO_SANDBOX, ended=None)


def changes_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `params` that may change after a task's submission, under the names that its own parameters have."""
    names = CHANGEABLE_PARAMETERS | set(SPLIT_RULES.values())
    changes = {name: value for name, value in params.items() if name in names or name.startswith("dsFor")}
    if "priority" in changes:
        changes["currentPriority"] = changes.pop("priority")
    if "loopingCheck" in changes:
        changes["noLoopingCheck"] = not changes.pop("loopingCheck")
    return changes


def change_parameters(tx: Transaction, task: AnyRow, changes: Mapping[str, Any], brokered: Mapping[str, Any]) -> AnyRow:
    """Gives a task other parameters, and the jobs that these ask for beyond those that it has.

    Args:
        tx: a writing transaction.
        task: the task's row.
        changes: parameters, `changes_of` some others.
        brokered: columns of the task that follow from its parameters.

    Returns:
        The task's row, as it is now.

    Raises:
        TaskParametersError: they make no sense; nothing was changed.
    """
    old = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task.task_id))
    params = json.loads(old or "{}") | dict(changes)
    n_jobs = max(task.n_jobs, TaskParameters(params).n_jobs)
    change_task(tx, task, params=json.dumps(params), revision=task.revision + 1, n_jobs=n_jobs, **brokered)
    changed = _existing(tx, task.task_id)
    n_made = tx.connection.scalar(select(func.max(jobs.c.number)).where(jobs.c.task_id == task.task_id)) or 0
    if 0 < n_made < n_jobs:
        first_attempts(tx, changed, range(n_made + 1, n_jobs + 1))
        if TaskState(changed.status).is_over:
            change_task(tx, changed, status=TaskState.RUNNING.value, error_dialog=None, ended=None)
        changed = _existing(tx, task.task_id)
    return changed


def _existing(tx: Transaction, task_id: int) -> AnyRow:
    row = task_row(tx, task_id)
    if row is None:
        raise LookupError(f"task {task_id} vanished")
    return row
