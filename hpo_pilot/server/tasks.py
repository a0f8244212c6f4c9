"""Tasks: accepts them, carries out commands to them and their jobs, and removes old ones."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from hpo_pilot.databases import among
from hpo_pilot.jobs import ASKED_QUEUE, OVER_TASKS, JobState, TaskState
from hpo_pilot.server import attempts
from hpo_pilot.server.brokerage import campaign_of
from hpo_pilot.server.chains import KEPT_SECONDS
from hpo_pilot.server.database import (
    AT_PILOT,
    AnyRow,
    Database,
    Transaction,
    cache_files,
    job_documents,
    jobs,
    metadata,
    moved_to,
    remove_cached,
    set_columns,
    tasks,
    workers,
)
from hpo_pilot.server.file_store import CHAIN_START, CHECKPOINT_START, Folder, checkpoint_task
from hpo_pilot.server.queues import Queues
from hpo_pilot.server.task_parameters import (
    UNSUPPORTED,
    OutputNameError,
    TaskParameters,
    TaskParametersError,
    known_task,
)
from hpo_pilot.server.tokens import Caller

# Accepting tasks. Codes and messages are those of panda-server 1.0.4
# (`pandaserver/taskbuffer/db_proxy_mods/task_event_module.py`, `insertTaskParamsPanda`). A task that asks for a
# unique name is compared with its user's task of that name:
#
# ================================  ====  ===========================================================================
# state of the older task           code  effect
# ================================  ====  ===========================================================================
# going on, or broken               2     none: a duplicate
# over                              3     the older task runs its unfinished jobs again, with the new parameters that
#                                         may change ("incremental execution")
# over, and of hpo-pilot            2     none: its name always means the same set of points, see `OWN_MARK`
# ================================  ====  ===========================================================================
#
# A task that does not ask for a unique name is always new.

#: A code and its message; 0: success.
Outcome = tuple[int, str]

_PENDING = text("tasks.status = 'pending'")  # literally as in the index
_USER_PRIORITY = 1000  # PanDA's priority of users' tasks; a task may ask for a lower one, never a higher one
_INCREMENTAL = frozenset({"finished", "failed", "aborted", "done", "exhausted"})
_RETRIED_WHILE = frozenset({"running", "scouting", "pending"})

#: The largest number of jobs of a new task. All jobs are made at once, and pilots and users wait during this time.
#: Tasks of earlier versions may have more.
MOST_NEW_JOBS = 10_000

#: The parameter that marks the tasks of hpo-pilot's searches.
OWN_MARK = "campaign"


def submit(
    tx: Transaction,
    caller: Caller,
    params: Mapping[str, Any],
    parent_id: int | None = None,
    *,
    queues: Queues | None = None,
) -> Outcome:
    """Registers a task; its jobs wait for pilots as soon as its sandbox is in the cache.

    Args:
        tx: a writing transaction.
        caller: the user who submits.
        params: the task's parameters.
        parent_id: the task that it belongs to.
        queues: the known queues; a task that names only others is broken. None: any name is a queue.

    Returns:
        0 with the new task's id in the message; 2: a duplicate name; 3: an older task of this name runs again;
        4: a parameter is missing, this server cannot do what it says, or an output has a name of another user or task;
        11: no such parent.
    """
    params = dict(params)
    if not caller.is_operator or not isinstance(params.get("userName"), str):
        params["userName"] = caller.name
    for key in ("taskName", "vo", "prodSourceLabel"):
        if not isinstance(params.get(key), str) or not params[key]:
            return 4, f"failed to register task: {key} is missing"
    for key, instead in UNSUPPORTED.items():
        if params.get(key):
            return 4, f"failed to register task: {key}: the embedded PanDA server {instead}"
    if "parentTaskName" in params:
        parent_id = _parent(tx, params)
        if parent_id is None:
            user, name = params["userName"], params["parentTaskName"]
            return 11, f'failed to find parent with user="{user}" name={name}'
    priority = _priority(caller, params)
    if params.get("uniqueTaskName") is True and (taken := _same_name(tx, params)) is not None:
        return _resubmit(tx, taken, params, queues)
    owners = [name for name in (params["userName"], caller.name, caller.nickname) if name]
    try:
        task_id = _insert(tx, params, priority, parent_id, queues, owners)
    except OutputNameError as error:
        return 4, f"failed to register task: {error}"
    return 0, f"succeeded. new jediTaskID={task_id}"


def _parent(tx: Transaction, params: Mapping[str, Any]) -> int | None:
    query = select(func.max(tasks.c.task_id)).where(
        tasks.c.user_name == params["userName"], tasks.c.name == str(params["parentTaskName"])
    )
    found: int | None = tx.connection.scalar(query)
    return found


def _resubmit(tx: Transaction, taken: AnyRow, params: Mapping[str, Any], queues: Queues | None) -> Outcome:
    """Handles a submission under the name of an older task."""
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
        task_id: number of a task, which must exist.
        params: new parameters; parameters that cannot change are ignored, as on PanDA.
        queues: the known queues; None: any name is a queue.

    Returns:
        3 with a message; 1: the new parameters are not valid; 2: it is not over; 5: it continues, and its failed jobs
        start again with what changed.
    """
    task = attempts.task_row(tx, task_id)
    going_on = task.status in _RETRIED_WHILE and task.label == "user"
    if task.status not in _INCREMENTAL and not going_on:
        return 2, f"jediTaskID={task_id} is in the {task.status} state. You can retry it once it is over. "
    changes = attempts.changes_of(params)
    changes.pop("currentPriority", None)  # an operator's to change
    old = tx.connection.scalar(select(tasks.c.params).where(tasks.c.task_id == task_id))
    try:
        parameters = TaskParameters(json.loads(old or "{}") | changes)
        _check_queues(parameters, queues)
        columns = brokered(parameters)
        changed = attempts.change_parameters(tx, task, changes, columns)
    except TaskParametersError as error:
        return 1, f"new parameter conversion failed with {error}"
    if going_on:
        attempts.retry_jobs(tx, changed)
        return 5, f"{task.status}. new tasks params have been set to jediTaskID={task_id}. "
    attempts.retry_over(tx, changed)
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
    tx: Transaction,
    params: dict[str, Any],
    priority: int,
    parent_id: int | None,
    queues: Queues | None,
    owners: Sequence[str],
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
        parameters.check_outputs(owners)
        _check_queues(parameters, queues)
        if parameters.n_jobs > MOST_NEW_JOBS:
            raise TaskParametersError(f"{parameters.n_jobs} jobs in one task; at most {MOST_NEW_JOBS}: split the task")
    except TaskParametersError as error:
        values |= {"status": TaskState.BROKEN.value, "error_dialog": str(error)[:510], "ended": tx.now}
    else:
        sandbox = parameters.sandbox
        values["campaign"] = campaign_of(params, params["userName"], params["taskName"])
        values |= brokered(parameters) | {"n_jobs": parameters.n_jobs, "sandbox": sandbox}
        if attempts.in_cache(tx, sandbox):
            values["status"] = TaskState.READY.value
        else:
            values |= {"status": TaskState.PENDING.value, "error_dialog": attempts.NO_SANDBOX}
    task_id = int(tx.connection.execute(insert(tasks).values(values).returning(tasks.c.task_id)).scalar_one())
    tx.users.add(params["userName"])
    if values["status"] == TaskState.READY:
        attempts.make_jobs(tx, attempts.task_row(tx, task_id))
    return task_id


