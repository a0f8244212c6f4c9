"""``/server/panda/*``: the calls that users' clients still make through the legacy API.

Source: `pandaserver/userinterface/UserIF.py` of panda-server 1.0.4. All answer with plain text, most of it the JSON of
``[ok, what came of it]``; without a token that is PanDA's word on insecure connections. What they ask for is not here,
but for checkpoints.
"""

from __future__ import annotations

import json
from typing import Any

from hpo_pilot.server.api.absent import NO_IDDS, NO_WORKFLOWS, refuse_idds_workflow
from hpo_pilot.server.api.file_requests import (
    NO_DATA_MANAGEMENT,
    NO_EVENT_PICKING,
    delete_hpo_checkpoint,
    upload_hpo_checkpoint,
)
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.envelope import Envelope
from hpo_pilot.server.legacy.arguments import text
from hpo_pilot.server.legacy.replies import Reply, listed
from hpo_pilot.server.legacy.table import Ask, Refusal, legacy, packed
from hpo_pilot.server.web.call import NOBODY
from hpo_pilot.server.web.endpoints import Access

_INSECURE = "SSL secure connection is required"


def _answer(ask: Ask, message: str) -> Reply:
    return listed(False, _INSECURE if ask.call.caller is NOBODY else message)


@legacy("relay_idds_command", Access.NOTHING, Refusal.NEVER)
def relay_idds_command(ask: Ask) -> Reply:
    """Refused: there is no iDDS behind this server."""
    text(ask.given, "command_name")
    return _answer(ask, f"failed to execute command with {NO_IDDS}")


@legacy("execute_idds_workflow_command", Access.NOTHING, Refusal.NEVER)
def execute_idds_workflow_command(ask: Ask) -> Reply:
    """Refused: there is no iDDS behind this server."""
    kwargs = ask.given.get("kwargs")
    return _answer(ask, refuse_idds_workflow(text(ask.given, "command_name"), None if kwargs is None else str(kwargs)))


@legacy("put_workflow_request", Access.NOTHING, Refusal.NEVER)
def put_workflow_request(ask: Ask) -> Reply:
    """Refused: there is no workflow engine."""
    try:
        json.loads(text(ask.given, "data"))
    except (ValueError, RecursionError) as error:
        return _answer(ask, f"cannot put request due to {error} ")
    return _answer(ask, f"cannot put request due to {NO_WORKFLOWS}")


@legacy("put_file_recovery_request", Access.NOTHING, Refusal.NEVER)
def put_file_recovery_request(ask: Ask) -> Reply:
    """Refused: no data management would notice lost files."""
    text(ask.given, "jediTaskID")
    return _answer(ask, f"cannot put request due to {NO_DATA_MANAGEMENT}")


@legacy("putEventPickingRequest", Access.NOTHING, Refusal.NEVER)
def put_event_picking_request(ask: Ask) -> Reply:
    """Refused: events are looked up nowhere here."""
    return Reply(_INSECURE if ask.call.caller is NOBODY else f"ERROR : cannot put request due to {NO_EVENT_PICKING}")


def _status(envelope: Envelope) -> Reply:
    return Reply(packed({"status": envelope["success"], "message": envelope["message"]}))


@legacy("delete_checkpoint", Access.WRITE, Refusal.NEVER)
def delete_checkpoint(tx: Transaction, ask: Ask) -> Reply:
    """Removes a point's checkpoint."""
    task_id, sub_id = text(ask.given, "task_id"), text(ask.given, "sub_id")
    if ask.call.caller is NOBODY:
        return Reply(packed({"status": False, "message": "insecure request"}))
    return _status(delete_hpo_checkpoint(tx, ask.call, task_id=task_id, sub_id=sub_id))


@legacy("put_checkpoint", Access.WAIT, Refusal.NEVER)
async def put_checkpoint(ask: Ask) -> Reply:
    """Keeps a point's checkpoint."""
    if ask.call.caller is NOBODY:
        return Reply(packed({"status": False, "message": "insecure request"}))
    envelope: dict[str, Any] = await upload_hpo_checkpoint(ask.call)
    return _status(envelope)
