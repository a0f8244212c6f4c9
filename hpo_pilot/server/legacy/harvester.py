"""The legacy calls of a Harvester.

After `pandaserver/userinterface/UserIF.py` and `jobdispatcher/JobDispatcher.py` of panda-server 0.8.1. Underneath is
what the new API uses.
"""

from __future__ import annotations

from typing import Any

from hpo_pilot.server.api.harvester import highest_worker, note, worker_statistics
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.legacy.arguments import LegacyArgumentError, document, text
from hpo_pilot.server.legacy.replies import Reply, StatusCode, coded, listed
from hpo_pilot.server.legacy.table import Ask, Refusal, legacy, packed
from hpo_pilot.server.taskbuffer.resource_types import RESOURCE_TYPES
from hpo_pilot.server.taskbuffer.worker_reports import note_workers
from hpo_pilot.server.web.endpoints import Access


def _list(ask: Ask, name: str) -> list[Any]:
    found = document(ask.given, name)
    if not isinstance(found, list):
        raise LegacyArgumentError(f"{name} must be a list")
    return found


@legacy("harvesterIsAlive", Access.WRITE, Refusal.LIST)
def harvester_is_alive(tx: Transaction, ask: Ask) -> Reply:
    """Says that a Harvester lives, and which one it is."""
    data = document(ask.given, "data") if ask.given.get("data") else None
    note(tx, ask.call, text(ask.given, "harvesterID"), "instance" if data else "", data)
    return listed(True, "succeeded")


@legacy("updateWorkers", Access.WRITE, Refusal.LIST)
def update_workers(tx: Transaction, ask: Ask) -> Reply:
    """Keeps the states of workers; the jobs still at one that ended are lost."""
    harvester_id, reported = text(ask.given, "harvesterID"), _list(ask, "workers")
    if not all(isinstance(worker, dict) for worker in reported):
        raise LegacyArgumentError("workers must be a list of objects")
    note(tx, ask.call, harvester_id)
    return listed(True, note_workers(tx, ask.call.pilot, harvester_id[:128], reported))


@legacy("updateServiceMetrics", Access.WRITE, Refusal.LIST)
def update_service_metrics(tx: Transaction, ask: Ask) -> Reply:
    """Keeps the last figures of a Harvester's own load."""
    metrics = _list(ask, "metrics")
    note(tx, ask.call, text(ask.given, "harvesterID"), "metrics", metrics)
    return listed(True, [True] * len(metrics))


@legacy("addHarvesterDialogs", Access.WRITE, Refusal.LIST)
def add_harvester_dialogs(tx: Transaction, ask: Ask) -> Reply:
    """Keeps the last messages of a Harvester."""
    note(tx, ask.call, text(ask.given, "harvesterID"), "dialogs", _list(ask, "dialogs"))
    return listed(True, "")


@legacy("reportWorkerStats_jobtype", Access.WRITE, Refusal.LIST)
def report_worker_stats(tx: Transaction, ask: Ask) -> Reply:
    """Keeps how many workers of which kind a Harvester has at a queue."""
    counts = document(ask.given, "paramsList")
    note(tx, ask.call, text(ask.given, "harvesterID"), f"statistics:{text(ask.given, 'siteName')[:128]}", counts)
    return listed(True, "OK")


@legacy("getWorkerStats", Access.READ, Refusal.LIST)
def get_worker_stats(tx: Transaction, ask: Ask) -> Reply:
    """The last statistics by queue and Harvester."""
    return Reply(packed(worker_statistics(tx)))


@legacy("get_max_worker_id", Access.READ, Refusal.TEXT)
def get_max_worker_id(tx: Transaction, ask: Ask) -> Reply:
    """The highest number of a worker of this Harvester."""
    return Reply(str(highest_worker(tx, text(ask.given, "harvester_id"))))


@legacy("getCommands", Access.WRITE)
def get_commands(tx: Transaction, ask: Ask) -> Reply:
    """Commands for a Harvester: there are none."""
    note(tx, ask.call, text(ask.given, "harvester_id"))
    return coded(StatusCode.SUCCESS, as_json=ask.as_json, Returns=0, Commands=[])


@legacy("ackCommands", Access.NOTHING)
def ack_commands(ask: Ask) -> Reply:
    """Takes the acknowledgement of commands that an earlier server may have given."""
    _list(ask, "command_ids")
    return coded(StatusCode.SUCCESS, as_json=ask.as_json, Returns=0)


@legacy("getResourceTypes", Access.NOTHING)
def get_resource_types(ask: Ask) -> Reply:
    """What the names of resource types mean."""
    return coded(StatusCode.SUCCESS, as_json=ask.as_json, Returns=0, ResourceTypes=RESOURCE_TYPES)
