"""Attempts of jobs: who owns them, making, ending and repeating them, and the state of their task."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, insert, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server import metrics
from hpo_pilot.server.brokerage import BROKERED
from hpo_pilot.server.database import (
    TASK_COLUMNS,
    AnyRow,
    Transaction,
    cache_files,
    in_slices,
    jobs,
    set_columns,
    tasks,
)
from hpo_pilot.server.envelope import Envelope, failure
from hpo_pilot.server.task_parameters import CHANGEABLE_PARAMETERS, SPLIT_RULES, TaskParameters, known_task
from hpo_pilot.server.tokens import Caller

MESSAGE_TASK_OWNER = "not the task owner or no production role"
_NOT_FOUND, _DENIED = 2, 3


def check_owner(tx: Transaction, caller: Caller, task_id: int) -> Envelope | None:
    """Returns the refusal for a caller who may not change the task; None: the caller may."""
    owner = tx.connection.scalar(select(tasks.c.user_name).where(tasks.c.task_id == task_id))
    if owner is None:
        return failure(f"jediTaskID={task_id} not found", _NOT_FOUND)
    if caller.is_operator or owner == caller.name:
        return None
    return failure(MESSAGE_TASK_OWNER, _DENIED)


class NotThePilotsJob(Exception):
    """A pilot speaks of a job that another one has; the message says so."""

    def __init__(self, panda_id: int) -> None:
        super().__init__(f"job {panda_id} was given to another pilot, or to this one under another token or key")


@dataclass(frozen=True)
class PilotIdentity:
    """Identifies a pilot.

    The pilots of a site often share a token. Each of ours has a key of its own as well, and then only that counts, so
    that none can speak for another. A Pilot 3 has none: it is known by its token, and by the node that took the job.

    Attributes:
        name: of the token's owner.
        key: SHA-256 of its own key, in hexadecimal digits; empty: it shows none.
        is_operator: may speak for every pilot.
    """

    name: str
    key: str = ""
    is_operator: bool = False

    @classmethod
    def of(cls, caller: Caller, key: str) -> PilotIdentity:
        """The identity of a caller that shows a key, which may be empty."""
        return cls(caller.name[:400], hashlib.sha256(key.encode()).hexdigest() if key else "", caller.is_operator)

    def has(self, job: AnyRow, node: str = "") -> bool:
        """Returns whether this pilot took the job.

        Args:
            job: with the columns holder, holder_node and holder_key.
            node: from where the pilot says that it speaks; empty: it does not say.
        """
        if self.is_operator or job.holder is None:
            return True
        if job.holder_key is not None:
            return hmac.compare_digest(job.holder_key, self.key)
        return job.holder == self.name and (not node or job.holder_node in (None, node[:128]))


# The state in which a task ends, once none of its jobs can go on. After
# `pandajedi/jedipprocess/PostProcessorBase.py` of panda-server 1.0.4 (`getFinalTaskStatus`, `doPreCheck`): done if
# all jobs finished; failed if none did. If some finished and the task reached its ``goal`` (percent of its jobs,
# default 100): finished. If it missed the goal: exhausted with ``useExhausted``, failed with ``failGoalUnreached``,
# else finished.


def final_state(
    state: TaskState, params: Mapping[str, Any], n_finished: int, n_failed: int
) -> tuple[TaskState, str | None]:
    """The state that a task ends in, and its error dialog.

    Args:
        state: the task's present one.
        params: its parameters.
        n_finished: how many of its jobs finished.
        n_failed: how many were given up.
    """
    if state is TaskState.ABORTING:
        return TaskState.ABORTED, None
    if n_failed == 0:
        return TaskState.DONE, None
    if n_finished == 0:
        return TaskState.FAILED, "failed since no file was successfully processed"
    completeness, goal = 1000 * n_finished / (n_finished + n_failed), _goal(params)
    if completeness >= goal or state is TaskState.FINISHING:
        return TaskState.FINISHED, None
    if params.get("useExhausted"):
        return TaskState.EXHAUSTED, "exhausted since the task was incomplete and didn't reach the goal"
    if params.get("failGoalUnreached"):
        dialog = f"failed since the task completeness {completeness:.1f} is less than the goal {goal:.1f}"
        return TaskState.FAILED, dialog
    return TaskState.FINISHED, None


def _goal(params: Mapping[str, Any]) -> float:
    """In thousandths; a goal that is no percentage counts as none, as in JEDI."""
    try:
        goal = 10 * float(params["goal"])
    except (KeyError, TypeError, ValueError):
        return 1000.0
    return goal if 0 <= goal <= 1000 else 1000.0


# Making and ending attempts. Every change to a job goes through here, so that the counts, cursors and state of its
# task always agree with it.

#: Why a task waits whose sandbox is not registered under its name, as `pandajedi/jediorder/JobGenerator.py` says it.
NO_SANDBOX = "user sandbox file unavailable. resubmit the task with --useNewCode"

_TASK = select(*TASK_COLUMNS).where(tasks.c.task_id == bindparam("id"))
_JOB = select(jobs).where(jobs.c.panda_id == bindparam("id"))

#: Rows that are made in one statement: all of a task's at once would take memory for each.
_ROWS_AT_ONCE = 1000

#: States in which a task starts no new attempt.
_NO_RETRY = frozenset({TaskState.ABORTING, TaskState.FINISHING})


def task_row(tx: Transaction, task_id: int) -> AnyRow | None:
    """Returns a task's row without its parameters; None: there is no such task."""
    return tx.connection.execute(_TASK, {"id": task_id}).one_or_none()


