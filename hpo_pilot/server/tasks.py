"""Tasks: accepting them, and the commands to them. Codes and messages are those of panda-server 1.0.4.

Source: `pandaserver/taskbuffer/db_proxy_mods/task_event_module.py`, `insertTaskParamsPanda` and `sendCommandTaskPanda`.
Unlike there a command is carried out at once, and **no task is ever reactivated by a submission**: a name that is taken
is a duplicate (code 2) whatever state its task is in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import exists, func, insert, select, text, update

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.attempts import change_task, make_jobs, settle, task_row
from hpo_pilot.server.auth import Caller
from hpo_pilot.server.database import AnyRow, Transaction
from hpo_pilot.server.field_names import CHANGEABLE_PARAMETERS
from hpo_pilot.server.retries import retry_jobs
from hpo_pilot.server.tables import AT_PILOT, cache_files, jobs, tasks
from hpo_pilot.server.task_parameters import TaskParameters, TaskParametersError

#: A code and what it means in words: 0 is well.
Outcome = tuple[int, str]

_PENDING = text("tasks.status = 'pending'")  # as it stands in the index
_USER_PRIORITY = 1000  # what PanDA gives users' tasks; theirs may be lower, never higher
_ENDED = frozenset({"finished", "done", "prepared", "broken", "aborted", "toabort", "aborting", "failed"})
_RETRYABLE = frozenset({"finished", "failed", "exhausted"})


def submit(tx: Transaction, caller: Caller, params: Mapping[str, Any], parent_id: int | None = None) -> Outcome:
    """Registers a task; its jobs wait for pilots as soon as its sandbox is in the cache."""
    params = dict(params)
    if not caller.is_operator or not isinstance(params.get("userName"), str):
        params["userName"] = caller.name
    for key in ("taskName", "vo", "prodSourceLabel"):
        if not isinstance(params.get(key), str) or not params[key]:
            return 4, f"failed to register task: {key} is missing"
    if params.get("uniqueTaskName") is True and (taken := _same_name(tx, params)) is not None:
        return 2, (
            f"jediTaskID={taken.task_id} is in the {taken.status} state for outDS={params['taskName']}. "
            "You cannot submit duplicated tasks: retry that one, or choose another name. "
        )
    task_id = _insert(tx, params, _priority(caller, params), parent_id)
    return 0, f"succeeded. new jediTaskID={task_id}"


def _same_name(tx: Transaction, params: Mapping[str, Any]) -> AnyRow | None:
    return tx.connection.execute(
        select(tasks.c.task_id, tasks.c.status)
        .where(
            tasks.c.user_name == params["userName"],
            tasks.c.name == params["taskName"],
            tasks.c.vo == params["vo"],
            tasks.c.label == params["prodSourceLabel"],
        )
        .order_by(tasks.c.task_id.desc())
        .limit(1)
    ).one_or_none()


def _priority(caller: Caller, params: dict[str, Any]) -> int:
    wanted = params.get("currentPriority", params.get("taskPriority"))
    priority = wanted if isinstance(wanted, int) and abs(wanted) < 2**31 else _USER_PRIORITY
    if not caller.is_operator:
        priority = min(priority, _USER_PRIORITY)
        params["taskType"] = "anal"
    params["taskPriority"] = priority
    return priority


def _insert(tx: Transaction, params: dict[str, Any], priority: int, parent_id: int | None) -> int:
    values = {
        "name": params["taskName"],
        "user_name": params["userName"],
        "vo": params["vo"],
        "label": params["prodSourceLabel"],
        "status": TaskState.REGISTERED.value,
        "parent_id": parent_id,
        "priority": priority,
        "queue": "",
        "params": json.dumps(params),
        "n_jobs": 0,
        "created": tx.now,
        "modified": tx.now,
        "state_changed": tx.now,
        "change": tx.next_change(),
    }
    sandbox = None
    try:
        parameters = TaskParameters(params)
    except TaskParametersError as error:
        values |= {"status": TaskState.BROKEN.value, "error_dialog": str(error)[:510], "ended": tx.now}
    else:
        sandbox = parameters.sandbox
        values |= _brokered(parameters) | {"n_jobs": parameters.n_jobs, "sandbox": sandbox}
        values["status"] = (TaskState.READY if _in_cache(tx, sandbox) else TaskState.PENDING).value
    task_id = _new_id(tx.connection.execute(insert(tasks).values(values)).inserted_primary_key)
    tx.users.add(params["userName"])
    if values["status"] == TaskState.READY:
        make_jobs(tx, _existing(tx, task_id))
    return task_id


def _new_id(key: AnyRow | None) -> int:
    if key is None:
        raise LookupError("the database gave the new task no id")
    return int(key[0])


def _brokered(parameters: TaskParameters) -> dict[str, Any]:
    """The columns that say where a task's jobs may go."""
    queue, included = parameters.queue, parameters.included
    if not queue and len(included) == 1:
        queue = included[0]
    return {"queue": queue, "included": _list(included), "excluded": _list(parameters.excluded)}


