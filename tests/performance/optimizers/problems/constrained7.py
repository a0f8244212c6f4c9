"""Seven dimensions with four non-linear constraints that leave half a percent of the box (Hock and Schittkowski 100).

The benchmark literature on constrained evolution knows it as G09, on [-10, 10].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

_NAMES = [f"x{index}" for index in range(1, 8)]
_CONSTRAINTS = (
    "2*x1**2 + 3*x2**4 + x3 + 4*x4**2 + 5*x5 <= 127",
    "7*x1 + 3*x2 + 10*x3**2 + x4 - x5 <= 282",
    "23*x1 + x2**2 + 6*x6**2 - 8*x7 <= 196",
    "4*x1**2 + x2**2 - 3*x1*x2 + 2*x3**2 + 5*x6 - 11*x7 <= 0",
)
#: The published optimum, polished with SLSQP and moved inside the constraints; its value is 680.63005739.
_BEST = (2.3304998693, 1.9513724497, -0.4775395155, 4.365725875, -0.6244871529, 1.0381305725, 1.5942267386)


def _value(point: Mapping[str, Any]) -> float:
    x1, x2, x3, x4, x5, x6, x7 = (float(point[name]) for name in _NAMES)
    return (
        (x1 - 10) ** 2
        + 5 * (x2 - 12) ** 2
        + x3**4
        + 3 * (x4 - 11) ** 2
        + 10 * x5**6
        + 7 * x6**2
        + x7**4
        - 4 * x6 * x7
        - 10 * x6
        - 8 * x7
    )


def _violations(point: Mapping[str, Any]) -> tuple[float, ...]:
    x1, x2, x3, x4, x5, x6, x7 = (float(point[name]) for name in _NAMES)
    return (
        2 * x1**2 + 3 * x2**4 + x3 + 4 * x4**2 + 5 * x5 - 127,
        7 * x1 + 3 * x2 + 10 * x3**2 + x4 - x5 - 282,
        23 * x1 + x2**2 + 6 * x6**2 - 8 * x7 - 196,
        4 * x1**2 + x2**2 - 3 * x1 * x2 + 2 * x3**2 + 5 * x6 - 11 * x7,
    )


def constrained7() -> Problem:
    space = SearchSpace.from_dict({name: {"type": "real", "low": -10.0, "high": 10.0} for name in _NAMES}, _CONSTRAINTS)
    best = dict(zip(_NAMES, _BEST, strict=True))
    return Problem("constrained7", space, _value, _value(best), best, _violations)
