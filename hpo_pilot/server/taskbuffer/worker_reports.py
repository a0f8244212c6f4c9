"""What pilots and Harvesters say of themselves: machines, their GPUs, workers, and what else a Harvester reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, insert, select, update

from hpo_pilot.server.access.ownership import PilotIdentity
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import harvesters, worker_node_gpus, worker_nodes, workers
from hpo_pilot.server.taskbuffer.lost_jobs import update_worker

_DIALOGS = 100  # of a Harvester, the last ones
_METRICS = 10

#: States of a Harvester's worker (`WorkerSpec` there) after which it runs nothing any more.
_ENDED = frozenset({"finished", "failed", "cancelled", "missed"})


def host(name: str) -> str:
    """The machine's name without the slot: ``slot1@node`` and ``node`` are the same machine."""
    return name.rsplit("@", 1)[-1][:128]


def note_node(tx: Transaction, site: str, host_name: str, cpu_model: str, description: Mapping[str, Any]) -> bool:
    """Keeps what a pilot says of the machine it runs on.

    Returns:
        True where the machine is new.
    """
    key = {"site": site[:128], "host_name": host(host_name), "cpu_model": cpu_model[:128]}
    return _put(tx, worker_nodes, key, {"description": json.dumps(dict(description)), "last_seen": tx.now})


def note_gpu(
    tx: Transaction, site: str, host_name: str, vendor: str, model: str, description: Mapping[str, Any]
) -> bool:
    """Keeps what a pilot says of one kind of GPU of its machine.

    Returns:
        True where it is new.
    """
    key = {"site": site[:128], "host_name": host(host_name), "vendor": vendor[:128], "model": model[:128]}
    return _put(tx, worker_node_gpus, key, {"description": json.dumps(dict(description)), "last_seen": tx.now})


def _put(tx: Transaction, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    same = [table.c[name] == value for name, value in key.items()]
    if tx.connection.execute(update(table).where(*same).values(values)).rowcount:
        return False
    tx.connection.execute(insert(table).values(**key, **values))
    return True


def note_workers(
    tx: Transaction, pilot: PilotIdentity, harvester_id: str, reported: Sequence[Mapping[str, Any]]
) -> list[bool]:
    """Keeps the states of a Harvester's workers; the jobs still at one that ended are lost.

    Args:
        tx: a writing transaction.
        pilot: who reports; see `update_worker`.
        harvester_id: of the Harvester.
        reported: one mapping for each worker.

    Returns:
        For each whether it could be understood.
    """
    taken = []
    for worker in reported:
        worker_id, status = worker.get("workerID"), worker.get("status")
        understood = worker_id is not None and isinstance(status, str)
        if understood:
            node = worker.get("nodeID")
            known_as = str(worker_id)[:128]
            if status in _ENDED:
                update_worker(tx, pilot, harvester_id, known_as, str(status), str(node)[:128] if node else None)
            else:
                key = {"harvester_id": harvester_id, "worker_id": known_as}
                values = {"status": str(status)[:16], "node_id": str(node)[:128] if node else None}
                _put(tx, workers, key, values | ({"started": tx.now} if status == "running" else {}))
        taken.append(understood)
    return taken


def note_harvester(
    tx: Transaction, harvester_id: str, user_name: str, host_name: str, kind: str = "", report: Any = None
) -> None:
    """Notes that a Harvester was heard of, and its last report of a kind."""
    row = tx.connection.execute(
        select(harvesters.c.reports).where(harvesters.c.harvester_id == harvester_id)
    ).one_or_none()
    reports = json.loads(row.reports) if row else {}
    if kind:
        reports[kind] = report
    for name, most in (("dialogs", _DIALOGS), ("metrics", _METRICS)):
        if isinstance(reports.get(name), list):
            reports[name] = reports[name][-most:]
    values = {
        "user_name": user_name[:128],
        "host": host_name[:128],
        "reports": json.dumps(reports),
        "last_seen": tx.now,
    }
    _put(tx, harvesters, {"harvester_id": harvester_id}, values)
