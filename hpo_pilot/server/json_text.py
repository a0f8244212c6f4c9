r"""JSON from strangers, and for them: nothing that JSON does not have, nothing that a database does not take.

Python reads and writes ``NaN`` and ``Infinity``, which no other program understands; a number like 1e999 becomes one of
them. Half a surrogate pair can be written as ``\ud800``, but no database stores it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

#: What the check below looks for; most texts have neither, and are spared it.
_SUSPICIOUS = re.compile(r"\\u[dD][89a-fA-F]|[eE]\+?\d{3}|\d{300}")

#: An even number of backslashes before it stands for themselves.
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
    """JSON text, where what is no number (NaN, infinity) is null: older servers, and pilots, leave such behind."""
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