def existing_task(tx: Transaction, task_id: int) -> AnyRow:
    """Returns the row of a task that must exist, without its parameters."""
    return tx.connection.execute(_TASK, {"id": task_id}).one()


def job_row(tx: Transaction, panda_id: int) -> AnyRow | None:
    """Returns one attempt's row; None: there is no such job."""
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
    """Makes the first attempt of every job of a task that has none; the task then runs."""
    _first_attempts(tx, task, range(1, task.n_jobs + 1))
    change_task(tx, task, status=TaskState.RUNNING.value, n_finished=0, n_failed=0, error_dialog=None, ended=None)


def _first_attempts(tx: Transaction, task: AnyRow, numbers: range) -> None:
    parameters = known_task(tx, task.task_id).parameters
    first = {"attempt_nr": 1, "max_attempt": parameters.max_attempt, "label": task.label}
    _insert(tx, task, [first | {"number": number} for number in numbers])


def add_attempts(tx: Transaction, task: AnyRow, jobs_and_limits: Sequence[tuple[AnyRow, int]]) -> None:
    """Makes the next attempt of jobs of the task, with the task's present resources.

    Args:
        tx: a writing transaction.
        task: the task's row.
        jobs_and_limits: the last attempt of each job, and the number of attempts that the job may have.
    """
    rows = [
        {"number": job.number, "attempt_nr": job.attempt_nr + 1, "max_attempt": max_attempt, "label": job.label}
        for job, max_attempt in jobs_and_limits
    ]
    _insert(tx, task, rows)


def _insert(tx: Transaction, task: AnyRow, rows: Sequence[dict[str, Any]]) -> None:
    parameters = known_task(tx, task.task_id).parameters
    is_paused = task.status == TaskState.PAUSED
    common = {
        "task_id": task.task_id,
        # Brokerage does not see the jobs of a paused task.
        "status": (JobState.DEFINED if is_paused else JobState.ACTIVATED).value,
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
    for some in in_slices(rows, _ROWS_AT_ONCE):
        tx.connection.execute(insert(jobs), [common | row for row in some])
    if not is_paused:
        tx.activated[task.queue, task.task_id] += len(rows)


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
    task = existing_task(tx, job.task_id)
    metrics.ATTEMPTS_ENDED.labels(status.value).inc()
    if status is JobState.FINISHED:
        settle(tx, task, finished=1)
    elif status is JobState.FAILED and job.attempt_nr < job.max_attempt and task.status not in _NO_RETRY:
        add_attempts(tx, task, [(job, job.max_attempt)])
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


# New attempts for jobs that failed for good, when their owner asks. After `retryTask_JEDI` and the incremental
# execution of `insertTaskParamsPanda` in panda-server 1.0.4. Attempt numbers only grow, so a pilot that still has
# an old attempt cannot be taken for the pilot with the new one.

#: A task that was retried as often as this is exhausted, JEDI's ``TASK_MAX_ATTEMPT``; see `retry_over`.
MAX_TASK_ATTEMPTS = 10

_GIVEN_UP = (JobState.FAILED, JobState.CANCELLED, JobState.CLOSED)


def _given_up(tx: Transaction, task_id: int) -> list[AnyRow]:
    """The last attempts of a task's jobs that did not finish and have ended, by number."""
    last = select(func.max(jobs.c.panda_id)).where(jobs.c.task_id == task_id).group_by(jobs.c.number)
    ended = jobs.c.status.in_([state.value for state in _GIVEN_UP])
    query = select(jobs).where(jobs.c.panda_id.in_(last), ended).order_by(jobs.c.number)
    return list(tx.connection.execute(query))


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
    add_attempts(tx, task, [(job, job.attempt_nr + max_attempt) for job in given_up])
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
    """Returns the parameters that may change after submission, under the names that the task has for them."""
    names = CHANGEABLE_PARAMETERS.union(SPLIT_RULES)
    changes = {name: value for name, value in params.items() if name in names or name.startswith("dsFor")}
    if "priority" in changes:
        changes["currentPriority"] = changes.pop("priority")
    if "loopingCheck" in changes:
        changes["noLoopingCheck"] = not changes.pop("loopingCheck")
    return changes


def change_parameters(tx: Transaction, task: AnyRow, changes: Mapping[str, Any], brokered: Mapping[str, Any]) -> AnyRow:
    """Changes a task's parameters, and makes the further jobs that they ask for.

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
    changed = existing_task(tx, task.task_id)
    n_made = tx.connection.scalar(select(func.max(jobs.c.number)).where(jobs.c.task_id == task.task_id)) or 0
    if 0 < n_made < n_jobs:
        _first_attempts(tx, changed, range(n_made + 1, n_jobs + 1))
        if TaskState(changed.status).is_over:
            change_task(tx, changed, status=TaskState.RUNNING.value, error_dialog=None, ended=None)
        changed = existing_task(tx, task.task_id)
    return changed
