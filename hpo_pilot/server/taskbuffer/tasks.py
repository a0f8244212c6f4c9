"""Tasks: accepting them. Codes and messages are those of panda-server 1.0.4.

Source: `pandaserver/taskbuffer/db_proxy_mods/task_event_module.py`, `insertTaskParamsPanda`. A task that asks for a
unique name is compared with its user's task of that name, if there is one:

================================  ====  ==============================================================================
state of the older task           code  what happens
================================  ====  ==============================================================================
going on, or broken               2     nothing: a duplicate
over                              3     the older task runs its unfinished jobs again, with what may change of the
                                        new parameters ("incremental execution")
over, and one of hpo-pilot's own  2     nothing: its names stand for one set of points for ever, see `OWN_MARK`
================================  ====  ==============================================================================

A task that does not ask for it is a new one whatever its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import exists, func, insert, select, text

from hpo_pilot.jobs import TaskState
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.brokerage.needs import campaign_of
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import cache_files, tasks
from hpo_pilot.server.taskbuffer.attempts import NO_SANDBOX, make_jobs, task_row
from hpo_pilot.server.taskbuffer.queues import Queues
from hpo_pilot.server.taskbuffer.retries import change_parameters, changes_of, retry_jobs, retry_over
from hpo_pilot.server.taskbuffer.task_parameters import TaskParameters, TaskParametersError

#: A code and what it means in words: 0 is well.
Outcome = tuple[int, str]

_PENDING = text("tasks.status = 'pending'")  # as it stands in the index
_USER_PRIORITY = 1000  # what PanDA gives users' tasks; theirs may be lower, never higher
_INCREMENTAL = frozenset({"finished", "failed", "aborted", "done", "exhausted"})
_RETRIED_WHILE = frozenset({"running", "scouting", "pending"})
_COUNTED = ("registered", "defined", "ready", "scouting", "running", "paused", "throttled")

#: A new task has at most so many jobs: all are made at once, and all pilots and users wait meanwhile. Tasks of earlier
#: versions may have more.
MOST_NEW_JOBS = 10_000

#: The parameter by which the tasks of hpo-pilot's searches are known.
OWN_MARK = "campaign"


def submit(
    tx: Transaction,
    caller: Caller,
    params: Mapping[str, Any],
    parent_id: int | None = None,
    *,
    most_active: int = 0,
    queues: Queues | None = None,
) -> Outcome:
    """Registers a task; its jobs wait for pilots as soon as its sandbox is in the cache.

    Args:
        tx: a writing transaction.
        caller: who submits.
        params: the task's parameters.
        parent_id: the task that it belongs to.
        most_active: how many tasks of one user may be active; 0: any number.
        queues: those that there are; a task that names none of them is broken. None: any name is one.

    Returns:
        0 with the new task's id in the message; 2: a duplicate name; 3: an older task of this name runs again;
        4: parameters are missing; 10: too many active tasks; 11: no such parent.
    """
    params = dict(params)
    if not caller.is_operator or not isinstance(params.get("userName"), str):
        params["userName"] = caller.name
    for key in ("taskName", "vo", "prodSourceLabel"):
        if not isinstance(params.get(key), str) or not params[key]:
            return 4, f"failed to register task: {key} is missing"
    if "parentTaskName" in params:
        parent_id = _parent(tx, params)
        if parent_id is None:
            user, name = params["userName"], params["parentTaskName"]
            return 11, f'failed to find parent with user="{user}" name={name}'
    priority = _priority(caller, params)
    if most_active and (count := _count_active(tx, params)) > most_active:
        return 10, f"Too many active tasks for {params['userName']} {count}>{most_active}"
    if params.get("uniqueTaskName") is True and (taken := _same_name(tx, params)) is not None:
        return _resubmit(tx, taken, params, queues)
    task_id = _insert(tx, params, priority, parent_id, queues)
    return 0, f"succeeded. new jediTaskID={task_id}"


def _parent(tx: Transaction, params: Mapping[str, Any]) -> int | None:
    query = select(func.max(tasks.c.task_id)).where(
        tasks.c.user_name == params["userName"], tasks.c.name == str(params["parentTaskName"])
    )
    found: int | None = tx.connection.scalar(query)
    return found


def _count_active(tx: Transaction, params: Mapping[str, Any]) -> int:
    query = select(func.count()).where(
        tasks.c.user_name == params["userName"],
        tasks.c.label == params["prodSourceLabel"],
        tasks.c.status.in_(_COUNTED),
    )
    return tx.connection.scalar(query) or 0


def _resubmit(tx: Transaction, taken: AnyRow, params: Mapping[str, Any], queues: Queues | None) -> Outcome:
    """What a submission under the name of an older task does."""
    name, status, task_id = params["taskName"], taken.status, taken.task_id
    if status not in _INCREMENTAL:
        return 2, (
            f"jediTaskID={task_id} is in the {status} state for outDS={name}. "
            "You can re-submit the task with new parameters for the same or another input "
            "once it goes into finished/failed/done. "
            "Or you can retry the task once it goes into running/finished/failed/done. "
        )
    if OWN_MARK in params:
        return 2, (
            f"jediTaskID={task_id} is in the {status} state for outDS={name}. "
            "You cannot submit duplicated tasks: retry that one, or choose another name. "
        )
    return incremental_execution(tx, task_id, params, queues)


def incremental_execution(
    tx: Transaction, task_id: int, params: Mapping[str, Any], queues: Queues | None = None
) -> Outcome:
    """Runs a task that is over again: its unfinished jobs, and the jobs that the new parameters add.

    Args:
        tx: a writing transaction.
        task_id: of a task.
        params: new parameters; those that cannot change are left alone, as PanDA does.
        queues: those that there are; None: any name is one.

    Returns:
        3 with a message; 1: the new parameters make no sense; 2: no such task, or it is not over; 5: it goes on, and
        its failed jobs start again with what changed.
    """
    task = task_row(tx, task_id)
    if task is None:
        return 2, f"jediTaskID={task_id} not found"
    going_on = task.status in _RETRIED_WHILE and task.label == "user"
    if task.status not in _INCREMENTAL and not going_on:
        return 2, f"jediTaskID={task_id} is in the {task.status} state. You can retry it once it is over. "
    changes = changes_of(params)
    changes.pop("currentPriority", None)  # an operator's to change
    old = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task_id))
    try:
        parameters = TaskParameters(json.loads(old or "{}") | changes)
        _check_queues(parameters, queues)
        columns = brokered(parameters)
        changed = change_parameters(tx, task, changes, columns)
    except TaskParametersError as error:
        return 1, f"new parameter conversion failed with {error}"
    if going_on:
        retry_jobs(tx, changed)
        return 5, f"{task.status}. new tasks params have been set to jediTaskID={task_id}. "
    retry_over(tx, changed)
    return 3, (
        f"reactivation accepted. jediTaskID={task_id} (currently in {task.status} state) will be re-executed "
        "with old and/or new input"
    )


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


def _insert(
    tx: Transaction, params: dict[str, Any], priority: int, parent_id: int | None, queues: Queues | None
) -> int:
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
        _check_queues(parameters, queues)
        if params.get("useSecrets"):
            raise TaskParametersError("useSecrets is not for the embedded PanDA server: it keeps no secrets")
        if parameters.n_jobs > MOST_NEW_JOBS:
            raise TaskParametersError(f"{parameters.n_jobs} jobs in one task; at most {MOST_NEW_JOBS}: split it")
    except TaskParametersError as error:
        values |= {"status": TaskState.BROKEN.value, "error_dialog": str(error)[:510], "ended": tx.now}
    else:
        sandbox = parameters.sandbox
        values["campaign"] = campaign_of(params, params["userName"], params["taskName"])
        values |= brokered(parameters) | {"n_jobs": parameters.n_jobs, "sandbox": sandbox}
        if _in_cache(tx, sandbox):
            values["status"] = TaskState.READY.value
        else:
            values |= {"status": TaskState.PENDING.value, "error_dialog": NO_SANDBOX}
    task_id = _new_id(tx.connection.execute(insert(tasks).values(values)).inserted_primary_key)
    tx.users.add(params["userName"])
    if values["status"] == TaskState.READY:
        make_jobs(tx, _existing(tx, task_id))
    return task_id


def _new_id(key: AnyRow | None) -> int:
    if key is None:
        raise LookupError("the database gave the new task no id")
    return int(key[0])


def brokered(parameters: TaskParameters) -> dict[str, Any]:
    """The columns of a task that say where a task's jobs may go."""
    queue, included = parameters.queue, parameters.included
    if not queue and len(included) == 1:
        queue = included[0]
    return {
        "queue": queue,
        "included": _list(included),
        "excluded": _list(parameters.excluded),
        "needs": str(parameters.needs),
    }


def _check_queues(parameters: TaskParameters, queues: Queues | None) -> None:
    named = (parameters.queue,) if parameters.queue else parameters.included
    if queues is not None and (trouble := queues.unknown(named)):
        raise TaskParametersError(trouble)


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
