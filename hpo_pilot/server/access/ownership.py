"""Whose a task is, and which pilot has a job: everybody sees all, each changes only their own."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from sqlalchemy import select

from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import AnyRow, Transaction
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


class NotThePilotsJob(Exception):
    """A pilot speaks of a job that another one has; the message says so."""

    def __init__(self, panda_id: int) -> None:
        super().__init__(f"job {panda_id} was given to another pilot, or to this one under another token or key")


@dataclass(frozen=True)
class PilotIdentity:
    """By what a pilot is known again.

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
        """Whether this pilot took the job.

        Args:
            job: with the columns holder, holder_node and holder_key.
            node: from where the pilot says that it speaks; empty: it does not say.
        """
        if self.is_operator or job.holder is None:
            return True
        if job.holder_key is not None:
            return hmac.compare_digest(job.holder_key, self.key)
        return job.holder == self.name and (not node or job.holder_node in (None, node[:128]))
