"""``hpo_pilot/demand``: what waits, by what it needs, and who could take it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import func, select

from hpo_pilot.server.brokerage.needs import Needs, needs_of, parse_needs
from hpo_pilot.server.data.database import AnyRow, Transaction, in_slices
from hpo_pilot.server.data.tables import AT_PILOT, WAITS, jobs, tasks
from hpo_pilot.server.envelope import Envelope, success
from hpo_pilot.server.taskbuffer.known_tasks import known_task
from hpo_pilot.server.taskbuffer.offers import Offer
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, Access, endpoint

_MOST = 1000  # shapes in one answer, those that most jobs have
_MINUTE = 60.0


@endpoint("hpo_pilot/demand", "GET", ANYBODY_KNOWN, Access.READ)
def demand(tx: Transaction, call: Call, *, queue: str = "", task_ids: list[int] | None = None) -> Envelope:
    """What waits, by what it needs, and who could take it.

    Args:
        tx: a transaction.
        call: the call.
        queue: whose pilots are meant; empty: all.
        task_ids: whose jobs are meant; None: all tasks'.

    Returns:
        data with ``waiting``: for each shape of jobs that wait where such pilots may take them the number of ``jobs``,
        ``since`` when the first of them waits, and ``nodes``, ``gpus``, ``cores``, ``memory_mb`` and ``minutes`` of one
        (0: not said); ``going``: how many jobs, of any task, those pilots have; ``offers``: for each pilot that asked
        for jobs in the last hour when it last ``asked``, the most that it had free at once (0: it did not say), and
        whether it ``is_busy``, that is has jobs, for then it may have no reason to ask;
        ``known_for``: how long the server has listened. Times are in seconds before now.
    """
    found: dict[Needs, dict[str, Any]] = {}
    for row in _rows(tx, task_ids):
        if not _may_go(row, queue):
            continue
        needs = parse_needs(row.needs) if row.needs else needs_of(known_task(tx, row.task_id).parameters)
        entry = found.setdefault(needs, {"jobs": 0, "since": 0.0})
        entry["jobs"] += row.n_jobs
        entry["since"] = max(entry["since"], tx.now - row.since)
    waiting = sorted(({**entry, **_shape(needs)} for needs, entry in found.items()), key=lambda one: -one["jobs"])
    busy = {(row.harvester_id or "", row.worker_id or "") for row in tx.connection.execute(_BUSY)}
    offers = [
        {**asdict(offer), "asked": max(0.0, tx.now - offer.asked), "is_busy": _name(offer) in busy}
        for offer in call.server.pilot_book.offers(queue)
    ]
    known = max(0.0, tx.now - call.server.pilot_book.began)
    return success({"waiting": waiting[:_MOST], "going": _going(tx, queue), "offers": offers, "known_for": known})


_BUSY = select(jobs.c.harvester_id, jobs.c.worker_id).where(AT_PILOT).distinct()
_WAITING = (
    select(
        jobs.c.task_id,
        jobs.c.queue,
        tasks.c.included,
        tasks.c.excluded,
        tasks.c.needs,
        func.count().label("n_jobs"),
        func.min(jobs.c.state_changed).label("since"),
    )
    .join(tasks, tasks.c.task_id == jobs.c.task_id)
    .where(WAITS)
    .group_by(jobs.c.task_id, jobs.c.queue, tasks.c.included, tasks.c.excluded, tasks.c.needs)
)


def _rows(tx: Transaction, task_ids: Sequence[int] | None) -> Iterator[AnyRow]:
    if task_ids is None:
        yield from tx.connection.execute(_WAITING)
        return
    for some in in_slices(set(task_ids)):
        yield from tx.connection.execute(_WAITING.where(jobs.c.task_id.in_(some)))


def _may_go(row: AnyRow, queue: str) -> bool:
    """Whether pilots of the queue may take jobs that wait so."""
    if not queue or row.queue:
        return not queue or bool(row.queue == queue)
    named = f",{queue},"
    return (not row.included or named in row.included) and named not in (row.excluded or "")


def _name(offer: Offer) -> tuple[str, str]:
    return offer.harvester_id, offer.worker_id


def _shape(needs: Needs) -> dict[str, Any]:
    return {
        "nodes": needs.nodes,
        "gpus": needs.gpus,
        "cores": needs.cores,
        "memory_mb": needs.ram_mb,
        "minutes": (needs.payload_seconds or needs.seconds) / _MINUTE,
    }


def _going(tx: Transaction, queue: str) -> int:
    query = select(func.count()).select_from(jobs).where(AT_PILOT)
    if queue:
        query = query.where(func.coalesce(jobs.c.site, jobs.c.queue) == queue)
    return int(tx.connection.scalar(query) or 0)
