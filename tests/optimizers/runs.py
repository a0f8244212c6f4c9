"""Spaces, and short searches of an optimizer, for tests of single optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers.base import Optimizer
from hpo_pilot.optimizers.gaussian_process import Posterior
from hpo_pilot.search import Point, SearchSpace

REAL: dict[str, Any] = {"type": "real", "low": 0.0, "high": 1.0}
CUBE = SearchSpace.from_dict({f"x{i}": {"type": "real", "low": -1, "high": 1} for i in range(5)})


def sphere(point: Point) -> float:
    """Lowest in `CUBE` at 0.3 everywhere."""
    return sum((value - 0.3) ** 2 for value in point.values())  # type: ignore[operator, misc]


def run(
    optimizer: Optimizer, function: Callable[[Point], Any], batches: int, batch: int = 8
) -> list[tuple[Point, Any]]:
    """Asks for whole batches and tells their values; returns all points with their values."""
    results: list[tuple[Point, Any]] = []
    for _ in range(batches):
        told = [(point, function(point)) for point in optimizer.ask(batch, [])]
        results += told
        optimizer.tell(told)
    return results


def best(results: list[tuple[Point, Any]]) -> float:
    """The lowest value of those that did not fail."""
    return float(min(value for _, value in results if value is not None))


def check_slopes(posterior: Posterior, at: np.ndarray) -> None:
    """Compares what `gradients` returns with `predict` and with differences of it."""
    mean, variance, d_mean, d_variance = posterior.gradients(at)
    assert (mean, variance) == (pytest.approx(posterior.predict(at)[0]), pytest.approx(posterior.predict(at)[1]))
    for column, shift in enumerate(1e-6 * np.eye(at.shape[1])):
        (up, more), (down, less) = posterior.predict(at + shift), posterior.predict(at - shift)
        assert d_mean[:, column] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6)
        assert d_variance[:, column] == pytest.approx((more - less) / 2e-6, rel=1e-4, abs=1e-6)
