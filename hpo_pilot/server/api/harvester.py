"""``harvester/*``: the calls of a Harvester that submits pilots for this server's queues.

It may report on itself and on its workers. It gets no commands, for this server has none to give; calls that would
change how many workers a Harvester submits are therefore refused.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select

from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.data.tables import harvesters, workers
from hpo_pilot.server.envelope import Envelope, failure, success
from hpo_pilot.server.json_text import load
from hpo_pilot.server.taskbuffer.worker_reports import note_harvester, note_workers
from hpo_pilot.server.web.call import Call
from hpo_pilot.server.web.endpoints import ANYBODY_KNOWN, PILOTS, Access, endpoint

_NO_COMMANDS = "the embedded PanDA server gives no commands to Harvesters: set their queue configuration instead"


def note(tx: Transaction, call: Call, harvester_id: str, kind: str = "", report: Any = None) -> None:
    """Notes that the caller's Harvester was heard of, and its last report of a kind."""
    client = call.request.client
    note_harvester(tx, harvester_id[:128], call.caller.name, client.host if client else "", kind, report)


@endpoint("harvester/heartbeat", "POST", PILOTS, Access.WRITE)
def heartbeat(tx: Transaction, call: Call, *, harvester_id: str, data: dict[str, Any] | None = None) -> Envelope:
    """Says that a Harvester lives, and which one it is."""
    note(tx, call, harvester_id, "instance" if data else "", data)
    return success()


@endpoint("harvester/update_workers", "POST", PILOTS, Access.WRITE)
def update_workers(tx: Transaction, call: Call, *, harvester_id: str, workers: list[dict[str, Any]]) -> Envelope:
    """Keeps the states of workers; the jobs still at one that ended are lost."""
    note(tx, call, harvester_id)
    return success(note_workers(tx, call.pilot, harvester_id[:128], workers))


@endpoint("harvester/update_service_metrics", "POST", PILOTS, Access.WRITE)
def update_service_metrics(tx: Transaction, call: Call, *, harvester_id: str, metrics: list[Any]) -> Envelope:
    """Keeps the last figures of a Harvester's own load."""
    note(tx, call, harvester_id, "metrics", metrics)
    return success([True] * len(metrics))


@endpoint("harvester/add_dialogs", "POST", PILOTS, Access.WRITE)
def add_dialogs(tx: Transaction, call: Call, *, harvester_id: str, dialogs: list[Any]) -> Envelope:
    """Keeps the last messages of a Harvester."""
    note(tx, call, harvester_id, "dialogs", dialogs)
    return success()


@endpoint("harvester/report_worker_statistics", "POST", PILOTS, Access.WRITE)
def report_worker_statistics(
    tx: Transaction, call: Call, *, harvester_id: str, panda_queue: str, statistics: str
) -> Envelope:
    """Keeps how many workers of which kind a Harvester has at a queue."""
    try:
        counts = load(statistics)
    except ValueError as error:
        return failure(f"failed to load JSON: statistics: {error}")
    note(tx, call, harvester_id, f"statistics:{panda_queue[:128]}", counts)
    return success(message="OK")


@endpoint("harvester/get_worker_statistics", "GET", ANYBODY_KNOWN, Access.READ)
def get_worker_statistics(tx: Transaction, call: Call) -> Envelope:
    """The last statistics by queue and Harvester."""
    return success(worker_statistics(tx))


def worker_statistics(tx: Transaction) -> dict[str, dict[str, Any]]:
    """What Harvesters last said of their workers: queue -> Harvester -> its counts."""
    found: dict[str, dict[str, Any]] = {}
    for row in tx.connection.execute(select(harvesters.c.harvester_id, harvesters.c.reports)):
        for kind, report in json.loads(row.reports).items():
            if kind.startswith("statistics:"):
                found.setdefault(kind.removeprefix("statistics:"), {})[row.harvester_id] = report
    return found


@endpoint("harvester/get_current_worker_id", "GET", PILOTS, Access.READ)
def get_current_worker_id(tx: Transaction, call: Call, *, harvester_id: str) -> Envelope:
    """The highest number of a worker that this server knows of a Harvester; 0: none."""
    return success(highest_worker(tx, harvester_id))


def highest_worker(tx: Transaction, harvester_id: str) -> int:
    """The highest number of a worker of this Harvester."""
    ids = tx.connection.scalars(select(workers.c.worker_id).where(workers.c.harvester_id == harvester_id[:128]))
    return max((int(name) for name in ids if name.isdecimal()), default=0)


@endpoint("harvester/acquire_commands", "POST", PILOTS, Access.WRITE)
def acquire_commands(tx: Transaction, call: Call, *, harvester_id: str, n_commands: int, timeout: int = 30) -> Envelope:
    """Commands for a Harvester: there are none."""
    note(tx, call, harvester_id)
    return success([])


@endpoint("harvester/acknowledge_commands", "POST", PILOTS, Access.NOTHING)
def acknowledge_commands(call: Call, *, command_ids: list[Any], timeout: int = 30) -> Envelope:
    """Takes the acknowledgement of commands that an earlier server may have given."""
    return success()


@endpoint("harvester/add_sweep_command", "POST", PILOTS, Access.NOTHING)
def add_sweep_command(
    call: Call, *, panda_queue: str, status_list: list[str], ce_list: list[str], submission_host_list: list[str]
) -> Envelope:
    """Refused."""
    return failure(_NO_COMMANDS)


@endpoint("harvester/add_target_slots", "POST", PILOTS, Access.NOTHING)
def add_target_slots(
    call: Call,
    *,
    panda_queue: str,
    slots: int,
    global_share: str | None = None,
    resource_type: str | None = None,
    expiration_date: str | None = None,
) -> Envelope:
    """Refused."""
    return failure(_NO_COMMANDS)