def brokered(parameters: TaskParameters) -> dict[str, Any]:
    """Returns the columns of a task that decide where its jobs may run."""
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
    if parameters.queue.startswith(ASKED_QUEUE):
        return  # its trials are for clients, not for pilots
    if queues is not None and (trouble := queues.unknown(named)):
        raise TaskParametersError(trouble)


def _list(names: tuple[str, ...]) -> str | None:
    return f",{','.join(names)}," if names else None


def sandbox_arrived(tx: Transaction, name: str) -> None:
    """Releases the tasks that waited for the cache file `name`."""
    waiting = select(tasks.c.task_id).where(_PENDING, tasks.c.sandbox == name).order_by(tasks.c.task_id)
    for task_id in tx.connection.scalars(waiting).all():
        attempts.make_jobs(tx, attempts.task_row(tx, task_id))


def awaited_by_another(tx: Transaction, name: str, caller: Caller) -> bool:
    """Returns whether a task of another user waits for the cache file `name`: its jobs would run the caller's file."""
    if caller.is_operator:
        return False
    others = select(tasks.c.task_id).where(_PENDING, tasks.c.sandbox == name, tasks.c.user_name != caller.name)
    return tx.connection.scalar(others.limit(1)) is not None


def release_pending(tx: Transaction) -> None:
    """Releases every task whose sandbox is in the cache; for a start after a crash."""
    names = select(tasks.c.sandbox).where(_PENDING, tasks.c.sandbox.in_(select(cache_files.c.name))).distinct()
    for name in tx.connection.scalars(names).all():
        sandbox_arrived(tx, name)


