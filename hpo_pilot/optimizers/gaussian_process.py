"""The Gaussian process: scikit-optimize's regressor, with a likelihood that is quick to differentiate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve, cholesky
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

Array = npt.NDArray[np.float64]

_SCALE_BOUNDS = (0.03, 100.0)
_AMPLITUDE_BOUNDS = (0.05, 20.0)
_NOISE_BOUNDS = (1e-6, 1.0)

#: Priors of the logarithms, (mean, deviation). Length scales: Hvarfner et al. 2024, "Vanilla Bayesian optimization
#: performs great in high dimensions": the mean grows with the square root of the number of features, so that many
#: features do not make every point a stranger to every other.
_AMPLITUDE_PRIOR = (0.0, 1.0)
_NOISE_PRIOR = (math.log(1e-4), 3.0)
_SCALE_PRIOR_MEAN, _SCALE_PRIOR_DEVIATION = math.sqrt(2.0), math.sqrt(3.0)

#: L-BFGS steps of one fit; the last digits of a length scale change no proposal.
_STEPS = 40


@dataclass(frozen=True)
class Hyperparameters:
    """What a fit finds.

    Attributes:
        amplitude: the prior variance of the (normalised) values.
        scales: length scale per feature, shape (n_features,).
        noise: variance of the noise of one value.
    """

    amplitude: float
    scales: Array
    noise: float

    def covariance(self, first: Array, second: Array) -> Array:
        """The Matérn 5/2 covariance of two sets of features, shape (n_first, n_second), without noise."""
        distance = cdist(first / self.scales, second / self.scales)
        distance *= math.sqrt(5.0)
        result = np.exp(-distance)
        distance += 1.0 + distance * distance / 3.0
        result *= distance
        return np.asarray(result * self.amplitude)


def fit_hyperparameters(
    features: Array, values: Array, *, least_scale: float = _SCALE_BOUNDS[0], least_noise: float = _NOISE_BOUNDS[0]
) -> Hyperparameters:
    """The most probable hyper-parameters for normalised values; from fixed starts, so for the same data the same.

    Args:
        features: shape (n, n_features), distinct rows; a few hundred at most.
        values: shape (n,), mean 0, deviation 1.
        least_scale: no length scale is shorter than this.
        least_noise: the variance of the noise is no lower than this.
    """
    count = features.shape[1]
    scale_bounds, noise_bounds = (least_scale, _SCALE_BOUNDS[1]), (least_noise, _NOISE_BOUNDS[1])
    kernel = ConstantKernel(1.0, _AMPLITUDE_BOUNDS) * Matern(np.ones(count), [scale_bounds] * count, nu=2.5)
    kernel += WhiteKernel(max(1e-3, least_noise), noise_bounds)
    process = QuickGaussianProcess(kernel=kernel, noise="gaussian", optimizer=_most_probable, alpha=1e-9)
    with warnings.catch_warnings():
        # A length scale at its bound says that a dimension does not matter: nothing to warn of.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(features, values)
    smooth = process.kernel_.k1
    scales = np.atleast_1d(np.asarray(smooth.k2.length_scale, dtype=float))
    return Hyperparameters(float(smooth.k1.constant_value), scales, float(process.noise_))


def _log_prior(theta: Array) -> tuple[float, Array]:
    scales = len(theta) - 2
    mean = np.full(len(theta), _SCALE_PRIOR_MEAN + 0.5 * math.log(scales))
    deviation = np.full(len(theta), _SCALE_PRIOR_DEVIATION)
    mean[0], deviation[0] = _AMPLITUDE_PRIOR
    mean[-1], deviation[-1] = _NOISE_PRIOR
    standard = (theta - mean) / deviation
    return -0.5 * float(standard @ standard), -standard / deviation


def _most_probable(
    negative_likelihood: Callable[[Array], tuple[float, Array]], initial: Array, bounds: Array
) -> tuple[Array, float]:
    """scikit-learn's optimizer hook: maximises likelihood times prior from a smooth and from a rough start."""

    def objective(theta: Array) -> tuple[float, Array]:
        value, gradient = negative_likelihood(theta)
        prior, prior_gradient = _log_prior(theta)
        return value - prior, gradient - prior_gradient

    features = len(initial) - 2
    best: tuple[Array, float] | None = None
    for scale in (math.log(1.0 * math.sqrt(features)), math.log(0.25 * math.sqrt(features))):
        start = initial.copy()
        start[1:-1] = scale
        start = np.clip(start, bounds[:, 0], bounds[:, 1])
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
        if best is None or found.fun < best[1]:
            best = (np.asarray(found.x), float(found.fun))
    assert best is not None
    return best


class QuickGaussianProcess(GaussianProcessRegressor):  # type: ignore[misc]  # scikit-optimize ships no types
    """scikit-optimize's regressor with the same likelihood, differentiated in a tenth of the time.

    The parent makes an array of shape (n, n, n_features) of derivatives. Summed against the weights, the derivative
    with respect to each length scale needs only products of (n, n) and (n, n_features). The kernel must be amplitude
    x Matérn 5/2 + noise.
    """

    def log_marginal_likelihood(
        self, theta: Array | None = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """The log likelihood of `theta` (logarithms of amplitude, length scales and noise), and its gradient."""
        if theta is None or not eval_gradient:
            return super().log_marginal_likelihood(theta, eval_gradient=eval_gradient, clone_kernel=clone_kernel)
        amplitude, noise = math.exp(theta[0]), math.exp(theta[-1])
        scaled = self.X_train_ / np.exp(theta[1:-1])
        distance = math.sqrt(5.0) * cdist(scaled, scaled)
        decay = amplitude * np.exp(-distance)
        covariance = (1.0 + distance + distance * distance / 3.0) * decay
        noisy = covariance.copy()
        noisy[np.diag_indices_from(noisy)] += noise + self.alpha
        try:
            factor = cholesky(noisy, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return -np.inf, np.zeros_like(theta)
        weights = cho_solve((factor, True), self.y_train_, check_finite=False)
        likelihood = (
            -0.5 * float(self.y_train_ @ weights)
            - float(np.log(np.diag(factor)).sum())
            - 0.5 * len(weights) * math.log(2.0 * math.pi)
        )
        pull = np.outer(weights, weights) - cho_solve((factor, True), np.eye(len(weights)), check_finite=False)
        slope = pull * decay
        slope *= (5.0 / 3.0) * (1.0 + distance)
        gradient = np.empty_like(theta)
        gradient[0] = 0.5 * float(np.vdot(pull, covariance))
        gradient[1:-1] = (scaled * scaled).T @ slope.sum(axis=1) - np.einsum("id,id->d", scaled, slope @ scaled)
        gradient[-1] = 0.5 * noise * float(np.trace(pull))
        return likelihood, gradient
