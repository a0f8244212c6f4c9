"""``task/*``: submitting tasks, and the commands to them.

Where a real server wants a production role for a command (pause, resume, reactivate, …), here the task's owner may
give it as well: there are no operators of a laptop.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import select

from hpo_pilot.server.access.ownership import check_owner
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import jobs
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.json_text import load
from hpo_pilot.server.taskbuffer import task_commands
from hpo_pilot.server.taskbuffer import tasks as task_queue
from hpo_pilot.server.taskbuffer.attempts import task_row
from hpo_pilot.server.taskbuffer.job_commands import kill_job
from hpo_pilot.server.taskbuffer.retries import increase_attempts as more_attempts
from hpo_pilot.server.taskbuffer.retries import reactivate as run_again
from hpo_pilot.server.taskbuffer.task_changes import reassign as send_elsewhere
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint

_CHANGED_WHILE_ACTIVE = 5
_MAX_ATTEMPTS = 10_000  # more in one call are taken for this many
_TASK_ID = re.compile(r"jediTaskID=(\d+)")


@endpoint("task/submit", "POST", USERS, Access.WRITE)
def submit(tx: Transaction, call: Call, *, task_parameters: dict[str, Any], parent_tid: int | None = None) -> Envelope:
    """Registers a task; data is its id, or the code of the refusal."""
    most, queues = call.server.limits.most_active_tasks, call.server.queues
    code, message = task_queue.submit(tx, call.caller, task_parameters, parent_tid, most_active=most, queues=queues)
    match = _TASK_ID.search(message)
    if code not in (0, 3) or match is None:
        return failure(message, code)
    return success(int(match[1]), message)


def _outcome(outcome: task_queue.Outcome) -> Envelope:
    code, message = outcome
    return success(code, message) if code == 0 else failure(message, code)


def _command(tx: Transaction, call: Call, task_id: int, name: str, *, soft: bool = False) -> Envelope:
    return _outcome(task_commands.command(tx, call.caller, task_id, name, soft=soft))


@endpoint("task/kill", "POST", USERS, Access.WRITE, owner_of="task_id")
def kill(tx: Transaction, call: Call, *, task_id: int, broadcast: bool = False) -> Envelope:
    """Ends a task; pilots learn it from the answer to their next heartbeat, with or without `broadcast`."""
    return _command(tx, call, task_id, "kill")


@endpoint("task/finish", "POST", USERS, Access.WRITE, owner_of="task_id")
def finish(tx: Transaction, call: Call, *, task_id: int, soft: bool = False, broadcast: bool = False) -> Envelope:
    """Ends a task but keeps what is finished; soft: jobs at pilots go on to their end."""
    return _command(tx, call, task_id, "finish", soft=soft)


@endpoint("task/pause", "POST", USERS, Access.WRITE, owner_of="task_id")
def pause(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Hands out no more jobs of a task."""
    return _command(tx, call, task_id, "pause")


@endpoint("task/resume", "POST", USERS, Access.WRITE, owner_of="task_id")
def resume(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Hands out jobs of a paused task again."""
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

    `ignore_hard_exhausted` lets an operator retry a task however often that was done. The other flags concern child
    tasks, events, staging and shares, which are not here; they are taken and have no effect.
    """
    if not new_parameters:
        code, message = task_commands.command(tx, call.caller, task_id, "retry", ignore_limit=ignore_hard_exhausted)
        return success(code, message)
    try:
        new = load(new_parameters) if isinstance(new_parameters, str) else new_parameters
        if not isinstance(new, dict):
            raise ValueError("an object is expected")
    except ValueError as error:
        return success(1, f"new parameter conversion failed with {error}")
    code, message = task_queue.incremental_execution(tx, task_id, new, call.server.queues)
    if code == _CHANGED_WHILE_ACTIVE:
        return success(3, f"retry has been triggered for failed jobs while the task is still {message}")
    return success(code, message)


@endpoint("task/release", "POST", USERS, Access.WRITE, owner_of="task_id")
def release(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Lets a task go that waits for staging: none does here."""
    return _command(tx, call, task_id, "release")


@endpoint("task/avalanche", "POST", USERS, Access.WRITE, owner_of="task_id")
def avalanche(tx: Transaction, call: Call, *, task_id: int) -> Envelope:
    """Ends a task's scouting: none scouts here."""
    return _command(tx, call, task_id, "avalanche")


@endpoint("task/reload_input", "POST", USERS, Access.WRITE, owner_of="task_id")
def reload_input(tx: Transaction, call: Call, *, task_id: int, ignore_hard_exhausted: bool = False) -> Envelope:
    """Looks for more input of a task that is over and runs its unfinished jobs again."""
    return _outcome(task_commands.command(tx, call.caller, task_id, "incexec", ignore_limit=ignore_hard_exhausted))


@endpoint("task/reassign", "POST", USERS, Access.WRITE, owner_of="task_id")
def reassign(
    tx: Transaction,
    call: Call,
    *,
    task_id: int,
    site: str | None = None,
    cloud: str | None = None,
    nucleus: str | None = None,
    mode: str | None = None,
) -> Envelope:
    """Sends a task's jobs to another queue; `mode` says which: nokill, soft or, by default, all."""
    if site is not None and (trouble := call.server.queues.unknown((site,))):
        return failure(trouble, 4)
    return _outcome(send_elsewhere(tx, call.caller, task_id, site, mode))


@endpoint("task/reactivate", "POST", USERS, Access.WRITE)
def reactivate(
    tx: Transaction,
    call: Call,
    *,
    task_id: int,
    keep_attempt_nr: bool = False,
    trigger_job_generation: bool = False,
) -> Envelope:
    """Runs all jobs of a task again. As on a real server an unknown task is a success with nothing done.

    Attempts are always counted on, and jobs made at once, whatever the flags say.
    """
    task = task_row(tx, task_id)
    if task is not None and (refused := check_owner(tx, call.caller, task_id)):
        return refused
    if task is not None and task.status in ("broken", "aborting", "finishing"):
        refused_state = f"the reactivate command is not accepted if the task is in {task.status} status"
        return failure(f"Command rejected: {refused_state}", 4)
    n_inputs = run_again(tx, task) if task is not None else 0
    return success(0, f"updated {n_inputs} inputs and task {task_id} was reactivated ")


@endpoint("task/increase_attempts", "POST", USERS, Access.WRITE)
def increase_attempts(tx: Transaction, call: Call, *, task_id: int, increase: int) -> Envelope:
    """Allows the unfinished jobs of a running task more attempts."""
    if increase < 0:
        return failure(f"increase must be a positive integer, got {increase}")
    task = task_row(tx, task_id)
    if task is None:
        return failure(f"jediTaskID={task_id} not found", 1)
    if refused := check_owner(tx, call.caller, task_id):
        return refused
    return _outcome(more_attempts(tx, task, min(increase, _MAX_ATTEMPTS)))


@endpoint("task/kill_unfinished_jobs", "POST", USERS, Access.WRITE)
def kill_unfinished_jobs(
    tx: Transaction, call: Call, *, task_id: int, code: int | None = None, use_email_as_id: bool = False
) -> Envelope:
    """Kills the jobs of a task, not the task; data tells of each attempt whether it was."""
    panda_ids = tx.connection.scalars(
        select(jobs.c.panda_id).where(jobs.c.task_id == task_id).order_by(jobs.c.panda_id)
    ).all()
    return success([kill_job(tx, call.caller, panda_id, code) for panda_id in panda_ids])
