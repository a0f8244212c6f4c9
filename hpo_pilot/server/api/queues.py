"""``hpo_pilot/queues``: queues, pilots, workers and machines at a glance; what a page about them shows."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sqlalchemy import func, select

from hpo_pilot.server.data.database import AnyRow, Transaction
from hpo_pilot.server.data.tables import AT_PILOT, WAITS, harvesters, jobs, worker_node_gpus, worker_nodes, workers
from hpo_pilot.server.envelope import Envelope, success, utc
from hpo_pilot.server.taskbuffer.queues import Queues
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, Access, endpoint

_MOST = 1000  # workers, machines: the last heard of


@endpoint("hpo_pilot/queues", "GET", ANYBODY_KNOWN, Access.WAIT)
async def queues(call: Call) -> Envelope:
    """All of it.

    Returns:
        data with ``queues``: each with its description, how many jobs wait for it by name, how many are at its pilots
        and how many pilots wait there for jobs (`anywhere`: jobs that may go to any); ``pilots``: who has jobs, and
        when they were last heard of; ``workers``, ``nodes`` and ``harvesters`` as they reported themselves.
    """
    asking = call.server.pilots.asking()
    return success(await call.server.database.read(lambda tx: _overview(tx, call.server.queues, asking)))


def _overview(tx: Transaction, known: Queues, asking: Counter[str]) -> dict[str, Any]:
    counted = tx.connection.execute(select(jobs.c.queue, func.count()).where(WAITS).group_by(jobs.c.queue))
    waiting = {queue: count for queue, count in counted}  # noqa: C416  # rows are no pairs to the type checker
    pilots = _pilots(tx)
    running: Counter[str] = Counter()
    for pilot in pilots:
        running[pilot["queue"] or ""] += pilot["jobs"]
    names = sorted({*known.described, *waiting, *running, *asking} - {""})
    return {
        "queues": [
            {
                "name": name,
                "known": known.find(name) is not None,
                **(found.model_dump(mode="json") if (found := known.described.get(name)) else {}),
                "jobs_waiting": waiting.get(name, 0),
                "jobs_at_pilots": running[name],
                "pilots_asking": asking[name],
            }
            for name in names
        ],
        "anywhere": waiting.get("", 0),
        "pilots": pilots,
        "workers": [_worker(row) for row in tx.connection.execute(_WORKERS)],
        "nodes": _nodes(tx),
        "harvesters": [_harvester(row) for row in tx.connection.execute(select(harvesters))],
    }


_WHO = (jobs.c.site, jobs.c.node, jobs.c.harvester_id, jobs.c.worker_id)
_PILOTS = (
    select(
        *_WHO,
        func.count().label("n"),
        func.sum(jobs.c.core_count).label("cores"),
        func.max(jobs.c.heartbeat - jobs.c.patience).label("heard"),
    )
    .where(AT_PILOT)
    .group_by(*_WHO)
    .order_by(*_WHO)
)
_WORKERS = select(workers).order_by(func.coalesce(workers.c.ended, workers.c.started).desc()).limit(_MOST)


def _pilots(tx: Transaction) -> list[dict[str, Any]]:
    return [
        {
            "queue": row.site,
            "node": row.node,
            "harvester_id": row.harvester_id,
            "worker_id": row.worker_id,
            "jobs": row.n,
            "cores": int(row.cores),
            "last_heard": utc(row.heard),
        }
        for row in tx.connection.execute(_PILOTS)
    ]


def _worker(row: AnyRow) -> dict[str, Any]:
    return {
        "harvester_id": row.harvester_id,
        "worker_id": row.worker_id,
        "status": row.status,
        "node": row.node_id,
        "started": utc(row.started),
        "ended": utc(row.ended),
    }


def _nodes(tx: Transaction) -> list[dict[str, Any]]:
    gpus: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in tx.connection.execute(select(worker_node_gpus)):
        gpu = {"vendor": row.vendor, "model": row.model, **json.loads(row.description)}
        gpus.setdefault((row.site, row.host_name), []).append(gpu)
    newest = select(worker_nodes).order_by(worker_nodes.c.last_seen.desc()).limit(_MOST)
    return [
        {
            "site": row.site,
            "host_name": row.host_name,
            "cpu_model": row.cpu_model,
            **json.loads(row.description),
            "gpus": gpus.get((row.site, row.host_name), []),
            "last_seen": utc(row.last_seen),
        }
        for row in tx.connection.execute(newest)
    ]


def _harvester(row: AnyRow) -> dict[str, Any]:
    return {
        "harvester_id": row.harvester_id,
        "user_name": row.user_name,
        "host": row.host,
        "last_seen": utc(row.last_seen),
        "reports": json.loads(row.reports),
    }
