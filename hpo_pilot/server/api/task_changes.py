"""``task/change_*`` and what else an operator does to tasks. All want a production role, as on a real server."""

from __future__ import annotations

from sqlalchemy import exists, select

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import tasks
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.field_names import SPLIT_RULES
from hpo_pilot.server.taskbuffer.task_changes import ATTRIBUTES, set_modification_time, set_parameters, set_priority
from hpo_pilot.server.taskbuffer.task_parameters import TaskParametersError
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint

_HOUR = 3600.0
_MOST_HOURS = 24 * 365 * 100  # further away there is no date
_PRIORITY = 2**31
_NO_EVENT_SERVICE = "the embedded PanDA server has no event service"


def _changed(there: bool) -> Envelope:
    return success(message="1 tasks changed") if there else failure("Task not found")


@endpoint("task/change_attribute", "POST", USERS, Access.WRITE, production=True)
def change_attribute(tx: Transaction, call: Call, *, task_id: int, attribute_name: str, value: int) -> Envelope:
    """Changes ramCount, wallTime, cpuTime or coreCount of a task and of its jobs that wait."""
    if attribute_name not in ATTRIBUTES:
        return failure(f"{attribute_name} is not a valid attribute. Valid attributes are {list(ATTRIBUTES)}")
    try:
        return _changed(set_parameters(tx, task_id, {ATTRIBUTES[attribute_name]: value}))
    except TaskParametersError as error:
        return failure(f"Exception while changing the attribute: {error}")


@endpoint("task/change_modification_time", "POST", USERS, Access.WRITE, production=True)
def change_modification_time(tx: Transaction, call: Call, *, task_id: int, hour_offset: int) -> Envelope:
    """Makes a task seem to have been modified `hour_offset` hours from now."""
    if abs(hour_offset) > _MOST_HOURS:
        return failure(f"failed to convert {hour_offset} to time")
    return _changed(set_modification_time(tx, task_id, tx.now + hour_offset * _HOUR))


@endpoint("task/change_priority", "POST", USERS, Access.WRITE, production=True)
def change_priority(tx: Transaction, call: Call, *, task_id: int, priority: int) -> Envelope:
    """Changes how urgent a task is, and its jobs that are not over."""
    if abs(priority) >= _PRIORITY:
        return failure("priority must be an integer below 2**31")
    return _changed(set_priority(tx, task_id, priority))


@endpoint("task/change_split_rule", "POST", USERS, Access.WRITE, production=True)
def change_split_rule(tx: Transaction, call: Call, *, task_id: int, attribute_name: str, value: str) -> Envelope:
    """Changes a rule by which jobs are made, for those still to be made."""
    if attribute_name not in SPLIT_RULES:
        return failure(f"{attribute_name} is not a valid attribute. Valid attributes are {list(SPLIT_RULES)}", 2)
    number = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else value
    try:
        return _changed(set_parameters(tx, task_id, {SPLIT_RULES[attribute_name]: number}))
    except TaskParametersError as error:
        return failure(f"Exception while changing the split rule: {error}")


@endpoint("task/reassign_global_share", "POST", USERS, Access.READ, production=True)
def reassign_global_share(
    tx: Transaction, call: Call, *, task_id_list: list[int], share: str, reassign_running_jobs: bool
) -> Envelope:
    """Moves tasks to another global share: there are none, the fair share here is between searches."""
    return failure(f"Share {share} is not a leave share ", 1)


def _there(tx: Transaction, task_id: int) -> bool:
    return bool(tx.connection.scalar(select(exists().where(tasks.c.task_id == task_id))))


@endpoint("task/enable_jumbo_jobs", "POST", USERS, Access.READ, production=True)
def enable_jumbo_jobs(
    tx: Transaction, call: Call, *, task_id: int, jumbo_jobs_total: int, jumbo_jobs_per_site: int | None = None
) -> Envelope:
    """Refused: jumbo jobs are the event service's."""
    return failure(_NO_EVENT_SERVICE, 1) if _there(tx, task_id) else failure("task not found", 2)


@endpoint("task/enable_job_cloning", "POST", USERS, Access.READ, production=True)
def enable_job_cloning(
    tx: Transaction,
    call: Call,
    *,
    jedi_task_id: int,
    mode: str | None = None,
    multiplicity: int | None = None,
    num_sites: int | None = None,
) -> Envelope:
    """Refused: cloned jobs are the event service's."""
    return failure(_NO_EVENT_SERVICE if _there(tx, jedi_task_id) else "task not found")


@endpoint("task/disable_job_cloning", "POST", USERS, Access.READ, production=True)
def disable_job_cloning(tx: Transaction, call: Call, *, jedi_task_id: int) -> Envelope:
    """No task has cloned jobs: done already."""
    return success() if _there(tx, jedi_task_id) else failure("task not found")
