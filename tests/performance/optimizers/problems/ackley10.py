"""Ackley's function in ten dimensions, on [-15, 15], its minimum moved out of the centre to x = 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

_NAMES = [f"x{index}" for index in range(10)]
_AT = 3.0


def _value(point: Mapping[str, Any]) -> float:
    x = [point[name] - _AT for name in _NAMES]
    square = sum(v * v for v in x) / len(x)
    waves = sum(math.cos(2 * math.pi * v) for v in x) / len(x)
    return -20 * math.exp(-0.2 * math.sqrt(square)) - math.exp(waves) + 20 + math.e


def ackley10() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": -15.0, "high": 15.0} for name in _NAMES})
    return Problem("ackley10", space, _value, 0.0, dict.fromkeys(_NAMES, _AT))
