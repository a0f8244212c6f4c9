"""Calls of users on tasks and jobs, and on the server itself."""

from __future__ import annotations

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import regex
from sqlalchemy import select

from hpo_pilot.jobs import OVER_TASKS, TaskState
from hpo_pilot.server import descriptions, dispatch
from hpo_pilot.server.calls import ANYBODY_KNOWN, EVERYBODY, MAX_WAIT, PILOTS, USERS, Access, Call, endpoint
from hpo_pilot.server.database import AnyRow, Transaction, jobs, tasks
from hpo_pilot.server.queues import Queue
from hpo_pilot.server.replies import Envelope, failure, load, success
from hpo_pilot.server.tasks import Outcome, command, incremental_execution, kill_job, set_debug
from hpo_pilot.server.tasks import submit as submit_task
from hpo_pilot.server.tokens import Caller

_TYPE = "analysis"  # of every queue here


@endpoint("system/is_alive", "GET", EVERYBODY, Access.NOTHING)
def is_alive(call: Call) -> Envelope:
    """Succeeds if the server answers."""
    return success()


@endpoint("system/get_user_attributes", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_user_attributes(call: Call) -> Envelope:
    """Returns the caller's name and role."""
    name, production = call.caller.name, call.caller.role in PILOTS
    text = (
        f"User DN (raw): {name}\nUser DN (bare): {name}\nUser DN (clean): {name}\nEmail address: None\n"
        f"FQANs: []\nProduction user: {production}\n"
        "Production working groups: []\nPrimary production working group: None\n"
    )
    attributes = {
        "user_dn_raw": name,
        "user_dn_clean": name,
        "fqans": [],
        "is_production_user": production,
        "production_working_groups": [],
        "primary_working_group": None,
    }
    return success(attributes, text)


@endpoint("metaconfig/get_site_specs", "GET", ANYBODY_KNOWN, Access.NOTHING)
def get_site_specs(call: Call, *, type: str = _TYPE) -> Envelope:  # PanDA's word
    """Returns the queues of a type (or ``all``) in the form of PanDA's SiteSpec, by name; empty without queue file."""
    if type not in ("all", _TYPE):
        return success({})
    return success({name: _site_spec(name, queue) for name, queue in sorted(call.server.queues.described.items())})


def _site_spec(name: str, queue: Queue) -> dict[str, Any]:
    return {
        "sitename": name,
        "nickname": name,
        "pandasite": queue.site or name,
        "type": _TYPE,
        "status": queue.status,
        "cloud": "hpo-pilot",
        "coreCount": queue.cores or 0,
        "maxrss": queue.memory_mb or 0,
        "maxwdir": queue.disk_mb or 0,
        "maxtime": int(queue.minutes * 60) if queue.minutes else 0,
    }


# ``task/*``. A real server wants a production role for some commands (pause, resume, …). Here the task's owner may
# give them too: a laptop has no operators.

_CHANGED_WHILE_ACTIVE = 5
_TASK_ID = re.compile(r"jediTaskID=(\d+)")


@endpoint("task/submit", "POST", USERS, Access.WRITE)
def submit(tx: Transaction, call: Call, *, task_parameters: dict[str, Any], parent_tid: int | None = None) -> Envelope:
    """Submits a task; data is its id, or the code of the refusal."""
    code, message = submit_task(tx, call.caller, task_parameters, parent_tid, queues=call.server.queues)
    match = _TASK_ID.search(message)
    if code not in (0, 3) or match is None:
        return failure(message, code)
    return success(int(match[1]), message)


def _outcome(outcome: Outcome) -> Envelope:
    code, message = outcome
    return success(code, message) if code == 0 else failure(message, code)


def _command(tx: Transaction, call: Call, task_id: int, name: str, *, soft: bool = False) -> Envelope:
    return _outcome(command(tx, call.caller, task_id, name, soft=soft))


@endpoint("task/kill", "POST", USERS, Access.WRITE, owner_of="task_id")
def kill(tx: Transaction, call: Call, *, task_id: int, broadcast: bool = False) -> Envelope:
    """Ends a task; pilots get the command with the answer to their next heartbeat. `broadcast` has no effect."""
    return _command(tx, call, task_id, "kill")


@endpoint("task/finish", "POST", USERS, Access.WRITE, owner_of="task_id")
def finish(tx: Transaction, call: Call, *, task_id: int, soft: bool = False, broadcast: bool = False) -> Envelope:
    """Ends a task and keeps its finished jobs; soft: jobs at pilots run to their end."""
    return _command(tx, call, task_id, "finish", soft=soft)


@endpoint("task/pause", "POST", USERS, Access.WRITE, owner_of="task_id")
def pause(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Pauses a task: pilots get no more of its jobs."""
    return _command(tx, call, task_id, "pause")


@endpoint("task/resume", "POST", USERS, Access.WRITE, owner_of="task_id")
def resume(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Resumes a paused task."""
    return _command(tx, call, task_id, "resume")


@endpoint("task/retry", "POST", USERS, Access.WRITE, owner_of="task_id")
def retry(
    tx: Transaction,
    call: Call,
    *,
    task_id: int,
    new_parameters: dict[str, Any] | str | None = None,
    no_child_retry: bool = False,
    discard_events: bool = False,
    disable_staging_mode: bool = False,
    keep_gshare_priority: bool = False,
    ignore_hard_exhausted: bool = False,
) -> Envelope:
    """Gives the jobs that failed new attempts. Always a success; data is the code, as on a real server.

    With `ignore_hard_exhausted` an operator can retry a task any number of times. The other flags concern child tasks,
    events, staging and shares, which this server does not have; they have no effect.
    """
    if not new_parameters:
        code, message = command(tx, call.caller, task_id, "retry", ignore_limit=ignore_hard_exhausted)
        return success(code, message)
    try:
        new = load(new_parameters) if isinstance(new_parameters, str) else new_parameters
        if not isinstance(new, dict):
            raise ValueError("an object is expected")
    except ValueError as error:
        return success(1, f"new parameter conversion failed with {error}")
    code, message = incremental_execution(tx, task_id, new, call.server.queues)
    if code == _CHANGED_WHILE_ACTIVE:
        return success(3, f"retry has been triggered for failed jobs while the task is still {message}")
    return success(code, message)


@endpoint("task/reload_input", "POST", USERS, Access.WRITE, owner_of="task_id")
def reload_input(tx: Transaction, call: Call, *, task_id: int, ignore_hard_exhausted: bool = False) -> Envelope:
    """Looks for more input of a task that is over and runs its unfinished jobs again."""
    return _outcome(command(tx, call.caller, task_id, "incexec", ignore_limit=ignore_hard_exhausted))


_TIME = "%Y-%m-%d %H:%M:%S"
_NOT_FOUND = "Task not found"
_MODIFIED_DAYS, _DETAILED_DAYS = 30, 90  # age of the oldest tasks in the two lists, as on a real server
_MAX_LISTED = 500
_MATCHING_SECONDS = 1.0  # a pattern must not block the other users
_REGEX_SIGNS = frozenset(r"^$*+?\|()")


def _whole_row(tx: Transaction, task_id: int) -> AnyRow | None:
    return tx.connection.execute(select(tasks).where(tasks.c.task_id == task_id)).one_or_none()


@endpoint("task/get_status", "GET", USERS, Access.READ)
def get_status(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Returns the task's state."""
    status = tx.connection.scalar(select(tasks.c.status).where(tasks.c.task_id == task_id))
    return failure(_NOT_FOUND) if status is None else success(status)


@endpoint("task/get_details", "GET", USERS, Access.READ)
def get_details(
    tx: Transaction, call: Call, *, task_id: int, include_parameters: bool = False, include_status: bool = False
) -> Envelope:
    """Returns datasets, statistics and PandaIDs of a task."""
    if (task := _whole_row(tx, task_id)) is None:
        return failure("Task not found or error retrieving the details")
    return success(descriptions.details(tx, task, with_parameters=include_parameters, with_status=include_status))


@endpoint("task/get_task_parameters", "GET", USERS, Access.READ)
def get_task_parameters(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Returns the parameters of a task."""
    params = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task_id))
    return failure(_NOT_FOUND) if params is None else success(json.loads(params))


@endpoint("task/get_detailed_info", "GET", USERS, Access.READ)
def get_detailed_info(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Returns a task's fields, parameters and progress."""
    if (task := _whole_row(tx, task_id)) is None:
        return failure("Task not found or error retrieving task info")
    return success(descriptions.detailed(task))


@endpoint("task/get_job_ids", "GET", USERS, Access.READ)
def get_job_ids(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Returns the PandaIDs of all attempts."""
    query = select(jobs.c.panda_id).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id)
    return success(list(tx.connection.scalars(query)))


@endpoint("task/get_job_descriptions", "GET", USERS, Access.READ)
def get_job_descriptions(tx: Transaction, call: Call, *, task_id: int, unsuccessful_only: bool = False) -> Envelope:
    """Returns the descriptions of all attempts."""
    return success(descriptions.describe_task_jobs(tx, task_id, unsuccessful_only=unsuccessful_only))


@endpoint("task/get_datasets_and_files", "GET", USERS, Access.READ)
def get_datasets_and_files(
    tx: Transaction,
    call: Call,
    *,
    task_id: int,
    dataset_types: list[str] = ["input", "pseudo_input"],  # noqa: B006  # declares the default; nobody changes it
    dataset_only: bool = False,
) -> Envelope:
    """Returns the task's datasets with their files."""
    status = tx.connection.scalar(select(tasks.c.status).where(tasks.c.task_id == task_id))
    if status is None or status == TaskState.BROKEN:
        return failure("No data found for the task")
    found = descriptions.datasets_and_files(tx, task_id, dataset_types, dataset_only=dataset_only)
    return success(found) if found else failure("No data found for the task")


def _since(text: str, now: float, days: int) -> float | None:
    """Returns the start time of a query, at most `days` ago; None: the query has none."""
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
    """Returns the tasks of a user that changed since then, by request id; `dn`: the user, if not the caller.

    The full list has only the newest tasks.
    """
    if (start := _since(since, tx.now, _MODIFIED_DAYS)) is None:
        return success({})
    query = (
        select(tasks)
        .where(
            tasks.c.user_name == (dn or call.caller.name), tasks.c.modified >= start, tasks.c.label == prod_source_label
        )
        .order_by(tasks.c.task_id.desc())
    )
    if min_task_id is not None:
        query = query.where(tasks.c.task_id > min_task_id)
    if full:
        query = query.limit(_MAX_LISTED)
    rows = tx.connection.execute(query).all()
    numbers = descriptions.statistics(tx, rows) if full else {}
    listed = {}
    for row in rows:
        fields = descriptions.task_fields(row)
        listed[row.task_id] = {name: fields[name] for name in descriptions.LISTED_TASK_FIELDS}
        if full:
            listed[row.task_id] |= descriptions.digest(row, numbers[row.task_id])
    return success(listed)


@endpoint("task/get_tasks_detailed_info_since", "GET", USERS, Access.READ)
def get_tasks_detailed_info_since(
    tx: Transaction, call: Call, *, since: str | None = None, filters: str | None = None, n_tasks: int = 500
) -> Envelope:
    """Returns fields, parameters and progress of the selected tasks; of the caller unless a filter names a user."""
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
        if name not in descriptions.TASK_FIELDS or (
            name in descriptions.NUMBER_FILTERS and not re.fullmatch(r"-?\d{1,18}", value)
        ):
            return failure("Failed to retrieve task IDs")
        if name in descriptions.FILTERS:
            query = query.where(
                descriptions.FILTERS[name] == (int(value) if name in descriptions.NUMBER_FILTERS else value)
            )
        else:
            later[name] = value
    if since is not None:
        if (start := _since(since, tx.now, _DETAILED_DAYS)) is None:
            return failure("Failed to retrieve task IDs")
        query = query.where(tasks.c.modified >= start)
    found = [descriptions.detailed(row) for row in tx.connection.execute(query)]
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


@endpoint("job/get_description", "", USERS, Access.READ)
@endpoint("job/get_description_incl_archive", "", USERS, Access.READ)  # there is no archive here
def get_description(tx: Transaction, call: Call, *, job_ids: list[int]) -> Envelope:
    """Returns the descriptions of these jobs; None for a job that does not exist."""
    return success(descriptions.describe_jobs(tx, job_ids))


@endpoint("job/get_metadata_for_analysis_jobs", "GET", USERS, Access.READ)
def get_metadata_for_analysis_jobs(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Returns the job reports of the task's finished jobs, by PandaID."""
    found = descriptions.metadata_of_finished(tx, task_id)
    return success(found) if found else success({}, "No metadata found")


@endpoint("job/kill", "POST", USERS, Access.WRITE)
def kill_jobs(
    tx: Transaction,
    call: Call,
    *,
    job_ids: list[int],
    code: int | None = None,
    use_email_as_id: bool = False,
    kill_options: list[str] = [],  # noqa: B006  # declares the default; nobody changes it
) -> Envelope:
    """Kills jobs for good; data has True for each job that was killed."""
    return success([kill_job(tx, call.caller, panda_id, code, kill_options) for panda_id in job_ids])


@endpoint("job/set_debug_mode", "POST", USERS, Access.WRITE)
def set_debug_mode(tx: Transaction, call: Call, *, job_id: int, mode: bool) -> Envelope:
    """Asks the job's pilot to send its standard output with each heartbeat, or to stop it."""
    message = set_debug(tx, call.caller, job_id, mode)
    return success(message=message) if message == "Succeeded" else failure(message)


_MAX_TASKS = 1000  # in one answer


@endpoint("hpo_pilot/changes", "GET", USERS, Access.WAIT)
async def changes(call: Call, *, cursor: int, timeout: float = 0.0, outcomes: bool = False) -> Envelope:
    """Returns the caller's tasks (for an operator: all tasks) that changed, or whose jobs changed, after `cursor`.

    A long poll: the answer waits for a change, at most `timeout` seconds and at most `MAX_WAIT`. With cursor -1 the
    answer comes at once and has all tasks that are not over. With `outcomes` only the ends of attempts and tasks count.

    Returns:
        data ``{"cursor": the next one, "task_ids": […]}``; cursors stay valid over restarts.
    """
    end = time.monotonic() + max(0.0, min(timeout, MAX_WAIT))
    while True:
        # It listens before it looks, so that no change is missed in between.
        future = call.server.clients.listen("" if call.caller.is_operator else call.caller.name)
        try:
            found = await call.server.database.read(lambda tx: _changed(tx, call.caller, cursor, outcomes=outcomes))
            if found["task_ids"] or cursor < 0 or not await call.server.clients.wait(future, end - time.monotonic()):
                return success(found)
        finally:
            future.cancel()
            call.server.clients.forget(future)


@endpoint("hpo_pilot/give_back", "POST", PILOTS, Access.WRITE)
def give_back(
    tx: Transaction, call: Call, *, jobs: list[list[int]], harvester_id: str = "", worker_id: int | str = ""
) -> Envelope:
    """Takes jobs back from a pilot that has no time for them; it does not count as an attempt.

    Args:
        tx: a writing transaction.
        call: the call.
        jobs: [PandaID, attempt number] of each.
        harvester_id: first part of the worker's name, as in its request for jobs.
        worker_id: second part of the worker's name.

    Returns:
        data ``{"given_back": [PandaID, …]}``; any other job is no longer this worker's, or is
        ending: the pilot still reports on it.
    """
    if len(jobs) > dispatch.MAX_JOBS or not all(
        len(pair) == 2 and all(type(each) is int for each in pair) for pair in jobs
    ):
        return failure(f"jobs must be at most {dispatch.MAX_JOBS} pairs of PandaID and attempt number")
    attempts = [(panda_id, attempt) for panda_id, attempt in jobs]
    given = dispatch.give_back(tx, call.pilot, attempts, harvester_id[:128], str(worker_id)[:128])
    return success({"given_back": given})


def _changed(tx: Transaction, caller: Caller, cursor: int, *, outcomes: bool) -> dict[str, Any]:
    column = tasks.c.outcome if outcomes else tasks.c.change
    last = tx.connection.scalar(select(tasks.c.change).order_by(tasks.c.change.desc()).limit(1)) or 0
    query = select(tasks.c.task_id, column.label("change")).order_by(column)
    if not caller.is_operator:
        query = query.where(tasks.c.user_name == caller.name)
    if cursor < 0 or cursor > last:
        # The cursor is of a database that was lost: the caller starts again.
        query = query.where(tasks.c.status.not_in(OVER_TASKS))
        return {"cursor": last, "task_ids": [row.task_id for row in tx.connection.execute(query)]}
    rows = tx.connection.execute(query.where(column > cursor).limit(_MAX_TASKS)).all()
    return {"cursor": rows[-1].change if rows else cursor, "task_ids": [row.task_id for row in rows]}
