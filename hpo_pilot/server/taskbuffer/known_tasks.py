"""Tasks whose parameters are understood already: reading them again for every job would be most of its cost."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import bindparam, select

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import tasks
from hpo_pilot.server.taskbuffer.task_parameters import TaskParameters

_LIMIT = 512  # tasks kept in memory


@dataclass(frozen=True)
class KnownTask:
    """What never changes while a task's parameters stay the same."""

    task_id: int
    name: str
    user_name: str
    vo: str
    label: str
    parameters: TaskParameters


_REVISION = select(tasks.c.revision).where(tasks.c.task_id == bindparam("task_id"))
_TASK = select(tasks.c.name, tasks.c.user_name, tasks.c.vo, tasks.c.label, tasks.c.params).where(
    tasks.c.task_id == bindparam("task_id")
)


def known_task(tx: Transaction, task_id: int) -> KnownTask:
    """The task with its parameters. It must exist and not be broken."""
    revision = tx.connection.execute(_REVISION, {"task_id": task_id}).scalar_one()
    known = tx.cache.get((task_id, revision))
    if known is None:
        row = tx.connection.execute(_TASK, {"task_id": task_id}).one()
        known = KnownTask(task_id, row.name, row.user_name, row.vo, row.label, TaskParameters(json.loads(row.params)))
        if len(tx.cache) >= _LIMIT:
            # The oldest go first; the other thread may be at the same, so a missing key is no error.
            for key in list(tx.cache)[: _LIMIT // 2]:
                tx.cache.pop(key, None)
        tx.cache[task_id, revision] = known
    assert isinstance(known, KnownTask)  # tells the type checker what the cache holds
    return known
