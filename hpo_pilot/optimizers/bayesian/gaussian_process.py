"""The Gaussian process: scikit-optimize's regressor with a trend, and a likelihood that is quick to differentiate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, lapack
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from hpo_pilot.optimizers.bayesian.trend import Basis, TrendKernel, trend_parts, trend_variance

Array = npt.NDArray[np.float64]

_SCALE_BOUNDS = (0.03, 100.0)
_AMPLITUDE_BOUNDS = (0.05, 20.0)
_NOISE_BOUNDS = (1e-10, 1.0)
_TREND_BOUNDS = (1e-4, 1e3)

#: Priors of the logarithms, (mean, deviation). Length scales: Hvarfner et al. 2024, "Vanilla Bayesian optimization
#: performs great in high dimensions": the mean grows with the square root of the number of features, so that many
#: features do not make every point a stranger to every other.
_AMPLITUDE_PRIOR = (0.0, 1.0)
_NOISE_PRIOR = (math.log(1e-4), 3.0)
_SCALE_PRIOR_MEAN, _SCALE_PRIOR_DEVIATION = math.sqrt(2.0), math.sqrt(3.0)

#: Parameters usually have some effect of their own; products are to be there only where the data want them.
_ALONE_PRIOR, _TOGETHER_PRIOR = (math.log(0.1), 2.0), (math.log(1e-3), 2.5)
_ALONE_START = 0.3

#: What is added to the diagonal against rounding.
_JITTER, _MOST_JITTER = 1e-11, 1e-2

#: L-BFGS steps of one fit; the last digits of a length scale change no proposal.
_STEPS = 40


@dataclass(frozen=True)
class Hyperparameters:
    """What a fit finds.

    Attributes:
        amplitude: the prior variance of the (normalised) values.
        scales: length scale per feature, shape (n_features,).
        noise: variance of the noise of one value.
        alone: prior variance of the trend of each feature by itself; 0: there is none.
        together: prior variance of the trend in products of two features; 0: there is none.
        basis: the trend's polynomials; None: there is no trend.
    """

    amplitude: float
    scales: Array
    noise: float
    alone: float = 0.0
    together: float = 0.0
    basis: Basis | None = None

    def covariance(self, first: Array, second: Array) -> Array:
        """The covariance of two sets of features, shape (n_first, n_second), without noise: Matérn 5/2 and trend."""
        distance = cdist(first / self.scales, second / self.scales)
        distance *= math.sqrt(5.0)
        result = np.exp(-distance)
        distance += 1.0 + distance * distance / 3.0
        result *= distance
        result *= self.amplitude
        if self.basis is not None:
            alone, together = trend_parts(self.basis, first, second)
            result += self.alone * alone
            result += self.together * together
        return np.asarray(result)

    @classmethod
    def wide(cls, features: int) -> Self:
        """What is assumed before anything can be fitted: smooth, with a little noise."""
        return cls(1.0, np.full(features, 0.5 * math.sqrt(features)), 1e-2)

    def times(self, factor: float) -> Self:
        """All variances times `factor`."""
        return replace(
            self,
            amplitude=self.amplitude * factor,
            noise=self.noise * factor,
            alone=self.alone * factor,
            together=self.together * factor,
        )

    def prior_variance(self, features: Array) -> Array:
        """The variance at features before anything is known there, shape (n,)."""
        if self.basis is None:
            return np.full(len(features), self.amplitude)
        return self.amplitude + trend_variance(self.basis, features, self.alone, self.together)

    def trend_slopes(self, features: Array, points: Array, weights: Array) -> Array:
        """The derivatives by the features of the trend's covariances with some points, weighted and added up.

        Args:
            features: shape (m, n_features).
            points: shape (n, n_features).
            weights: of the points, shape (n,) or (m, n).

        Returns:
            Shape (m, n_features).
        """
        if self.basis is None:
            return np.zeros_like(features)
        linear, linear_points = self.basis.linear(features), self.basis.linear(points)
        products = (2.0 * self.together) * (linear @ linear_points.T) * weights
        slopes = (products @ linear_points) * self.basis.linear_slopes()
        return np.asarray(slopes + self.basis.pulled(features, self.alone * (weights @ self.basis.terms(points))))

    def prior_slopes(self, features: Array) -> Array:
        """The derivatives of `prior_variance` by the features, shape (n, n_features)."""
        if self.basis is None:
            return np.zeros_like(features)
        linear = self.basis.linear(features)
        square = np.einsum("nf,nf->n", linear, linear)[:, None]
        together = 4.0 * self.together * square * linear * self.basis.linear_slopes()
        return np.asarray(together + 2.0 * self.basis.pulled(features, self.alone * self.basis.terms(features)))


@dataclass(frozen=True)
class Fit:
    """A fit and how good it is.

    Attributes:
        found: the hyper-parameters.
        log_posterior: the logarithm of their likelihood times prior.
    """

    found: Hyperparameters
    log_posterior: float


def best_fit(
    features: Array,
    values: Array,
    *,
    least_scale: float = _SCALE_BOUNDS[0],
    least_noise: float = _NOISE_BOUNDS[0],
    basis: Basis | None = None,
    variances: Array | None = None,
) -> Fit:
    """The most probable hyper-parameters for normalised values; from fixed starts, so for the same data the same.

    Args:
        features: shape (n, n_features), distinct rows; a few hundred at most.
        values: shape (n,), mean 0, deviation 1.
        least_scale: no length scale is shorter than this.
        least_noise: the variance of the noise is no lower than this.
        basis: the trend's polynomials; None: no trend.
        variances: the known variance of each value's own noise, shape (n,); None: none is known.
    """
    count = features.shape[1]
    scale_bounds, noise_bounds = (least_scale, _SCALE_BOUNDS[1]), (least_noise, _NOISE_BOUNDS[1])
    kernel = ConstantKernel(1.0, _AMPLITUDE_BOUNDS) * Matern(np.ones(count), [scale_bounds] * count, nu=2.5)
    if basis is not None:
        kernel += TrendKernel(basis, _ALONE_START, math.exp(_TOGETHER_PRIOR[0]), _TREND_BOUNDS)
    kernel += WhiteKernel(max(1e-3, least_noise), noise_bounds)
    search = partial(_most_probable, count)
    jitter = _JITTER
    while True:
        alpha = jitter if variances is None else variances + jitter
        process = QuickGaussianProcess(kernel=kernel, noise="gaussian", optimizer=search, alpha=alpha)
        with warnings.catch_warnings():
            # A length scale at its bound says that a dimension does not matter: nothing to warn of.
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                process.fit(features, values)
                break
            except LinAlgError:  # points too near to each other for rounding
                jitter *= 100.0
                if jitter > _MOST_JITTER:
                    raise
    smooth = process.kernel_.k1 if basis is None else process.kernel_.k1.k1
    found = Hyperparameters(
        float(smooth.k1.constant_value),
        np.atleast_1d(np.asarray(smooth.k2.length_scale, dtype=float)),
        float(process.noise_),
        0.0 if basis is None else float(process.kernel_.k1.k2.alone),
        0.0 if basis is None else float(process.kernel_.k1.k2.together),
        basis,
    )
    return Fit(found, float(process.log_marginal_likelihood_value_))


def _log_prior(theta: Array, scales: int) -> tuple[float, Array]:
    scale = (_SCALE_PRIOR_MEAN + 0.5 * math.log(scales), _SCALE_PRIOR_DEVIATION)
    trend = [_ALONE_PRIOR, _TOGETHER_PRIOR] if len(theta) > scales + 2 else []
    mean, deviation = np.array([_AMPLITUDE_PRIOR, *[scale] * scales, *trend, _NOISE_PRIOR]).T
    standard = (theta - mean) / deviation
    return -0.5 * float(standard @ standard), -standard / deviation


def _most_probable(
    scales: int, negative_likelihood: Callable[[Array], tuple[float, Array]], initial: Array, bounds: Array
) -> tuple[Array, float]:
    """scikit-learn's optimizer hook: maximises likelihood times prior from a smooth and from a rough start.

    `initial` are the logarithms of the amplitude, of `scales` length scales, the trend's variances, and the noise.
    """

    def objective(theta: Array) -> tuple[float, Array]:
        value, gradient = negative_likelihood(theta)
        prior, prior_gradient = _log_prior(theta, scales)
        return value - prior, gradient - prior_gradient

    best: tuple[Array, float] | None = None
    for scale in (math.log(1.0 * math.sqrt(scales)), math.log(0.25 * math.sqrt(scales))):
        start = initial.copy()
        start[1 : 1 + scales] = scale
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
    x Matérn 5/2, a `TrendKernel` if wanted, and noise, added up in this order.
    """

    def log_marginal_likelihood(
        self, theta: Array | None = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """The log likelihood of `theta` and its gradient.

        `theta` are the logarithms of amplitude, length scales, the trend's two variances if there is one, and noise.
        """
        if theta is None or not eval_gradient:
            return super().log_marginal_likelihood(theta, eval_gradient=eval_gradient, clone_kernel=clone_kernel)
        scales = self.X_train_.shape[1]
        amplitude, noise = math.exp(theta[0]), math.exp(theta[-1])
        scaled = self.X_train_ / np.exp(theta[1 : 1 + scales])
        distance = math.sqrt(5.0) * cdist(scaled, scaled)
        decay = amplitude * np.exp(-distance)
        covariance = (1.0 + distance + distance * distance / 3.0) * decay
        trend = [math.exp(part) * parts for part, parts in zip(theta[1 + scales : -1], self._trend(theta), strict=True)]
        noisy = covariance + sum(trend)
        noisy[np.diag_indices_from(noisy)] += noise + self.alpha
        # LAPACK itself: with so few points scipy's wrappers take longer than the work, and this inverse half as long.
        factor, failed = lapack.dpotrf(noisy, lower=1, clean=0)
        if failed:
            return -np.inf, np.zeros_like(theta)
        weights, _ = lapack.dpotrs(factor, self.y_train_, lower=1)
        likelihood = (
            -0.5 * float(self.y_train_ @ weights)
            - float(np.log(np.diag(factor)).sum())
            - 0.5 * len(weights) * math.log(2.0 * math.pi)
        )
        inverse, _ = lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse)
        inverse += np.tril(inverse, -1).T
        pull = np.outer(weights, weights) - inverse
        slope = pull * decay
        slope *= (5.0 / 3.0) * (1.0 + distance)
        gradient = np.empty_like(theta)
        gradient[0] = 0.5 * float(np.vdot(pull, covariance))
        by_scale = (scaled * scaled).T @ slope.sum(axis=1) - np.einsum("id,id->d", scaled, slope @ scaled)
        gradient[1 : 1 + scales] = by_scale
        gradient[1 + scales : -1] = [0.5 * float(np.vdot(pull, part)) for part in trend]
        gradient[-1] = 0.5 * noise * float(np.trace(pull))
        return likelihood, gradient

    def _trend(self, theta: Array) -> tuple[Array, ...]:
        """The trend's two covariances for unit variances; nothing where `theta` has none."""
        if len(theta) == self.X_train_.shape[1] + 2:
            return ()
        if getattr(self, "_trend_of", None) is not self.X_train_:  # a fit asks a hundred times
            self._trend_of: Array | None = self.X_train_
            self._trend_parts = trend_parts(self.kernel_.k1.k2.basis, self.X_train_, self.X_train_)
        return self._trend_parts