# Commands to tasks. Codes and messages are those of panda-server 1.0.4 (`task_event_module.py`,
# `sendCommandTaskPanda`). Unlike there, the command is carried out before the answer.

_ENDED = frozenset({"finished", "done", "prepared", "broken", "aborted", "toabort", "aborting", "failed"})
_RETRYABLE = frozenset({"finished", "failed", "exhausted"})


def refusal(command: str, status: str, caller: Caller) -> str | None:
    """Returns why a task in this state does not accept `command`; None: it does."""
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
        caller: the user; the right to command is not checked here.
        task_id: the task, which must exist.
        name: the command.
        soft: for finish: jobs at pilots run to their end.
        ignore_limit: for retry and incexec: ignores the limit on retries; only operators may use it.

    Returns:
        0 with a message; 4: not possible in its present state.
    """
    task = attempts.task_row(tx, task_id)
    if name == "retry" and task.status in ("running", "pending") and task.label == "user":
        attempts.retry_jobs(tx, task)
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
            attempts.retry_over(tx, task, ignore_limit=ignore_limit and caller.is_operator)
        case "pause":
            _set_waiting(tx, task, JobState.ACTIVATED, JobState.DEFINED)
            attempts.change_task(tx, task, status=TaskState.PAUSED.value, old_status=task.status)
        case "resume":
            n_waiting = _set_waiting(tx, task, JobState.DEFINED, JobState.ACTIVATED)
            tx.activated[task.queue, task.task_id] += n_waiting
            attempts.change_task(tx, task, status=task.old_status or TaskState.RUNNING.value, old_status=None)
            release_pending(tx)
    return 0, f"command={name} is registered for task ID {task_id}"


def _set_waiting(tx: Transaction, task: AnyRow, old: JobState, new: JobState) -> int:
    return tx.connection.execute(
        update(jobs).where(jobs.c.task_id == task.task_id, jobs.c.status == old.value).values(moved_to(tx, new))
    ).rowcount


def _stop(tx: Transaction, task: AnyRow, state: TaskState, ended: JobState, reason: str, *, kill_running: bool) -> None:
    """Ends waiting jobs and tells pilots to end running ones. The task ends when no job is left."""
    attempts.change_task(tx, task, status=state.value, old_status=None)
    n_ended = tx.connection.execute(
        update(jobs)
        .where(jobs.c.task_id == task.task_id, jobs.c.status.in_((JobState.DEFINED.value, JobState.ACTIVATED.value)))
        .values(moved_to(tx, ended) | {"ended": tx.now, "buffer_error_code": _KILLED, "buffer_error_diag": reason})
    ).rowcount
    if kill_running:
        tx.connection.execute(
            update(jobs)
            .where(jobs.c.task_id == task.task_id, AT_PILOT)
            .values(command="tobekilled", buffer_error_diag=reason)
        )
    if not tx.connection.scalar(select(func.count()).where(jobs.c.task_id == task.task_id)):
        n_ended = task.n_jobs  # killed while it waited for its sandbox, so it never had jobs
    attempts.settle(tx, attempts.task_row(tx, task.task_id), failed=n_ended)


# Commands to jobs, after `killJob` and `setDebugMode` of panda-server 1.0.4. Of its kill codes only one matters
# here: an operator's 99 ends a job at once, without waiting for its pilot.

_KILLED = 100  # taskBufferErrorCode of a job killed on request
_FORCE = 99
_CHANGEABLE = ("defined", "activated", "running", "sent", "starting", "assigned")


def may_change(tx: Transaction, caller: Caller, job: AnyRow) -> bool:
    """Returns True for the owner of the job's task and for operators."""
    owner = tx.connection.scalar(select(tasks.c.user_name).where(tasks.c.task_id == job.task_id))
    return caller.is_operator or owner == caller.name


