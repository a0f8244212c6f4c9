"""Attempts: making jobs, ending them, and what that means for their task.

Every change to a job goes through here, so that counts, cursors and states of its task can never disagree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server import metrics
from hpo_pilot.server.brokerage.board import BROKERED
from hpo_pilot.server.data.database import AnyRow, Transaction, in_slices, set_columns
from hpo_pilot.server.data.tables import jobs, tasks
from hpo_pilot.server.taskbuffer.final_state import final_state
from hpo_pilot.server.taskbuffer.known_tasks import known_task

#: Why a task waits whose sandbox is not registered under its name, as `pandajedi/jediorder/JobGenerator.py` says it.
NO_SANDBOX = "user sandbox file unavailable. resubmit the task with --useNewCode"

_TASK_COLUMNS = (
    tasks.c.task_id,
    tasks.c.name,
    tasks.c.user_name,
    tasks.c.label,
    tasks.c.status,
    tasks.c.old_status,
    tasks.c.priority,
    tasks.c.queue,
    tasks.c.sandbox,
    tasks.c.n_jobs,
    tasks.c.n_finished,
    tasks.c.n_failed,
    tasks.c.started,
    tasks.c.revision,
    tasks.c.attempt_nr,
    tasks.c.modified,
)
_TASK = select(*_TASK_COLUMNS).where(tasks.c.task_id == bindparam("id"))
_JOB = select(
    jobs.c.panda_id,
    jobs.c.task_id,
    jobs.c.number,
    jobs.c.attempt_nr,
    jobs.c.max_attempt,
    jobs.c.status,
    jobs.c.sub_status,
    jobs.c.command,
    jobs.c.debug,
    jobs.c.harvester_id,
    jobs.c.worker_id,
    jobs.c.holder,
    jobs.c.holder_node,
    jobs.c.holder_key,
    jobs.c.queue,
    jobs.c.label,
    jobs.c.priority,
    jobs.c.core_count,
    jobs.c.ram_mb,
    jobs.c.max_walltime,
    jobs.c.started,
    jobs.c.ended,
    jobs.c.heartbeat,
    jobs.c.patience,
    jobs.c.report,
    jobs.c.job_metrics,
).where(jobs.c.panda_id == bindparam("id"))

#: Rows that are made in one statement: all of a task's at once would take memory for each.
_ROWS_AT_ONCE = 1000

#: States in which a task starts no new attempt.
_NO_RETRY = frozenset({TaskState.ABORTING, TaskState.FINISHING})


def task_row(tx: Transaction, task_id: int) -> AnyRow | None:
    """A task's row without its parameters; None: there is no such task."""
    return tx.connection.execute(_TASK, {"id": task_id}).one_or_none()


def job_row(tx: Transaction, panda_id: int) -> AnyRow | None:
    """One attempt's row; None: there is no such job."""
    return tx.connection.execute(_JOB, {"id": panda_id}).one_or_none()


def change_task(tx: Transaction, task: AnyRow, *, outcome: bool = False, **values: Any) -> None:
    """Writes `values` and marks the task as changed.

    Args:
        tx: a writing transaction.
        task: the task's row.
        outcome: whether an attempt of one of its jobs has ended.
        values: columns of the task.
    """
    if "status" in values and values["status"] != task.status:
        values["state_changed"] = tx.now
        outcome = outcome or TaskState(values["status"]).is_over
    values |= {"modified": tx.now, "change": tx.next_change()}
    if outcome:
        values["outcome"] = values["change"]
    set_columns(tx, tasks.c.task_id, task.task_id, values)
    tx.users.add(task.user_name)
    if not BROKERED.isdisjoint(values):
        tx.moved.add(task.task_id)


def make_jobs(tx: Transaction, task: AnyRow) -> None:
    """The first attempt of every job of a task that has none; the task then runs."""
    first_attempts(tx, task, range(1, task.n_jobs + 1))
    change_task(tx, task, status=TaskState.RUNNING.value, n_finished=0, n_failed=0, error_dialog=None, ended=None)


