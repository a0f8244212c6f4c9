from __future__ import annotations

import numpy as np
import pytest

from hpo_pilot.optimizers.training_data import NORMAL, PLAIN, TAMED, warps


def test_a_diverged_training_does_not_flatten_the_good_ones() -> None:
    good = np.linspace(0.1, 0.2, 20)
    tamed = [warped for warped in warps(np.r_[good, 1e12]) if warped.name == NORMAL]
    assert np.ptp(tamed[0].values[:20]) > 1.5


ODD = [
    [1.7e308, -1.7e308, 0.0, 1.0, 3.0],
    [5e-324, 1e-323, 2e-323, 0.0],
    [0.1, 0.2, 0.3, 0.4, 1e300],
    [-1e300, 0.1, 0.2, 0.3, 0.4],
    [0.0] * 20 + [1.0],
    np.random.default_rng(1).standard_normal(50).tolist(),
    np.exp(3 * np.random.default_rng(1).standard_normal(50)).tolist(),
]


@pytest.mark.parametrize("values", ODD)
def test_every_scale_is_standard_and_in_the_same_order(values: list[float]) -> None:
    found = warps(np.array(values))
    assert found[0].name == PLAIN
    for warped in found:
        assert warped.values.mean() == pytest.approx(0.0, abs=1e-9)
        assert warped.values.std() == pytest.approx(1.0)
        assert np.all(np.diff(warped.values[np.argsort(values, kind="stable")]) >= -1e-12)
        assert np.isfinite(warped.log_volume)
        assert np.all(np.isfinite(warped.variances(np.full(len(values), 0.1), np.zeros(len(values), dtype=bool))))


@pytest.mark.parametrize("values", [[], [3.0], [1e300] * 4, [0.0] * 5, [1.0, 1.0, 1.0, 1.0 + 1e-16]])
def test_equal_values_have_no_scale(values: list[float]) -> None:
    assert warps(np.array(values)) == []


def test_slopes_and_volume_are_those_of_the_scale() -> None:
    values = np.exp(2 * np.random.default_rng(1).standard_normal(60))
    step = 1e-7 * values.max()
    names = []
    for warped in warps(values):
        names.append(warped.name)
        for index in (0, 7, int(np.argmax(values)), int(np.argmin(values))):
            # Moved against its neighbours' distances a little: the scale itself stays as it is, to first order.
            other = np.searchsorted(np.sort(values), values[index])
            nearest = np.sort(values)[other - 1 if other else 1]
            at = {w.name: w for w in warps(values)}[warped.name]
            slope = (at.values[index] - at.values[values == nearest][0]) / (values[index] - nearest)
            assert warped.slopes[index] / warped.unit == pytest.approx(slope, rel=0.5)
        stds = np.full(60, step)
        known = (step * warped.slopes / warped.unit) ** 2
        assert warped.variances(stds, np.zeros(60, dtype=bool)) == pytest.approx(known)
        assert warped.variances(stds, np.ones(60, dtype=bool)) == pytest.approx(known + 0.1)
        # The volume leaves out the robust spread that all scales begin with.
        assert np.log(warped.slopes * _spread(values)).sum() == pytest.approx(warped.log_volume)
    assert names == [PLAIN, TAMED, NORMAL]


def _spread(values: np.ndarray) -> float:
    """What all scales divide by first, in units of the largest value: the plain one's slope and volume say so."""
    plain = warps(values)[0]
    return float(np.exp(plain.log_volume / len(values)) / plain.slopes[0])