def kill_job(
    tx: Transaction, caller: Caller, panda_id: int, code: int | None = None, options: Sequence[str] = ()
) -> bool:
    """Kills a job for good: a waiting job at once, a job at a pilot by the answer to its next heartbeat.

    Args:
        tx: a writing transaction.
        caller: the user.
        panda_id: the job.
        code: the reason, as PanDA's kill code.
        options: "jobSubStatus=xyz" sets the job's sub-status.

    Returns:
        False: there is no such job, it is over, or it is not the caller's.
    """
    job = attempts.job_row(tx, panda_id)
    if job is None or JobState(job.status).is_over or not may_change(tx, caller, job):
        return False
    values: dict[str, str | int] = {"buffer_error_diag": f"killed by {caller.name}"}
    for option in options:
        if option.startswith("jobSubStatus="):
            values["sub_status"] = option.removeprefix("jobSubStatus=")[:80]
    waits = job.status in (JobState.DEFINED, JobState.ACTIVATED)
    if waits or (code == _FORCE and caller.is_operator):
        attempts.end_attempt(tx, job, JobState.CANCELLED, buffer_error_code=_KILLED, **values)
    else:
        set_columns(tx, jobs.c.panda_id, panda_id, {"command": "tobekilled", **values})
    return True


def set_debug(tx: Transaction, caller: Caller, panda_id: int, on: bool) -> str:
    """Asks a job's pilot to send its standard output with each heartbeat, or to stop sending it.

    Returns:
        "Succeeded", or the reason why it failed.
    """
    job = attempts.job_row(tx, panda_id)
    if job is None:
        return f"PandaID={panda_id} not found in active DB"
    if job.status not in _CHANGEABLE:
        return f"Cannot set debugMode since the job status is {job.status} which is not in one of {list(_CHANGEABLE)}"
    if not may_change(tx, caller, job):
        return "Permission denied. Not the owner or production manager"
    set_columns(tx, jobs.c.panda_id, panda_id, {"debug": on})
    return "Succeeded"


# Removal of old data: tasks that ended long ago, with their jobs, outputs and sandboxes. It is done in
# slices, each one short transaction, so that pilots' calls can run in between. A sandbox is removed if it has not been
# used for the same time and no stored task names it. Checkpoints are removed a day after the end of their task, those
# that later trials go on from when none of their search was written or read for 30 days.

log = logging.getLogger(__name__)

SLICE = 500  # jobs, or files, in one transaction
_DAY = 86_400.0  # seconds
_PAUSE = 0.2  # seconds between two slices
_FIRST, _EVERY = 600.0, 3600.0  # seconds until the first sweep, and between two

#: The other tables with rows of a task.
_OF_TASKS = [table for table in metadata.sorted_tables if "task_id" in table.c and table not in (tasks, jobs)]


