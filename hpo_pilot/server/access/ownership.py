"""Whose a task is: everybody sees all, each changes only their own."""

from __future__ import annotations

from sqlalchemy import select

from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import tasks
from hpo_pilot.server.envelope import Envelope, failure

MESSAGE_TASK_OWNER = "not the task owner or no production role"
_NOT_FOUND, _DENIED = 2, 3


def check_owner(tx: Transaction, caller: Caller, task_id: int) -> Envelope | None:
    """The refusal for a caller who may not change the task; None: they may."""
    owner = tx.connection.scalar(select(tasks.c.user_name).where(tasks.c.task_id == task_id))
    if owner is None:
        return failure(f"jediTaskID={task_id} not found", _NOT_FOUND)
    if caller.is_operator or owner == caller.name:
        return None
    return failure(MESSAGE_TASK_OWNER, _DENIED)
