"""``task/*``: submitting tasks, and the commands to them.

Where a real server wants a production role for a command (pause, resume, …), here the task's owner may
give it as well: there are no operators of a laptop.
"""

from __future__ import annotations

import re
from typing import Any

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.json_text import load
from hpo_pilot.server.taskbuffer.task_commands import command
from hpo_pilot.server.taskbuffer.tasks import Outcome, incremental_execution
from hpo_pilot.server.taskbuffer.tasks import submit as submit_task
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import USERS, Access, endpoint

_CHANGED_WHILE_ACTIVE = 5
_TASK_ID = re.compile(r"jediTaskID=(\d+)")


@endpoint("task/submit", "POST", USERS, Access.WRITE)
def submit(tx: Transaction, call: Call, *, task_parameters: dict[str, Any], parent_tid: int | None = None) -> Envelope:
    """Registers a task; data is its id, or the code of the refusal."""
    most, queues = call.server.limits.most_active_tasks, call.server.queues
    code, message = submit_task(tx, call.caller, task_parameters, parent_tid, most_active=most, queues=queues)
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
