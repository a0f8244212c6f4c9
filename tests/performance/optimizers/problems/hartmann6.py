"""Hartmann's function of six dimensions: six local minima, one global (Dixon and Szegö 1978)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

_NAMES = [f"x{index}" for index in range(6)]
_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
#: Found by polishing the published minimum with L-BFGS-B to a gradient of 1e-9.
_BEST = (0.20168951, 0.15001069, 0.47687397, 0.27533243, 0.31165162, 0.65730053)


def _value(point: Mapping[str, Any]) -> float:
    x = np.array([point[name] for name in _NAMES])
    return float(-_ALPHA @ np.exp(-np.sum(_A * (x - _P) ** 2, axis=1)))


def hartmann6() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": 0.0, "high": 1.0} for name in _NAMES})
    best = dict(zip(_NAMES, _BEST, strict=True))
    return Problem("hartmann6", space, _value, _value(best), best)
