"""``hpo_pilot/*``: what PanDA does not have; a real server answers that there is no such call."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import select

from hpo_pilot.jobs import TaskState
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import tasks
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.taskbuffer.dispatch import MAX_JOBS
from hpo_pilot.server.taskbuffer.given_back import give_back as give_back_attempts
from hpo_pilot.server.web.call import MAX_WAIT, Call
from hpo_pilot.server.web.endpoints import PILOTS, USERS, Access, endpoint

_MAX_TASKS = 1000  # in one answer
_OVER = [state.value for state in TaskState if state.is_over]


@endpoint("hpo_pilot/changes", "GET", USERS, Access.WAIT)
async def changes(call: Call, *, cursor: int, timeout: float = 0.0, outcomes: bool = False) -> Envelope:
    """The caller's tasks (an operator's: everybody's) that changed, or any of whose jobs did, after `cursor`.

    A long poll: the answer waits for a change, at most `timeout` seconds and at most `MAX_WAIT`. With cursor -1 it
    comes at once and holds all tasks that are not over. With
    `outcomes` only the ends of attempts and of tasks count: what brings results, not every step on the way.

    Returns:
        data ``{"cursor": the next one, "task_ids": […]}``; cursors stay valid over restarts.
    """
    end = time.monotonic() + max(0.0, min(timeout, MAX_WAIT))
    while True:
        # Listening begins before the look, so that no change falls between the two.
        future = call.server.changes.listen("" if call.caller.is_operator else call.caller.name)
        found = await call.server.database.read(lambda tx: _changed(tx, call.caller, cursor, outcomes=outcomes))
        if found["task_ids"] or cursor < 0 or not await call.server.changes.wait(future, end - time.monotonic()):
            future.cancel()
            call.server.changes.forget(future)
            return success(found)


@endpoint("hpo_pilot/give_back", "POST", PILOTS, Access.WRITE)
def give_back(
    tx: Transaction, call: Call, *, jobs: list[list[int]], harvester_id: str = "", worker_id: int | str = ""
) -> Envelope:
    """Takes jobs back from a pilot that has no time left for them; no attempt is used up.

    Args:
        tx: a writing transaction.
        call: the call.
        jobs: [PandaID, attempt number] of each.
        harvester_id: of the worker, as it took the jobs.
        worker_id: the same.

    Returns:
        data ``{"given_back": [PandaID, …]}``; a job that is not among them was not this worker's any more, or is to
        end: the pilot reports on it as on any other.
    """
    if len(jobs) > MAX_JOBS or not all(len(pair) == 2 and all(type(each) is int for each in pair) for pair in jobs):
        return failure(f"jobs must be at most {MAX_JOBS} pairs of PandaID and attempt number")
    attempts = [(panda_id, attempt) for panda_id, attempt in jobs]
    given = give_back_attempts(tx, call.pilot, attempts, harvester_id[:128], str(worker_id)[:128])
    return success({"given_back": given})


def _changed(tx: Transaction, caller: Caller, cursor: int, *, outcomes: bool) -> dict[str, Any]:
    column = tasks.c.outcome if outcomes else tasks.c.change
    last = tx.connection.scalar(select(tasks.c.change).order_by(tasks.c.change.desc()).limit(1)) or 0
    query = select(tasks.c.task_id, column.label("change")).order_by(column)
    if not caller.is_operator:
        query = query.where(tasks.c.user_name == caller.name)
    if cursor < 0 or cursor > last:
        # A cursor from the future comes from a database that was lost: its owner starts afresh.
        query = query.where(tasks.c.status.not_in(_OVER))
        return {"cursor": last, "task_ids": [row.task_id for row in tx.connection.execute(query)]}
    rows = tx.connection.execute(query.where(column > cursor).limit(_MAX_TASKS)).all()
    return {"cursor": rows[-1].change if rows else cursor, "task_ids": [row.task_id for row in rows]}
