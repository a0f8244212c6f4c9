"""The expected improvement of a point, as a logarithm that stays exact where the improvement is next to nothing."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr

Array = npt.NDArray[np.float64]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_HALF_LOG_HALF_PI = 0.5 * math.log(0.5 * math.pi)

#: Below this the exact formula would subtract two equal numbers; an expansion takes its place.
_FAR = -1e4


def log_h(z: Array) -> Array:
    """log(phi(z) + z Phi(z)): the expected improvement of a normal variable, in units of its deviation.

    Ament et al. 2023, "Unexpected improvements to expected improvement for Bayesian optimization", eq. 9; any shape.
    """
    result = np.empty_like(z)
    near, far = z > -1.0, z < _FAR
    middle = ~near & ~far
    x = z[near]
    result[near] = np.log(np.exp(-0.5 * x * x - _HALF_LOG_2PI) + x * np.exp(log_ndtr(x)))
    x = z[middle]
    ratio = np.log(erfcx(-x / math.sqrt(2.0)) * np.abs(x)) + _HALF_LOG_HALF_PI
    result[middle] = -0.5 * x * x - _HALF_LOG_2PI + np.log(-np.expm1(ratio))
    x = z[far]
    result[far] = -0.5 * x * x - _HALF_LOG_2PI - 2.0 * np.log(np.abs(x))
    return result


def log_expected_improvement(mean: Array, variance: Array, best: float) -> Array:
    """The logarithm of the expected improvement below `best`; each of shape (m,)."""
    deviation = np.sqrt(variance)
    return np.asarray(np.log(deviation) + log_h((best - mean) / deviation))


def log_expected_improvement_gradient(
    mean: Array, variance: Array, d_mean: Array, d_variance: Array, best: float
) -> tuple[Array, Array]:
    """The same with its derivatives, shape (m, n_features), from those of mean and variance."""
    deviation = np.sqrt(variance)
    z = (best - mean) / deviation
    h = log_h(z)
    by_mean = -np.exp(log_ndtr(z) - h) / deviation
    by_deviation = np.exp(-0.5 * z * z - _HALF_LOG_2PI - h) / deviation
    gradient = by_mean[:, None] * d_mean + (by_deviation / (2.0 * deviation))[:, None] * d_variance
    return np.log(deviation) + h, gradient
