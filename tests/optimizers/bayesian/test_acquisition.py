from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from hpo_pilot.optimizers.acquisition import log_expected_improvement, log_expected_improvement_gradient, log_h


@pytest.mark.parametrize("z", [-8.0, -3.0, -1.0, -0.999, 0.0, 2.0, 10.0])
def test_against_the_integral(z: float) -> None:
    # E[max(z + N, 0)], integrated with the peak factored out
    value, _ = quad(lambda t: t * math.exp(-0.5 * (t * t - 2 * t * z)), 0, 60 if z < 0 else 30, limit=200)
    expected = math.log(value) - 0.5 * z * z - 0.5 * math.log(2 * math.pi)
    assert log_h(np.array([z]))[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_no_jumps_and_no_infinities_far_out() -> None:
    z = -np.logspace(-1, 8, 2000)
    values = log_h(z)
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values) < 0)
    for border in (-1.0, -1e4):
        below, above = log_h(np.array([border * (1 + 1e-9), border * (1 - 1e-9)]))
        assert below == pytest.approx(above, rel=1e-6)


def test_gradient() -> None:
    mean, variance = np.array([0.5, 3.0, -1.0]), np.array([0.2, 1e-3, 2.0])
    d_mean, d_variance = np.array([[1.0], [0.5], [0.0]]), np.array([[0.3], [-1e-3], [1.0]])
    value, gradient = log_expected_improvement_gradient(mean, variance, d_mean, d_variance, 0.1)
    assert value == pytest.approx(log_expected_improvement(mean, variance, 0.1))
    step = 1e-6
    up, down = (
        log_expected_improvement(mean + sign * step * d_mean[:, 0], variance + sign * step * d_variance[:, 0], 0.1)
        for sign in (1, -1)
    )
    assert gradient[:, 0] == pytest.approx((up - down) / (2 * step), rel=1e-4)
