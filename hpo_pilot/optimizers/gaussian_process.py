"""The Gaussian process: a Matern kernel with a trend, its fit, and its posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve, lapack, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Hyperparameter, Kernel, Matern, WhiteKernel

# The trend under a Gaussian process: what every parameter does by itself, and every two do together.
#
# A stationary process knows nothing where there are no data, so its predictions return to the average there, and
# corners
# that nobody looked at seem worth a look, time after time. Responses to hyper-parameters are seldom like that: they
# have
# a bowl of their own along most parameters. A quadratic polynomial with random coefficients, added to the covariance,
# says how the bowl goes on; how much of it there is, the data decide.

Array = npt.NDArray[np.float64]

#: Deviation of x, and of (x - 1/2)^2, for x uniform in [0, 1].
_DEVIATION, _CURVED_DEVIATION = 1.0 / math.sqrt(12.0), 1.0 / math.sqrt(180.0)


class Basis:
    """The polynomials of first and second degree of some features, each of deviation 1 over the space.

    Attributes:
        size: the number of features.
    """

    def __init__(self, centres: Array, deviations: Array, means: Array) -> None:
        """Says what stands in the columns.

        Args:
            centres: where each feature's linear term is 0, shape (n_features,).
            deviations: the deviation of each feature, shape (n_features,).
            means: the mean of each feature's squared distance from its centre, shape (n_features,); NaN where it has
                no quadratic term (a column of 0 and 1).
        """
        self.size = len(centres)
        self._centres = centres
        self._deviations = deviations
        self._curved = np.flatnonzero(~np.isnan(means))
        self._means = means[self._curved]

    @classmethod
    def of_numbers(cls, size: int) -> Basis:
        """For features that are all uniform in [0, 1]."""
        return cls(np.full(size, 0.5), np.full(size, _DEVIATION), np.full(size, _DEVIATION**2))

    def linear(self, features: Array) -> Array:
        """The linear terms, shape (n, n_features); their squares add up to about 1."""
        return np.asarray((features - self._centres) / (self._deviations * math.sqrt(self.size)))

    def terms(self, features: Array) -> Array:
        """Linear and quadratic terms, shape (n, n_terms); their squares add up to about 1."""
        away = features[:, self._curved] - self._centres[self._curved]
        curved = (away * away - self._means) / (_CURVED_DEVIATION * math.sqrt(self.size))
        return np.concatenate([self.linear(features), curved], axis=1) / math.sqrt(2.0)

    def linear_slopes(self) -> Array:
        """The derivative of each linear term by its feature, shape (n_features,)."""
        return np.asarray(1.0 / (self._deviations * math.sqrt(self.size)))

    def pulled(self, features: Array, weights: Array) -> Array:
        """The derivatives by the features of the terms' sum, weighted.

        Args:
            features: shape (m, n_features).
            weights: of the terms, shape (n_terms,) or (m, n_terms).

        Returns:
            Shape (m, n_features).
        """
        weights = np.broadcast_to(weights, (len(features), self.size + len(self._curved))) / math.sqrt(2.0)
        result = weights[:, : self.size] * self.linear_slopes()
        away = features[:, self._curved] - self._centres[self._curved]
        result[:, self._curved] += weights[:, self.size :] * 2.0 * away / (_CURVED_DEVIATION * math.sqrt(self.size))
        return result


class TrendKernel(Kernel):  # type: ignore[misc]  # scikit-optimize ships no types
    """The covariance of a quadratic polynomial with random coefficients.

    `alone` is the prior variance of the sum of each feature's own polynomial, `together` that of the products of two.
    """

    def __init__(
        self,
        basis: Basis,
        alone: float = 1.0,
        together: float = 1.0,
        limits: tuple[float, float] = (1e-4, 1e3),
    ) -> None:
        """As scikit-learn's kernels: an attribute for each argument."""
        self.basis = basis
        self.alone = alone
        self.together = together
        self.limits = limits

    @property
    def hyperparameter_alone(self) -> Any:
        """For scikit-learn: the logarithm of this is in `theta`."""
        return Hyperparameter("alone", "numeric", self.limits)

    @property
    def hyperparameter_together(self) -> Any:
        """For scikit-learn: the logarithm of this is in `theta`, after that of `alone`."""
        return Hyperparameter("together", "numeric", self.limits)

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        """The covariance matrix, and its derivatives by `theta`."""
        alone, together = trend_parts(self.basis, X, X if Y is None else Y)
        covariance = self.alone * alone + self.together * together
        if not eval_gradient:
            return covariance
        return covariance, np.stack([self.alone * alone, self.together * together], axis=2)

    def diag(self, X: Array) -> Array:
        """The prior variance at each point."""
        return trend_variance(self.basis, X, self.alone, self.together)

    def is_stationary(self) -> bool:
        """A polynomial depends on the place."""
        return False


def trend_parts(basis: Basis, first: Array, second: Array) -> tuple[Array, Array]:
    """Both parts of the trend's covariance for unit variances, each of shape (n_first, n_second)."""
    together = basis.linear(first) @ basis.linear(second).T
    return basis.terms(first) @ basis.terms(second).T, together * together