def _list(names: tuple[str, ...]) -> str | None:
    return f",{','.join(names)}," if names else None


def _in_cache(tx: Transaction, sandbox: str | None) -> bool:
    return sandbox is None or bool(tx.connection.scalar(select(exists().where(cache_files.c.name == sandbox))))


def _existing(tx: Transaction, task_id: int) -> AnyRow:
    row = task_row(tx, task_id)
    if row is None:
        raise LookupError(f"task {task_id} vanished")
    return row


def sandbox_arrived(tx: Transaction, name: str) -> None:
    """Lets the tasks go that waited for the cache file `name`."""
    waiting = select(tasks.c.task_id).where(_PENDING, tasks.c.sandbox == name).order_by(tasks.c.task_id)
    for task_id in tx.connection.scalars(waiting).all():
        make_jobs(tx, _existing(tx, task_id))


def release_pending(tx: Transaction) -> None:
    """Lets every task go whose sandbox is there; for a start after a crash."""
    names = select(tasks.c.sandbox).where(_PENDING, tasks.c.sandbox.in_(select(cache_files.c.name))).distinct()
    for name in tx.connection.scalars(names).all():
        sandbox_arrived(tx, name)


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
        case "pause":
            refused = status in _ENDED or status in (TaskState.PAUSED, TaskState.EXHAUSTED)
        case "resume":
            refused = status not in ("paused", "throttled", "staging")
    if not refused:
        return None
    return f"Command rejected: the {command} command is not accepted if the task is in {status} status {extra}".strip()


def command(tx: Transaction, caller: Caller, task_id: int, name: str, *, soft: bool = False) -> Outcome:
    """Carries out kill, finish, retry, pause or resume.

    Returns:
        0 with a message; 2: no such task; 4: not in its present state.
    """
    task = task_row(tx, task_id)
    if task is None:
        return 2, f"jediTaskID={task_id} not found"
    if name == "retry" and task.status in ("running", "pending"):
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
        case "retry":
            retry_jobs(tx, task)
        case "pause":
            _set_waiting(tx, task, JobState.ACTIVATED, JobState.DEFINED)
            change_task(tx, task, status=TaskState.PAUSED.value, old_status=task.status)
        case "resume":
            n_waiting = _set_waiting(tx, task, JobState.DEFINED, JobState.ACTIVATED)
            tx.activated[task.queue] += n_waiting
            change_task(tx, task, status=task.old_status or TaskState.RUNNING.value, old_status=None)
            release_pending(tx)
    return 0, f"command={name} is registered for task ID {task_id}"


def retry_with(tx: Transaction, task_id: int, new: Mapping[str, Any]) -> Outcome:
    """Retries a task that is over with some parameters changed.

    Returns:
        3 with a message, as PanDA does; 1: it cannot be done with these parameters; 2: no such task; 4: not in its
        present state.
    """
    task = task_row(tx, task_id)
    if task is None:
        return 2, f"jediTaskID={task_id} not found"
    if task.status not in _RETRYABLE and task.status != TaskState.DONE:
        return 4, f"Command rejected: the retry command is not accepted if the task is in {task.status} status"
    if unknown := sorted(set(new) - set(CHANGEABLE_PARAMETERS)):
        return (
            1,
            f"new parameter conversion failed with {', '.join(unknown)}: "
            f"only {', '.join(CHANGEABLE_PARAMETERS)} can change",
        )
    old = json.loads(tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task_id)) or "{}")
    params = old | dict(new)
    try:
        parameters = TaskParameters(params)
    except TaskParametersError as error:
        return 1, f"new parameter conversion failed with {error}"
    change_task(tx, task, params=json.dumps(params), revision=task.revision + 1, **_brokered(parameters))
    retry_jobs(tx, _existing(tx, task_id))
    return 3, (
        f"reactivation accepted. jediTaskID={task_id} (currently in {task.status} state) will be re-executed "
        "with old and/or new input"
    )


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
    settle(tx, _existing(tx, task.task_id), failed=n_ended)
