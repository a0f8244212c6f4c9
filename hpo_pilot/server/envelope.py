"""PanDA's reply envelope: ``{"success", "message", "data"}``.

Format as panda-server 1.0.4 writes it and panda-client 2.2.0 reads it: naive UTC datetimes travel as
``{"__datetime__": "<iso>"}``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hpo_pilot.server.json_text import dump

#: One reply, before it becomes JSON.
Envelope = dict[str, Any]


def success(data: Any = None, message: str = "") -> Envelope:
    """The call was done."""
    return {"success": True, "message": message, "data": data}


def failure(message: str, data: Any = None) -> Envelope:
    """The call was refused; `message` says why."""
    return {"success": False, "message": message, "data": data}


def to_json(envelope: Envelope) -> bytes:
    """The bytes that go over the wire."""
    return dump(envelope, _encode).encode()


def utc(seconds: float | None) -> datetime | None:
    """`seconds` since the epoch as PanDA's naive UTC datetime."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _encode(value: object) -> object:
    if isinstance(value, datetime):
        return {"__datetime__": value.isoformat()}
    raise TypeError(f"{type(value).__name__} cannot travel in an envelope")
