"""Where a told point lies in the unit cube, if the space has a place for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import Integer, Real, SearchSpace


def unit_vector(space: SearchSpace, point: Mapping[str, Any]) -> tuple[float, ...] | None:
    """The unit vector of shape (n_dims,) of a point that need not be of the space.

    Numbers beyond a dimension's bounds come out below 0 or above 1 (an older search had other bounds). Constraints are
    not looked at: a point that broke one still says what its value was.

    Returns:
        None where there is no such place: a name is missing, unknown or inactive here, a choice unknown, a value of
        the wrong type, or not above 0 on a log scale.
    """
    placed = []
    for name, dimension in space.dimensions.items():
        if space.is_active(name, point) != (name in point):
            return None
        if name not in point:
            placed.append(0.5)
            continue
        value = point[name]
        try:
            place = float(dimension.to_unit(value))
        except (TypeError, ValueError, OverflowError):
            return None
        on_log_scale = isinstance(dimension, Real | Integer) and dimension.scale == "log"
        if not math.isfinite(place) or (on_log_scale and value <= 0):
            return None
        placed.append(place)
    return None if point.keys() - space.dimensions.keys() else tuple(placed)
