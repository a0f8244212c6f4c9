"""Commands to tasks. Codes and messages are those of panda-server 1.0.4.

Source: `pandaserver/taskbuffer/db_proxy_mods/task_event_module.py`, `sendCommandTaskPanda`. Unlike there a command is
carried out at once, before its answer.
"""

from __future__ import annotations

from sqlalchemy import func, select, update

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, jobs
from hpo_pilot.server.taskbuffer.attempts import change_task, settle, task_row
from hpo_pilot.server.taskbuffer.retries import retry_jobs, retry_over
from hpo_pilot.server.taskbuffer.tasks import Outcome, release_pending

_ENDED = frozenset({"finished", "done", "prepared", "broken", "aborted", "toabort", "aborting", "failed"})
_RETRYABLE = frozenset({"finished", "failed", "exhausted"})
_INCREMENTAL = frozenset({"finished", "failed", "aborted", "done", "exhausted"})


def refusal(command: str, status: str, caller: Caller) -> str | None:
    """Why a task in this state does not take `command`; None: it does."""
    refused, extra = False, ""
    match command:
        case "kill" | "finish":
            refused = status in _ENDED
        case "retry":
            refused = status not in _RETRYABLE
            if status == TaskState.EXHAUSTED and not caller.is_operator:
                refused, extra = True, "and production role is missing"
        case "incexec":
            refused = status not in _INCREMENTAL
        case "pause":
            refused = status in _ENDED or status in (TaskState.PAUSED, TaskState.EXHAUSTED, TaskState.FINISHING)
        case "resume":
            refused = status not in ("paused", "throttled", "staging")
    if not refused:
        return None
    return f"Command rejected: the {command} command is not accepted if the task is in {status} status {extra}".strip()


def command(
    tx: Transaction, caller: Caller, task_id: int, name: str, *, soft: bool = False, ignore_limit: bool = False
) -> Outcome:
    """Carries out kill, finish, retry, incexec, pause or resume.

    Args:
        tx: a writing transaction.
        caller: who commands; whether they may is not looked at here.
        task_id: the task.
        name: the command.
        soft: for finish: jobs at pilots go on to their end.
        ignore_limit: for retry and incexec: however often the task was retried; counts for operators alone.

    Returns:
        0 with a message; 2: no such task; 4: not in its present state.
    """
    task = task_row(tx, task_id)
    if task is None:
        return 2, f"jediTaskID={task_id} not found"
    if name == "retry" and task.status in ("running", "pending") and task.label == "user":
        retry_jobs(tx, task)
        return 0, f"retry has been triggered for failed jobs while the task is still {task.status}"
    if refused := refusal(name, task.status, caller):
        return 4, refused
    match name:
        case "kill":
            _stop(tx, task, TaskState.ABORTING, JobState.CANCELLED, f"killed by {caller.name}", kill_running=True)
        case "finish":
            reason = f"closed since {caller.name} finished the task"
            _stop(tx, task, TaskState.FINISHING, JobState.CLOSED, reason, kill_running=not soft)
        case "retry" | "incexec":
            retry_over(tx, task, ignore_limit=ignore_limit and caller.is_operator)
        case "pause":
            _set_waiting(tx, task, JobState.ACTIVATED, JobState.DEFINED)
            change_task(tx, task, status=TaskState.PAUSED.value, old_status=task.status)
        case "resume":
            n_waiting = _set_waiting(tx, task, JobState.DEFINED, JobState.ACTIVATED)
            tx.activated[task.queue, task.task_id] += n_waiting
            change_task(tx, task, status=task.old_status or TaskState.RUNNING.value, old_status=None)
            release_pending(tx)
    return 0, f"command={name} is registered for task ID {task_id}"


def _set_waiting(tx: Transaction, task: AnyRow, old: JobState, new: JobState) -> int:
    return tx.connection.execute(
        update(jobs)
        .where(jobs.c.task_id == task.task_id, jobs.c.status == old.value)
        .values(status=new.value, modified=tx.now, state_changed=tx.now)
    ).rowcount


def _stop(tx: Transaction, task: AnyRow, state: TaskState, ended: JobState, reason: str, *, kill_running: bool) -> None:
    """Ends the jobs that wait, tells the pilots to end theirs, and ends the task once none is left."""
    change_task(tx, task, status=state.value, old_status=None)
    n_ended = tx.connection.execute(
        update(jobs)
        .where(jobs.c.task_id == task.task_id, jobs.c.status.in_((JobState.DEFINED.value, JobState.ACTIVATED.value)))
        .values(
            status=ended.value,
            ended=tx.now,
            modified=tx.now,
            state_changed=tx.now,
            buffer_error_code=100,
            buffer_error_diag=reason,
        )
    ).rowcount
    if kill_running:
        tx.connection.execute(
            update(jobs)
            .where(jobs.c.task_id == task.task_id, AT_PILOT)
            .values(command="tobekilled", buffer_error_diag=reason)
        )
    if not tx.connection.scalar(select(func.count()).where(jobs.c.task_id == task.task_id)):
        n_ended = task.n_jobs  # killed while it waited for its sandbox: it never had jobs
    stopped = task_row(tx, task.task_id)
    if stopped is None:
        raise LookupError(f"task {task.task_id} vanished")
    settle(tx, stopped, failed=n_ended)
