"""Branin's function of two dimensions: three equal minima (Dixon and Szegö 1978)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem


def _value(point: Mapping[str, Any]) -> float:
    x, y = float(point["x"]), float(point["y"])
    bowl = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return bowl * bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def branin() -> Problem:
    space = SearchSpace.from_dict(
        {"x": {"type": "real", "low": -5.0, "high": 10.0}, "y": {"type": "real", "low": 0.0, "high": 15.0}}
    )
    # At x = π the bowl is exactly 0 for y = 2.275, and the cosine is at its lowest.
    return Problem("branin", space, _value, 10 / (8 * math.pi), {"x": math.pi, "y": 2.275})
