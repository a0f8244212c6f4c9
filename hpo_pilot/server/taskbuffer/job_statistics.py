"""How many jobs there are, by queue, kind and state.

Active ones are counted through the partial indices, and those that are over through the tasks that changed lately, so
that the cost does not grow with all that ever ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, TextClause, func, select

from hpo_pilot.jobs import JobState, TaskState
from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, WAITS, jobs, tasks
from hpo_pilot.server.taskbuffer.resource_types import resource_type

HOURS = 12  # how far back jobs that are over count, where the caller does not say

#: States that are always listed, with 0 if need be.
ACTIVE = ("assigned", "activated", "running")
ACTIVE_AND_OVER = (*ACTIVE, "finished", "failed")

_OVER = [state.value for state in JobState if state.is_over]


@dataclass(frozen=True)
class Count:
    """How many jobs are alike."""

    site: str
    label: str
    resource_type: str
    status: str
    n_jobs: int


def _group(tx: Transaction, *conditions: ColumnElement[bool] | TextClause) -> Iterator[AnyRow]:
    columns = (
        func.coalesce(jobs.c.site, jobs.c.queue).label("site"),
        jobs.c.label,
        jobs.c.core_count,
        jobs.c.ram_mb,
        jobs.c.status,
    )
    query = select(*columns, func.count().label("n_jobs")).where(*conditions).group_by(*columns)
    yield from tx.connection.execute(query)


def counts(tx: Transaction, *, since: float | None = None) -> list[Count]:
    """The active jobs, and those that were over after `since` (seconds since the epoch; None: none of them)."""
    paused = select(tasks.c.task_id).where(tasks.c.status == TaskState.PAUSED.value)
    rows = [
        *_group(tx, WAITS),
        *_group(tx, AT_PILOT),
        *_group(tx, jobs.c.task_id.in_(paused), jobs.c.status == JobState.DEFINED.value),
    ]
    if since is not None:
        changed = select(tasks.c.task_id).where(tasks.c.modified >= since)
        rows += _group(tx, jobs.c.task_id.in_(changed), jobs.c.status.in_(_OVER), jobs.c.ended >= since)
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        found[row.site, row.label, resource_type(row.core_count, row.ram_mb), row.status] += row.n_jobs
    return [Count(site, label, kind, status, n_jobs) for (site, label, kind, status), n_jobs in sorted(found.items())]


def nested(
    found: list[Count], keys: Callable[[Count], tuple[str, ...]], states: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`found` as dictionaries within dictionaries, by `keys` and last by state; `states` are there even where 0."""
    tree: dict[str, Any] = {}
    for count in found:
        branch = tree
        for key in keys(count):
            branch = branch.setdefault(key, {})
        for state in states:
            branch.setdefault(state, 0)
        branch[count.status] = branch.get(count.status, 0) + count.n_jobs
    return tree
