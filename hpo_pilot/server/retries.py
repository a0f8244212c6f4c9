"""New attempts for jobs that were given up, when their owner asks."""

from __future__ import annotations

from sqlalchemy import func, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.attempts import add_attempt, change_task, job_row, make_jobs
from hpo_pilot.server.database import AnyRow, Transaction
from hpo_pilot.server.known_tasks import known_task
from hpo_pilot.server.tables import cache_files, jobs

_GIVEN_UP = (JobState.FAILED.value, JobState.CANCELLED.value, JobState.CLOSED.value)


def retry_jobs(tx: Transaction, task: AnyRow) -> None:
    """Another round of attempts for every job of the task whose last attempt did not finish."""
    last = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id == task.task_id).group_by(jobs.c.number)
    given_up = tx.connection.scalars(
        select(jobs.c.panda_id).where(jobs.c.panda_id.in_(last), jobs.c.status.in_(_GIVEN_UP)).order_by(jobs.c.panda_id)
    ).all()
    if not given_up:
        if task.status not in (TaskState.RUNNING, TaskState.PENDING) and not task.n_finished:
            _start_over(tx, task)
        return
    max_attempt = known_task(tx, task.task_id).parameters.max_attempt
    for panda_id in given_up:
        if (job := job_row(tx, panda_id)) is not None:
            add_attempt(tx, task, job, job.attempt_nr + max_attempt)
    change_task(
        tx,
        task,
        status=TaskState.RUNNING.value,
        n_failed=task.n_failed - len(given_up),
        ended=None,
    )


def _start_over(tx: Transaction, task: AnyRow) -> None:
    """A task that ended before it had jobs."""
    there = select(func.count()).where(cache_files.c.name == task.sandbox)
    if task.sandbox is None or tx.connection.scalar(there):
        make_jobs(tx, task)
    else:
        change_task(tx, task, status=TaskState.PENDING.value, n_failed=0, ended=None)
