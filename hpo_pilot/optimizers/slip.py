"""Slips in what a caller tells an optimizer: each would cost a result, without a word."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpo_pilot.search import Integer, Real, SearchSpace
from hpo_pilot.search.misfit import did_you_mean, listing
from hpo_pilot.search.point import is_number, show


def finite(value: Any) -> float | None:
    """`value` as a finite number; None for whatever is none (None, NaN, ±inf, booleans, text, containers)."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond 1.8e308
        return None
    return number if math.isfinite(number) else None


def is_several(value: Any) -> bool:
    """Whether `value` has one entry for each of several objectives."""
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)


def slip_in(space: SearchSpace, objectives: int, point: Mapping[str, Any], value: Any) -> str:
    """What is wrong with a result as it was told; empty where nothing is.

    Values beyond the bounds, unknown choices and broken constraints are no slips, and neither is a failed trial.

    Args:
        space: the space.
        objectives: how many figures a trial has.
        point: the point, in native values.
        value: its value, or one for each objective.
    """
    unknown = [name for name in point if name not in space.dimensions]
    if unknown:
        return f"{unknown[0]!r} is not a parameter of the space: {did_you_mean(str(unknown[0]), space.names)}"
    missing = [name for name in space.names if name not in point and space.is_active(name, point)]
    if missing:
        return f"the point has no {listing(missing)}"
    for name, dimension in space.dimensions.items():
        if name in point and isinstance(dimension, Real | Integer) and not is_number(point[name]):
            return f"{name} must be a number, not {show(point[name])}"
    given = len(value) if is_several(value) else 1
    if given == objectives or (not is_several(value) and finite(value) is None):
        return ""
    return f"{given} value{'s' * (given != 1)} for {objectives} objective{'s' * (objectives > 1)}"