class Housekeeping:
    """Removes records that are older than the server keeps them."""

    def __init__(self, database: Database, cache: Folder, storage: Folder, days: float) -> None:
        """Makes the object; `run` starts to remove records.

        Args:
            database: the database with the tasks.
            cache: the folder of sandboxes.
            storage: the folder of outputs.
            days: time for which records are kept, in days; 0: for ever.
        """
        self._database = database
        self._cache = cache
        self._storage = storage
        self._seconds = days * _DAY

    async def run(self) -> None:
        """Removes old data until cancelled. If the database fails for a while, it is tried again."""
        if self._seconds <= 0:
            return
        await asyncio.sleep(_FIRST)
        while True:
            try:
                while await self._database.write(self.remove_slice):
                    await asyncio.sleep(_PAUSE)
            except (DBAPIError, OSError) as error:
                log.error("removing old data: %s", error)
            await asyncio.sleep(_EVERY)

    def remove_slice(self, tx: Transaction) -> bool:
        """Removes one slice of old data.

        Returns:
            False: there is no more old data.
        """
        before = tx.now - self._seconds
        tx.connection.execute(delete(workers).where(func.coalesce(workers.c.ended, workers.c.started) < before))
        return self._remove_jobs(tx, before) or self._remove_checkpoints(tx) or self._remove_sandboxes(tx, before)

    def _remove_jobs(self, tx: Transaction, before: float) -> bool:
        # The latest change is kept: new cursors are counted from it.
        newest = select(func.max(tasks.c.change)).scalar_subquery()
        task_id = tx.connection.scalar(
            select(tasks.c.task_id)
            .where(
                tasks.c.ended < before,
                tasks.c.modified < before,
                tasks.c.status.in_(OVER_TASKS),
                tasks.c.change < newest,
            )
            .order_by(tasks.c.ended)
            .limit(1)
        )
        if task_id is None:
            return False
        some = select(jobs.c.panda_id, jobs.c.number, jobs.c.attempt_nr).where(jobs.c.task_id == task_id).limit(SLICE)
        rows = tx.connection.execute(some).all()
        if not rows:
            for table in _OF_TASKS:
                tx.connection.execute(delete(table).where(table.c.task_id == task_id))
            tx.connection.execute(delete(tasks).where(tasks.c.task_id == task_id))
            return True
        parameters = known_task(tx, task_id).parameters
        for row in rows:
            texts = parameters.job(task_id=task_id, number=row.number, attempt_nr=row.attempt_nr)
            for file in texts.files:
                _remove_old(self._storage, file.lfn, before)
        ids = [row.panda_id for row in rows]
        tx.connection.execute(delete(job_documents).where(job_documents.c.panda_id.in_(ids)))
        tx.connection.execute(delete(jobs).where(jobs.c.panda_id.in_(ids)))
        return True

    def _remove_checkpoints(self, tx: Transaction) -> bool:
        """Removes checkpoints of tasks that ended a day ago: they are large, and only further attempts need them."""
        of_chain = cache_files.c.name.startswith(CHAIN_START, autoescape=True)
        unused = select(cache_files.c.name).where(of_chain, cache_files.c.touched < tx.now - KEPT_SECONDS)
        if names := tx.connection.scalars(unused.limit(SLICE)).all():
            remove_cached(tx, self._cache, names)
            return True
        of_task = cache_files.c.name.startswith(CHECKPOINT_START, autoescape=True) & ~of_chain
        names = tx.connection.scalars(select(cache_files.c.name).where(of_task)).all()
        by_task = defaultdict(list)
        for name in names:
            by_task[checkpoint_task(name)].append(name)
        ended = tasks.c.ended.is_(None) | (tasks.c.ended >= tx.now - _DAY)
        for kept in tx.connection.scalars(select(tasks.c.task_id).where(among(tasks.c.task_id, by_task), ended)):
            del by_task[kept]
        old = [name for its in by_task.values() for name in its][:SLICE]
        remove_cached(tx, self._cache, old)
        return bool(old)

    def _remove_sandboxes(self, tx: Transaction, before: float) -> bool:
        named = select(tasks.c.sandbox).where(tasks.c.sandbox.is_not(None))
        # Checkpoints of searches have a limit of their own: a paused search may outlive its tasks' records.
        others = ~cache_files.c.name.startswith(CHAIN_START, autoescape=True) & cache_files.c.name.not_in(named)
        unused = select(cache_files.c.name).where(cache_files.c.touched < before, others)
        names = tx.connection.scalars(unused.limit(SLICE)).all()
        remove_cached(tx, self._cache, names)
        return bool(names)


def _remove_old(folder: Folder, name: str, before: float) -> None:
    """Removes a file unless it was written recently: another task may use the same name."""
    path: Path | None = folder.find(name)
    if path is not None and path.stat().st_mtime < before:
        folder.remove(name)