def first_attempts(tx: Transaction, task: AnyRow, numbers: range) -> None:
    """The first attempts of the task's jobs with these numbers."""
    parameters = known_task(tx, task.task_id).parameters
    common = {
        "task_id": task.task_id,
        "max_attempt": parameters.max_attempt,
        "status": JobState.ACTIVATED.value,
        "debug": False,
        "queue": task.queue,
        "label": task.label,
        "priority": task.priority,
        "core_count": parameters.core_count,
        "ram_mb": parameters.ram_mb,
        "max_walltime": parameters.max_walltime,
        "created": tx.now,
        "modified": tx.now,
        "state_changed": tx.now,
    }
    for some in in_slices(numbers, _ROWS_AT_ONCE):
        tx.connection.execute(insert(jobs), [common | {"number": number, "attempt_nr": 1} for number in some])
    tx.activated[task.queue, task.task_id] += len(numbers)


def add_attempt(tx: Transaction, task: AnyRow, job: AnyRow, max_attempt: int) -> None:
    """The next attempt of `job`'s part of the task, with today's resources of the task."""
    add_attempts(tx, task, [(job, max_attempt)])


def add_attempts(tx: Transaction, task: AnyRow, jobs_and_limits: Sequence[tuple[AnyRow, int]]) -> None:
    """The same for several jobs of the task, each with the number of attempts that it may have; at least one."""
    parameters = known_task(tx, task.task_id).parameters
    common = {
        "task_id": task.task_id,
        # The jobs of a paused task wait aside, out of brokerage's sight.
        "status": (JobState.DEFINED if task.status == TaskState.PAUSED else JobState.ACTIVATED).value,
        "debug": False,
        "queue": task.queue,
        "priority": task.priority,
        "core_count": parameters.core_count,
        "ram_mb": parameters.ram_mb,
        "max_walltime": parameters.max_walltime,
        "created": tx.now,
        "modified": tx.now,
        "state_changed": tx.now,
    }
    for some in in_slices(jobs_and_limits, _ROWS_AT_ONCE):
        rows = [
            common
            | {"number": job.number, "attempt_nr": job.attempt_nr + 1, "max_attempt": max_attempt, "label": job.label}
            for job, max_attempt in some
        ]
        tx.connection.execute(insert(jobs), rows)
    if task.status != TaskState.PAUSED:
        tx.activated[task.queue, task.task_id] += len(jobs_and_limits)


def end_attempt(tx: Transaction, job: AnyRow, status: JobState, **values: Any) -> None:
    """Ends an attempt that was not over, starts the next one where one is due, and settles the task.

    Args:
        tx: a writing transaction.
        job: the attempt, as `job_row` gave it in this transaction.
        status: its final state. A failed attempt of a job that was to be killed counts as cancelled.
        values: further columns of the job.
    """
    if status is JobState.FAILED and job.command == "tobekilled":
        status = JobState.CANCELLED
    ended = {"status": status.value, "modified": tx.now, "state_changed": tx.now, "heartbeat": tx.now}
    set_columns(tx, jobs.c.panda_id, job.panda_id, {"ended": tx.now} | values | ended)
    task = task_row(tx, job.task_id)
    if task is None:
        raise LookupError(f"job {job.panda_id} belongs to task {job.task_id}, which does not exist")
    metrics.ATTEMPTS_ENDED.labels(status.value).inc()
    if status is JobState.FINISHED:
        settle(tx, task, finished=1)
    elif status is JobState.FAILED and job.attempt_nr < job.max_attempt and task.status not in _NO_RETRY:
        add_attempt(tx, task, job, job.max_attempt)
        change_task(tx, task, outcome=True)
    else:
        settle(tx, task, failed=1)


def settle(tx: Transaction, task: AnyRow, *, finished: int = 0, failed: int = 0) -> None:
    """Counts jobs that are over for good, and ends the task with its last one."""
    n_finished, n_failed = task.n_finished + finished, task.n_failed + failed
    values: dict[str, Any] = {"n_finished": n_finished, "n_failed": n_failed}
    if n_finished + n_failed >= task.n_jobs:
        params = known_task(tx, task.task_id).parameters.params
        state, dialog = final_state(TaskState(task.status), params, n_finished, n_failed)
        values |= {"status": state.value, "old_status": None, "error_dialog": dialog, "ended": tx.now}
    change_task(tx, task, outcome=True, **values)
