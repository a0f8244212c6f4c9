"""Hyper-parameter values and points."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from typing import Any

#: A hyper-parameter point: the active dimensions only, as native Python values.
Point = dict[str, Any]


def value_key(value: Any) -> str:
    """Returns the identity of a value: `1`, `1.0`, `True` and `"1"` all differ."""
    return json.dumps(value)


#: `json.dumps` would make one for each call, which takes as long again.
_SORTED = json.JSONEncoder(sort_keys=True)


def point_key(point: Mapping[str, Any]) -> str:
    """Returns the identity of a point, which does not depend on the order of the names."""
    return _SORTED.encode(point)


def is_number(value: Any) -> bool:
    """Returns whether `value` is a finite number, numpy's included; False for booleans."""
    if type(value) is float:  # nearly always; the other tests take ten times as long
        return math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the floats
        return False


def show(value: Any) -> str:
    """Returns `value` for a message, written as in a search file and short enough for a line."""
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"
