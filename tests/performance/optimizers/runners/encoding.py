"""The unit cube for peers that know only vectors: a coordinate for each dimension, inactive ones ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import Point, SearchSpace


def active_point(space: SearchSpace, values: Mapping[str, Any]) -> Point:
    """The point with these values, without those of inactive dimensions."""
    point: Point = {}
    missing = dict(space.dimensions)
    while missing:
        ready = [name for name, dimension in missing.items() if not dimension.when.keys() & missing.keys()]
        for name in ready:
            del missing[name]
            if space.is_active(name, point):
                point[name] = space.dimensions[name].canonical(values[name])
    return {name: point[name] for name in space.names if name in point}
