"""Changes to a task while it lives: where it runs, how urgent it is, what its jobs need.

After `changeTaskAttributePanda`, `changeTaskPriorityPanda`, `changeTaskSplitRulePanda` and JEDI's reassignment in
panda-server 1.0.4. JEDI makes a task's jobs one after another, so that changes reach those to come; here all are made
at once, so they reach those that wait.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import AnyRow, Transaction, set_columns
from hpo_pilot.server.data.tables import AT_PILOT, jobs, tasks
from hpo_pilot.server.taskbuffer.attempts import add_attempt, change_task, job_row, task_row
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.retries import change_parameters
from hpo_pilot.server.taskbuffer.task_commands import refusal
from hpo_pilot.server.taskbuffer.task_parameters import TaskParameters
from hpo_pilot.server.taskbuffer.tasks import Outcome, brokered

#: Attributes that may change, and the parameter behind each.
ATTRIBUTES = {"ramCount": "ramCount", "wallTime": "walltime", "cpuTime": "cpuTime", "coreCount": "coreCount"}

_WAITING = (JobState.DEFINED.value, JobState.ACTIVATED.value)
_REASSIGNED = 51  # the kill code with which JEDI ends the jobs of a reassigned task


def _params(tx: Transaction, task_id: int) -> dict[str, Any]:
    text = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task_id))
    params: dict[str, Any] = json.loads(text or "{}")
    return params


def set_parameters(tx: Transaction, task_id: int, changes: Mapping[str, Any]) -> bool:
    """Changes parameters of a task; its waiting jobs follow.

    Returns:
        False: there is no such task.

    Raises:
        TaskParametersError: the new parameters make no sense; nothing was changed.
    """
    task = task_row(tx, task_id)
    if task is None:
        return False
    columns = brokered(TaskParameters(_params(tx, task_id) | dict(changes)))
    changed = change_parameters(tx, task, changes, columns)
    parameters = known_task(tx, task_id).parameters
    needs = {
        "core_count": parameters.core_count,
        "ram_mb": parameters.ram_mb,
        "max_walltime": parameters.max_walltime,
    }
    _change_waiting(tx, changed, needs)
    return True


def _change_waiting(tx: Transaction, task: AnyRow, values: Mapping[str, Any]) -> None:
    waiting = (jobs.c.task_id == task.task_id) & jobs.c.status.in_(_WAITING)
    count = tx.connection.execute(update(jobs).where(waiting).values(modified=tx.now, **values)).rowcount
    if count and task.status != TaskState.PAUSED:
        tx.activated[task.queue, task.task_id] += count  # a pilot that waits may fit now


def set_priority(tx: Transaction, task_id: int, priority: int) -> bool:
    """Changes how urgent a task's jobs are.

    Returns:
        False: there is no such task.
    """
    task = task_row(tx, task_id)
    if task is None:
        return False
    change_task(tx, task, priority=priority)
    active = jobs.c.ended.is_(None)
    tx.connection.execute(update(jobs).where(jobs.c.task_id == task_id, active).values(priority=priority))
    return True


def set_modification_time(tx: Transaction, task_id: int, moment: float) -> bool:
    """Changes when a task seems to have been modified last, in seconds since the epoch.

    Returns:
        False: there is no such task.
    """
    return bool(set_columns(tx, tasks.c.task_id, task_id, {"modified": moment}))


def reassign(tx: Transaction, caller: Caller, task_id: int, site: str | None, mode: str | None) -> Outcome:
    """Sends a task's jobs to another queue.

    Args:
        tx: a writing transaction.
        caller: who asks.
        task_id: the task.
        site: the queue; None: JEDI would choose a cloud or nucleus anew, of which there are none here.
        mode: "nokill": only attempts to come go there; "soft": those that wait as well; else: all, and the attempts
            at pilots end and start again there.

    Returns:
        0 with a message; 2: no such task; 4: not in its present state, or without a site.
    """
    task = task_row(tx, task_id)
    if task is None:
        return 2, f"jediTaskID={task_id} not found"
    if site is None:
        reason = refusal("reassign", task.status, caller)
        return 4, reason or "Command rejected: the embedded PanDA server has no clouds and no nuclei, name a site"
    if task.status == TaskState.BROKEN:
        return 4, "Command rejected: the reassign command is not accepted if the task is in broken status"
    params = _params(tx, task_id) | {"site": site, "includedSite": None}
    changed = change_parameters(tx, task, {"site": site, "includedSite": None}, brokered(TaskParameters(params)))
    if mode != "nokill":
        _change_waiting(tx, changed, {"queue": changed.queue})
    if mode not in ("nokill", "soft"):
        _restart_running(tx, changed, caller)
    return 0, f"command=reassign is registered for task ID {task_id}"


def _restart_running(tx: Transaction, task: AnyRow, caller: Caller) -> None:
    if task.status in (TaskState.ABORTING, TaskState.FINISHING):
        return  # its jobs are to end, not to start again
    running = select(jobs.c.panda_id).where(jobs.c.task_id == task.task_id, AT_PILOT).order_by(jobs.c.panda_id)
    for panda_id in tx.connection.scalars(running).all():
        job = job_row(tx, panda_id)
        if job is None or job.command == "tobekilled":
            continue
        ended = {
            "status": JobState.CLOSED.value,
            "ended": tx.now,
            "modified": tx.now,
            "state_changed": tx.now,
            "buffer_error_code": _REASSIGNED,
            "buffer_error_diag": f"reassigned by {caller.name}",
        }
        set_columns(tx, jobs.c.panda_id, panda_id, ended)
        # The attempt that was taken away does not count.
        add_attempt(tx, task, job, job.max_attempt + 1)
