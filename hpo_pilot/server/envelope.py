"""JSON for and from clients, and PanDA's reply envelope."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

# JSON from and for clients. Python reads and writes ``NaN`` and ``Infinity``, which other programs do not
# understand, and turns a number such as 1e999 into infinity. JSON can hold half a surrogate pair, ``\ud800``, which
# no database stores. Both are refused.

#: Texts that need the check below. Most texts do not match, so they skip it.
_SUSPICIOUS = re.compile(r"\\u[dD][89a-fA-F]|[eE]\+?\d{3}|\d{300}")

#: An even number of backslashes before it are escaped backslashes.
_ZERO = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def load(text: str | bytes) -> Any:
    """A value that came from outside.

    Raises:
        ValueError: it is no JSON, or holds what cannot be kept or passed on; the message says what.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text, parse_constant=_refuse)
        if _SUSPICIOUS.search(text):
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # half a character, or infinity
        if _ZERO.search(text):
            raise ValueError("a text with a zero character")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def dump(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Returns JSON text with null for NaN and infinity, which older servers and pilots may have stored."""
    try:
        return json.dumps(value, default=default, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=default, separators=(",", ":"), allow_nan=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        # A key that is no number has a name in JSON.
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


# PanDA's reply envelope: ``{"success", "message", "data"}``, as panda-server 1.0.4 writes it and panda-client 2.2.0
# reads it. A naive UTC datetime is ``{"__datetime__": "<iso>"}``.

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
