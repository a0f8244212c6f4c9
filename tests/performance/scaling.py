"""The advice of `plan --scaling` beside simple rules: error of predicted run times, on its own form and on others.

1, 2, 4, 8 and 16 ranks are measured twice each, with 3% noise. The peers are straight lines between the points in
logarithms, and Amdahl's law fitted by least squares.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import nnls

from hpo_pilot.hpc.scaling import ScalingPoint, fit_scaling

_RING = "ring (its form)"
#: Run time by ranks and two random factors from 0.2 to 2.
CURVES: dict[str, Callable[[int, float, float], float]] = {
    _RING: lambda w, p, q: 100 / w + 3 * p * (w - 1) / w + 0.05 * q * (w - 1) + 1,
    "all-reduce by a tree": lambda w, p, q: 100 / w + p * math.log2(w) + q,
    "power law": lambda w, p, q: 100 * w ** -(0.6 + 0.1 * p),
    "slower beyond a node": lambda w, p, q: 100 / w + p * (0 if w == 1 else 0.5 if w <= 4 else 3) + q,
    "bound by input": lambda w, p, q: max(100 / w, 4 + 4 * p) + q,
    "unequal ranks": lambda w, p, q: 100 / w * (1 + 0.05 * p * math.log2(w + 1)) + 0.2 * q * math.sqrt(w),
}


def measure(*, quick: bool) -> dict[str, Any]:
    """Mean relative errors within the measured sizes (3, 6 and 12 ranks) and beyond (24 and 32)."""
    dice = random.Random(3)
    errors: dict[str, list[float]] = {}
    for curve, truth in CURVES.items():
        form = _RING if curve == _RING else "others"
        for _ in range(20 if quick else 200):
            p, q = dice.uniform(0.2, 2), dice.uniform(0.2, 2)
            sizes = [size for size in (1, 2, 4, 8, 16) for _ in range(2)]
            points = [ScalingPoint(w, w, truth(w, p, q) * dice.lognormvariate(0, 0.03)) for w in sizes]
            model = fit_scaling(points)
            assert model is not None
            for w in (3, 6, 12, 24, 32):
                found = {"hpo-pilot": model.seconds(w), "lines": _lines(points, w), "Amdahl": _amdahl(points, w)}
                for name, seconds in found.items():
                    key = f"{form}, {'within' if w < 16 else 'beyond'}, {name}"
                    errors.setdefault(key, []).append(abs(seconds / truth(w, p, q) - 1))
    figures = {name: sum(one) / len(one) for name, one in errors.items()}
    for name, error in figures.items():
        print(f"  {name:36} mean error {error:.1%}")
    return figures


def _lines(points: list[ScalingPoint], ranks: int) -> float:
    times = [math.exp(sum(math.log(point.seconds) for point in points[n : n + 2]) / 2) for n in range(0, 10, 2)]
    left = min(3, int(math.log2(ranks)))
    return float(times[left] * (times[left + 1] / times[left]) ** (math.log2(ranks) - left))


def _amdahl(points: list[ScalingPoint], ranks: int) -> float:
    rows = np.array([(1 / (point.ranks * point.seconds), 1 / point.seconds) for point in points])
    parallel, serial = nnls(rows, np.ones(len(points)))[0]
    return float(parallel / ranks + serial)
