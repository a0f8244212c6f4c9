"""Hyper-parameter values and points, and field types that the sections of a search share."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict

StrictInt = Annotated[int, Strict()]
StrictFloat = Annotated[float, Strict()]
StrictStr = Annotated[str, Strict()]
StrictBool = Annotated[bool, Strict()]

#: What a hyper-parameter can be; the members are tried as they are, so `1`, `1.0` and `true` stay different.
Scalar = StrictBool | StrictInt | StrictFloat | StrictStr | None

#: A hyper-parameter point: the active dimensions only, as native Python values.
Point = dict[str, Any]


def value_key(value: Any) -> str:
    """The identity of one value: `1`, `1.0`, `True` and `"1"` all differ."""
    return json.dumps(value)


def point_key(point: Mapping[str, Any]) -> str:
    """The identity of a point, independent of the order of its names: two points are equal iff their keys are."""
    return json.dumps(point, sort_keys=True)


def is_number(value: Any) -> bool:
    """True for finite numbers, numpy's included; not for booleans."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the floats
        return False


def show(value: Any) -> str:
    """`value` in a message, as a search file would write it, short enough for a line."""
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


Text = Annotated[StrictStr, Field(min_length=1)]
Count = Annotated[StrictInt, Field(ge=1)]
Amount = Annotated[StrictFloat, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