def trend_variance(basis: Basis, features: Array, alone: float, together: float) -> Array:
    """The trend's prior variance, shape (n,)."""
    terms, linear = basis.terms(features), basis.linear(features)
    square = np.einsum("nf,nf->n", linear, linear)
    return np.asarray(alone * np.einsum("nt,nt->n", terms, terms) + together * square * square)


# Linear algebra on large triangles that lets other threads work: the steering loop must not wait for an ask.
#
# scipy holds the interpreter's lock while LAPACK works, numpy does not; and what scipy alone has is done in parts.

#: Multiplications after which others get their turn: some 10 milliseconds.
_IN_ONE_GO = 1e8


def solved(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """`factor` x = `right`, for a lower triangle of shape (n, n) and right sides of shape (n, m).

    Args:
        factor: the lower triangle.
        right: the right sides; may be overwritten.
        transposed: solve with the triangle's transpose.
    """
    result = np.asfortranarray(right)
    width = max(16, int(_IN_ONE_GO / max(1, len(factor)) ** 2))
    for start in range(0, result.shape[1], width):
        part = result[:, start : start + width]
        part[:] = solve_triangular(
            factor, part, lower=True, trans="T" if transposed else "N", overwrite_b=True, check_finite=False
        )
    return result


def lower_factor(matrix: Array) -> Array:
    """The lower Cholesky factor of a symmetric matrix, in Fortran order as the solvers want it.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    return np.asfortranarray(np.linalg.cholesky(matrix))


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


#: A variance never falls below this share of the prior's: rounding must not make it 0 or negative.
_LEAST_VARIANCE = 1e-10

#: What is added to the noise against rounding, as a share of the prior's variance.
_LEAST_NOISE = 1e-11


class PriorMean(Protocol):
    """What is expected of the values where nothing is known."""

    def values(self, features: Array) -> Array:
        """For features of shape (m, n_features): shape (m,)."""

    def slopes(self, features: Array) -> Array:
        """The derivatives of `values` by the features, shape (m, n_features)."""


class Posterior:
    """Mean and variance of the value without noise, as functions of the features.

    Attributes:
        fit: the hyper-parameters.
        points: what it is conditioned on, shape (n, n_features); first the data, then the believed points.
        factor: Cholesky factor of their covariance with noise, shape (n, n), lower.
        weights: what multiplies the covariances with `points` in the mean, shape (n,); 0 for believed points, for a
            value believed at its own prediction leaves the mean as it was.
        drift: what the mean returns to where nothing is known; None: to 0.
    """

    def __init__(
        self, fit: Hyperparameters, points: Array, factor: Array, weights: Array, drift: PriorMean | None = None
    ) -> None:
        """Use `of_data`."""
        self.fit = fit
        self.points = points
        self.factor = factor
        self.weights = weights
        self.drift = drift

    @classmethod
    def of_data(
        cls,
        fit: Hyperparameters,
        features: Array,
        values: Array,
        variances: Array | None = None,
        drift: PriorMean | None = None,
    ) -> Self:
        """The posterior of distinct points and their values.

        Args:
            fit: the hyper-parameters.
            features: shape (n, n_features).
            values: normalised, shape (n,).
            variances: the known variance of each value's own noise, shape (n,); None: none is known.
            drift: what is expected of the values; `fit` is of what is left then. None: 0.
        """
        if drift is not None:
            values = values - drift.values(features)
        covariance = fit.covariance(features, features)
        if variances is not None:
            covariance[np.diag_indices_from(covariance)] += variances
        factor = _factor(covariance, fit)
        return cls(fit, features, factor, cho_solve((factor, True), values, check_finite=False), drift)

    def fitted(self) -> Array:
        """The mean at the data themselves, shape (n_data,): their values less the noise."""
        fitted = self.fit.covariance(self.points, self.points) @ self.weights
        return fitted if self.drift is None else fitted + self.drift.values(self.points)

    def mean(self, features: Array) -> Array:
        """The mean alone, shape (m,)."""
        mean = self.weights @ self.fit.covariance(self.points, features)
        return mean if self.drift is None else mean + self.drift.values(features)

    def mean_slopes(self, features: Array) -> Array:
        """The derivatives of `mean` by the features, shape (m, n_features)."""
        [slopes] = self._slopes(features, self.weights[None, :])
        slopes += self.fit.trend_slopes(features, self.points, self.weights)
        return slopes if self.drift is None else slopes + self.drift.slopes(features)

    def believing(self, features: Array) -> Self:
        """The posterior when the values at `features`, shape (m, n_features), are what it now predicts for them."""
        if not len(features):
            return self
        known, added = len(self.points), len(features)
        cross = solved(self.factor, self.fit.covariance(self.points, features))
        factor = np.zeros((known + added, known + added), order="F")
        factor[:known, :known] = self.factor
        factor[known:, :known] = cross.T
        factor[known:, known:] = _factor(self.fit.covariance(features, features) - cross.T @ cross, self.fit)
        weights = np.concatenate([self.weights, np.zeros(added)])
        return type(self)(self.fit, np.concatenate([self.points, features]), factor, weights, self.drift)

    def halfway(self, features: Array) -> tuple[Array, Array]:
        """Covariances with `points` solved against the factor, shape (n, m), and the mean, shape (m,)."""
        covariance = self.fit.covariance(self.points, features)
        mean = self.weights @ covariance
        if self.drift is not None:
            mean += self.drift.values(features)
        return solved(self.factor, covariance), mean

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Mean and variance, each of shape (m,)."""
        half, mean = self.halfway(features)
        return mean, self.floored(self.fit.prior_variance(features) - np.einsum("nm,nm->m", half, half))

    def floored(self, variance: Array) -> Array:
        """`variance`, kept above what rounding leaves of 0."""
        return np.maximum(variance, _LEAST_VARIANCE * self.fit.amplitude)

    def gradients(self, features: Array) -> tuple[Array, Array, Array, Array]:
        """Mean and variance, shape (m,), and their derivatives with respect to the features, shape (m, n_features)."""
        half, mean = self.halfway(features)
        variance = self.floored(self.fit.prior_variance(features) - np.einsum("nm,nm->m", half, half))
        back = solved(self.factor, half, transposed=True)
        d_mean, d_variance = self._slopes(features, self.weights[None, :], -2.0 * back.T)
        d_mean += self.fit.trend_slopes(features, self.points, self.weights)
        d_variance += self.fit.prior_slopes(features) - 2.0 * self.fit.trend_slopes(features, self.points, back.T)
        if self.drift is not None:
            d_mean += self.drift.slopes(features)
        return mean, variance, d_mean, d_variance

    def _slopes(self, features: Array, *weights: Array) -> list[Array]:
        """The derivatives by the features of the smooth part's covariances with `points`, weighted and added up.

        Args:
            features: shape (m, n_features).
            weights: of the points, each of shape (1, n) or (m, n).

        Returns:
            For each of `weights`: shape (m, n_features).
        """
        scaled, scaled_points = features / self.fit.scales, self.points / self.fit.scales
        square = np.maximum(
            (scaled * scaled).sum(axis=1)[:, None]
            + (scaled_points * scaled_points).sum(axis=1)[None, :]
            - 2.0 * scaled @ scaled_points.T,
            0.0,
        )
        distance = np.sqrt(5.0 * square)
        # dk/dx = -slope (x - x_i) / scale^2, summed over the points x_i with their weights
        slope = (5.0 / 3.0) * self.fit.amplitude * (1.0 + distance) * np.exp(-distance)
        result = []
        for weight in weights:
            weighted = slope * weight
            result.append(-(scaled * weighted.sum(axis=1)[:, None] - weighted @ scaled_points) / self.fit.scales)
        return result


def _factor(covariance: Array, fit: Hyperparameters) -> Array:
    """Cholesky factor of covariance + noise; with a little more noise where points lie too close for rounding."""
    extra = _LEAST_NOISE * fit.amplitude
    diagonal = np.diag_indices_from(covariance)
    plain = covariance[diagonal] + fit.noise
    while True:
        covariance[diagonal] = plain + extra
        try:
            return lower_factor(covariance)
        except LinAlgError:
            extra *= 10.0
            if not math.isfinite(extra) or extra > 1e6 * fit.amplitude:
                raise


class Pool:
    """Candidates whose mean and variance are kept up to date while one point after the other is believed.

    Attributes:
        features: shape (m, n_features).
        mean: shape (m,).
        variance: shape (m,).
    """

    def __init__(self, posterior: Posterior, features: Array, room: int) -> None:
        """Evaluates all candidates.

        Args:
            posterior: what is known.
            features: the candidates, shape (m, n_features).
            room: how many points will be believed at most.
        """
        self.features = features
        self._fit = posterior.fit
        half, self.mean = posterior.halfway(features)
        self._rows = len(half)
        self._half = np.empty((self._rows + room, len(features)))
        self._half[: self._rows] = half
        self.variance = posterior.floored(posterior.fit.prior_variance(features) - np.einsum("nm,nm->m", half, half))
        self._least = _LEAST_VARIANCE * posterior.fit.amplitude

    def believe(self, features: Array, half: Array) -> None:
        """Conditions on a point whose value is believed.

        Args:
            features: the point, shape (n_features,).
            half: its covariances with everything before it, solved against the factor, shape (n,).
        """
        rest = (
            float(self._fit.prior_variance(features[None, :])[0]) * (1.0 + _LEAST_NOISE)
            + self._fit.noise
            - float(half @ half)
        )
        row = self._fit.covariance(features[None, :], self.features)[0] - half @ self._half[: self._rows]
        row /= math.sqrt(max(rest, self._fit.noise + self._least))
        self._half[self._rows] = row
        self._rows += 1
        self.variance = np.maximum(self.variance - row * row, self._least)

    def believe_candidate(self, index: int) -> None:
        """Conditions on one of the candidates."""
        self.believe(self.features[index], self._half[: self._rows, index].copy())
