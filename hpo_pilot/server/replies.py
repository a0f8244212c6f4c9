"""JSON from and for clients, and PanDA's reply envelope."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from starlette.responses import Response

# JSON from and for clients. Python reads and writes ``NaN`` and ``Infinity``, which other programs do not
# understand, and turns a number such as 1e999 into infinity. JSON can hold half a surrogate pair, ``\ud800``, which
# no database stores. Both are refused.

#: Texts that need the check below. Most texts do not match, so they skip it.
_SUSPICIOUS = re.compile(r"\\u[dD][89a-fA-F]|[eE]\+?\d{3}|(?<!\d)\d{300}")

#: An even number of backslashes before it are escaped backslashes.
_ZERO = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def load(text: str | bytes) -> Any:
    """Returns the value of a JSON text from a client.

    Raises:
        ValueError: the text is not JSON, or has a value that cannot be stored or sent; the message says which.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text, parse_constant=_refuse)
        if _SUSPICIOUS.search(text):
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # half a surrogate pair, or infinity
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
    raise ValueError(f"{constant} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        # As a key, it is a text in JSON.
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


# PanDA's reply envelope: ``{"success", "message", "data"}``, as panda-server 1.0.4 writes it and panda-client 2.2.0
# reads it. A naive UTC datetime is ``{"__datetime__": "<iso>"}``.

#: One reply, before it becomes JSON.
Envelope = dict[str, Any]


def success(data: Any = None, message: str = "") -> Envelope:
    """Returns the reply to a call that succeeded."""
    return {"success": True, "message": message, "data": data}


def failure(message: str, data: Any = None) -> Envelope:
    """Returns the reply to a refused call; `message` gives the reason."""
    return {"success": False, "message": message, "data": data}


def reply(envelope: Envelope, status: int = 200) -> Response:
    """Returns the reply as an HTTP response."""
    return Response(dump(envelope, _encode), status, media_type="application/json")


def refuse(message: str, status: int) -> Response:
    """Returns the reply to a refused call as an HTTP response."""
    return reply(failure(message), status)


def utc(seconds: float | None) -> datetime | None:
    """Returns PanDA's naive UTC datetime for `seconds` since the epoch."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _encode(value: object) -> object:
    if isinstance(value, datetime):
        return {"__datetime__": value.isoformat()}
    raise TypeError(f"{type(value).__name__} cannot be sent in an envelope")
