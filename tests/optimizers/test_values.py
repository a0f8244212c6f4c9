from __future__ import annotations

import numpy as np
import pytest

from hpo_pilot.optimizers.values import normalised


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 5,
        [7.0],
        [1e300] * 4,
        [1.0, 1.0, 1.0, 1.0 + 1e-16],
    ],
)
def test_equal_values_become_0(values: list[float]) -> None:
    assert normalised(np.array(values)).tolist() == [0.0] * len(values)


@pytest.mark.parametrize(
    "values",
    [
        [1.7e308, -1.7e308, 0.0, 1.0],
        [5e-324, 1e-323, 2e-323, 0.0],
        [0.1, 0.2, 0.3, 0.4, 1e300],
        [-1e300, 0.1, 0.2, 0.3, 0.4],
        [0.0] * 20 + [1.0],
        np.random.default_rng(1).standard_normal(50).tolist(),
        np.exp(5 * np.random.default_rng(1).standard_normal(50)).tolist(),
    ],
)
def test_finite_standard_and_in_the_same_order(values: list[float]) -> None:
    result = normalised(np.array(values))
    assert np.all(np.isfinite(result))
    assert result.mean() == pytest.approx(0.0, abs=1e-9)
    assert result.std() == pytest.approx(1.0)
    assert np.all(np.diff(result[np.argsort(values, kind="stable")]) >= -1e-12)


def test_a_diverged_training_does_not_flatten_the_good_ones() -> None:
    good = np.linspace(0.1, 0.2, 20)
    result = normalised(np.r_[good, 1e12])
    assert np.ptp(result[:20]) > 1.5


def test_none_at_all() -> None:
    assert normalised(np.array([])).size == 0
