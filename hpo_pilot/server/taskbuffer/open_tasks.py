"""Reading for the board: which tasks have waiting jobs, and what each campaign has at pilots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sqlalchemy import bindparam, func, select

from hpo_pilot.server.brokerage.board import Kind, Lot
from hpo_pilot.server.brokerage.needs import campaign_of, needs_of, parse_needs
from hpo_pilot.server.data.database import AnyRow, Transaction, in_slices
from hpo_pilot.server.data.tables import AT_PILOT, WAITS, jobs, tasks
from hpo_pilot.server.taskbuffer.known_tasks import known_task

_COLUMNS = (
    tasks.c.task_id,
    tasks.c.name,
    tasks.c.user_name,
    tasks.c.label,
    tasks.c.priority,
    tasks.c.included,
    tasks.c.excluded,
    tasks.c.campaign,
    tasks.c.needs,
)
_TASKS = select(*_COLUMNS).where(tasks.c.task_id.in_(bindparam("ids", expanding=True)))
_OPEN = select(jobs.c.task_id, jobs.c.queue).where(WAITS).distinct()
_LOADS = (
    select(tasks.c.campaign, tasks.c.needs, func.sum(jobs.c.core_count))
    .join(tasks, tasks.c.task_id == jobs.c.task_id)
    .where(AT_PILOT)
    .group_by(tasks.c.campaign, tasks.c.needs)
)


def refresh(tx: Transaction) -> None:
    """Hangs up what came since the last look; in the first one everything that waits."""
    board = tx.board
    if not board.complete:
        board.note([(row.queue, row.task_id) for row in tx.connection.execute(_OPEN)], ())
        board.complete = True
    if wanted := board.unread():
        board.hang_up(_lots(tx, wanted))


def _lots(tx: Transaction, wanted: frozenset[tuple[int, str]]) -> Iterator[Lot]:
    rows = {
        row.task_id: row
        for some in in_slices({task_id for task_id, _ in wanted})
        for row in tx.connection.execute(_TASKS, {"ids": some})
    }
    for task_id, queue in sorted(wanted):
        if task_id in rows:
            yield _lot(tx, rows[task_id], queue)


def _lot(tx: Transaction, row: AnyRow, queue: str) -> Lot:
    campaign, needs = row.campaign, row.needs
    if campaign is None or needs is None:
        known = known_task(tx, row.task_id)
        campaign = campaign_of(known.parameters.params, row.user_name, row.name)
        needs = str(needs_of(known.parameters))
    kind = Kind(row.label, row.included or "", row.excluded or "", parse_needs(needs))
    return Lot(row.task_id, queue, row.user_name, row.priority, campaign, kind)


def read_loads(tx: Transaction) -> None:
    """Counts the cores that each campaign has at pilots, unless that was done a moment ago."""
    if tx.board.loads_are_stale(tx.now):
        loads: Counter[str] = Counter()
        for campaign, needs, cores in tx.connection.execute(_LOADS):
            loads[campaign or ""] += int(cores) * (parse_needs(needs).nodes if needs else 1)
        tx.board.set_loads(tx.now, loads)
