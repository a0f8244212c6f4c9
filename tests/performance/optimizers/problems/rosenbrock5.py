"""Rosenbrock's valley in five dimensions, on [-2, 2]."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

_NAMES = [f"x{index}" for index in range(5)]


def _value(point: Mapping[str, Any]) -> float:
    x = [point[name] for name in _NAMES]
    return float(sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x)))


def rosenbrock5() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": -2.0, "high": 2.0} for name in _NAMES})
    return Problem("rosenbrock5", space, _value, 0.0, dict.fromkeys(_NAMES, 1.0))
