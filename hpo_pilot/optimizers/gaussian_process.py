"""The Gaussian process: a Matern kernel with a trend, its fit, and its posterior."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve, lapack, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from sklearn.exceptions import ConvergenceWarning
from skopt.learning import GaussianProcessRegressor
from skopt.learning.gaussian_process.kernels import ConstantKernel, Hyperparameter, Kernel, Matern, WhiteKernel

# The trend: a quadratic polynomial with random coefficients, added to the covariance.
#
# Far from the data, the predictions of a stationary process return to the mean, so unexplored corners look promising
# again and again. Real responses to hyper-parameters usually have a bowl-shaped dependence on each parameter. The
# polynomial continues it beyond the data; the fit decides its size. Without it the regret after half of the budget was
# higher in 27 and lower in 8 of 40 runs (ten problems of several kinds, 8 x 12 in batches and one by one).

Array = npt.NDArray[np.float64]

#: Deviation of x, and of (x - 1/2)^2, for x uniform in [0, 1].
_DEVIATION, _CURVED_DEVIATION = 1.0 / math.sqrt(12.0), 1.0 / math.sqrt(180.0)


class Basis:
    """Polynomials of first and second degree of some features, each with standard deviation 1 over the space.

    Attributes:
        size: the number of features.
    """

    def __init__(self, centres: Array, deviations: Array, means: Array) -> None:
        """Describes the features.

        Args:
            centres: where the linear term of each feature is 0, shape (n_features,).
            deviations: the standard deviation of each feature, shape (n_features,).
            means: the mean squared distance of each feature from its centre, shape (n_features,); NaN where it has no
                quadratic term (a column of 0 and 1).
        """
        self.size = len(centres)
        self._centres = centres
        self._deviations = deviations
        self._curved = np.flatnonzero(~np.isnan(means))
        self._means = means[self._curved]

    def widened(self) -> Self:
        """Returns the polynomials of these features and another one, on which they do not depend."""
        means = np.full(self.size + 1, np.nan)
        means[self._curved] = self._means
        return type(self)(np.append(self._centres, 0.0), np.append(self._deviations, np.inf), means)

    def linear(self, features: Array) -> Array:
        """Returns the linear terms, shape (n, n_features); their squares sum to about 1."""
        return np.asarray((features - self._centres) / (self._deviations * math.sqrt(self.size)))

    def terms(self, features: Array) -> Array:
        """Returns linear and quadratic terms, shape (n, n_terms); their squares sum to about 1."""
        away = features[:, self._curved] - self._centres[self._curved]
        curved = (away * away - self._means) / (_CURVED_DEVIATION * math.sqrt(self.size))
        return np.concatenate([self.linear(features), curved], axis=1) / math.sqrt(2.0)

    def linear_slopes(self) -> Array:
        """Returns the derivative of each linear term by its feature, shape (n_features,)."""
        return np.asarray(1.0 / (self._deviations * math.sqrt(self.size)))

    def pulled(self, features: Array, weights: Array) -> Array:
        """Returns the derivatives by the features of a weighted sum of the terms.

        Args:
            features: shape (m, n_features).
            weights: the weights of the terms, shape (n_terms,) or (m, n_terms).

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

    `alone` is the prior variance of the polynomials of single features, `together` that of products of two features.
    """

    def __init__(self, basis: Basis, alone: float = 1.0, together: float = 1.0) -> None:
        """Stores each argument as an attribute, as scikit-learn requires."""
        self.basis = basis
        self.alone = alone
        self.together = together

    @property
    def hyperparameter_alone(self) -> Any:
        """For scikit-learn: its logarithm is in `theta`."""
        return Hyperparameter("alone", "numeric", _TREND_BOUNDS)

    @property
    def hyperparameter_together(self) -> Any:
        """For scikit-learn: its logarithm is in `theta`, after that of `alone`."""
        return Hyperparameter("together", "numeric", _TREND_BOUNDS)

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        """Returns the covariance matrix, and its derivatives by `theta`."""
        alone, together = trend_parts(self.basis, X, X if Y is None else Y)
        covariance = self.alone * alone + self.together * together
        if not eval_gradient:
            return covariance
        return covariance, np.stack([self.alone * alone, self.together * together], axis=2)

    def diag(self, X: Array) -> Array:
        """Returns the prior variance at each point."""
        return trend_variance(self.basis, X, self.alone, self.together)

    def is_stationary(self) -> bool:
        """Returns False: the covariance of a polynomial depends on the position."""
        return False


def trend_parts(basis: Basis, first: Array, second: Array) -> tuple[Array, Array]:
    """Returns both parts of the trend's covariance for unit variances, each of shape (n_first, n_second)."""
    together = basis.linear(first) @ basis.linear(second).T
    return basis.terms(first) @ basis.terms(second).T, together * together


def trend_variance(basis: Basis, features: Array, alone: float, together: float) -> Array:
    """Returns the prior variance of the trend, shape (n,)."""
    terms, linear = basis.terms(features), basis.linear(features)
    square = np.einsum("nf,nf->n", linear, linear)
    return np.asarray(alone * np.einsum("nt,nt->n", terms, terms) + together * square * square)


# Linear algebra that lets other threads run, because the steering loop must not wait for an ask: scipy holds Python's
# global lock during LAPACK calls, numpy does not. So scipy's calls are divided into parts.

#: Multiplications in one part: about 10 milliseconds.
_IN_ONE_GO = 1e8


def solved(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """Solves `factor` x = `right`, for a lower triangle of shape (n, n) and right sides of shape (n, m).

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
    """Returns the lower Cholesky factor of a symmetric matrix, in Fortran order as the solvers need it.

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    return np.asfortranarray(np.linalg.cholesky(matrix))


_SCALE_BOUNDS = (0.03, 100.0)
_AMPLITUDE_BOUNDS = (0.05, 20.0)
_NOISE_BOUNDS = (1e-10, 1.0)
_TREND_BOUNDS = (1e-4, 1e3)

#: Priors of the logarithms, (mean, deviation). Length scales: Hvarfner et al. 2024, "Vanilla Bayesian optimization
#: performs great in high dimensions": the mean grows with the square root of the number of features, so that points
#: stay correlated also with many features.
_AMPLITUDE_PRIOR = (0.0, 1.0)
_NOISE_PRIOR = (math.log(1e-4), 3.0)
_SCALE_PRIOR_MEAN, _SCALE_PRIOR_DEVIATION = math.sqrt(2.0), math.sqrt(3.0)

#: Single parameters usually have some effect; products should appear only where the data require them.
_ALONE_PRIOR, _TOGETHER_PRIOR = (math.log(0.1), 2.0), (math.log(1e-3), 2.5)
_ALONE_START = 0.3

#: Added to the diagonal against rounding errors.
_JITTER, _MOST_JITTER = 1e-11, 1e-2

#: A fit starts from these length scales per square root of the number of features: smooth, and rough.
_STARTS = (1.0, 0.25)

#: L-BFGS steps of one fit, at most. It ends where a step changes the log posterior by less than about the second
#: number: the last digits of a length scale do not change the proposals.
_STEPS, _ENOUGH = 40, 0.01


@dataclass(frozen=True)
class Hyperparameters:
    """The hyper-parameters of a Gaussian process.

    Attributes:
        amplitude: the prior variance of the (normalised) values.
        scales: length scale per feature, shape (n_features,).
        noise: variance of the noise of one value.
        alone: prior variance of the trend of single features; 0: none.
        together: prior variance of the trend of products of two features; 0: none.
        basis: the polynomials of the trend; None: no trend.
    """

    amplitude: float
    scales: Array
    noise: float
    alone: float = 0.0
    together: float = 0.0
    basis: Basis | None = None

    def covariance(self, first: Array, second: Array) -> Array:
        """Returns the covariance of two sets of features, shape (n_first, n_second): Matérn 5/2 and trend, no noise."""
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
        """Returns the hyper-parameters used before a fit is possible: smooth, with a little noise."""
        return cls(1.0, np.full(features, 0.5 * math.sqrt(features)), 1e-2)

    def logarithms(self) -> Array:
        """Returns the logarithms of amplitude, length scales, the variances of a trend, and noise."""
        trend = [] if self.basis is None else [self.alone, self.together]
        return np.asarray(np.log([self.amplitude, *self.scales, *trend, self.noise]))

    def times(self, factor: float) -> Self:
        """Returns the hyper-parameters with all variances multiplied by `factor`."""
        return replace(
            self,
            amplitude=self.amplitude * factor,
            noise=self.noise * factor,
            alone=self.alone * factor,
            together=self.together * factor,
        )

    def prior_variance(self, features: Array) -> Array:
        """Returns the prior variance at features, shape (n,)."""
        if self.basis is None:
            return np.full(len(features), self.amplitude)
        return self.amplitude + trend_variance(self.basis, features, self.alone, self.together)

    def share(self, features: Array, points: Array) -> Array | float:
        """Returns factors of the smooth covariances of features and points; 1 without levels."""
        return 1.0

    def trend_slopes(self, features: Array, points: Array, weights: Array) -> Array:
        """Returns the derivatives by the features of a weighted sum of the trend's covariances with some points.

        Args:
            features: shape (m, n_features).
            points: shape (n, n_features).
            weights: the weights of the points, shape (n,) or (m, n).

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
        """Returns the derivatives of `prior_variance` by the features, shape (n, n_features)."""
        if self.basis is None:
            return np.zeros_like(features)
        linear = self.basis.linear(features)
        square = np.einsum("nf,nf->n", linear, linear)[:, None]
        together = 4.0 * self.together * square * linear * self.basis.linear_slopes()
        return np.asarray(together + 2.0 * self.basis.pulled(features, self.alone * self.basis.terms(features)))


@dataclass(frozen=True)
class Fit:
    """A fit and its quality.

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
    start: Hyperparameters | None = None,
) -> Fit:
    """Returns the most probable hyper-parameters for normalised values; the same arguments give the same fit.

    Args:
        features: shape (n, n_features), distinct rows; a few hundred at most.
        values: shape (n,), mean 0, deviation 1.
        least_scale: the least length scale.
        least_noise: the least variance of the noise.
        basis: the polynomials of the trend; None: no trend.
        variances: the known noise variance of each value, shape (n,); None: unknown.
        start: a fit to similar values, with a trend if there is a `basis`; None: two fixed starts, smooth and rough.
    """
    count = features.shape[1]
    scale_bounds, noise_bounds = (least_scale, _SCALE_BOUNDS[1]), (least_noise, _NOISE_BOUNDS[1])
    kernel = ConstantKernel(1.0, _AMPLITUDE_BOUNDS) * Matern(np.ones(count), [scale_bounds] * count, nu=2.5)
    if basis is not None:
        kernel += TrendKernel(basis, _ALONE_START, math.exp(_TOGETHER_PRIOR[0]))
    kernel += WhiteKernel(max(1e-3, least_noise), noise_bounds)
    search = partial(_most_probable, count, _ENOUGH / len(values), None if start is None else start.logarithms())
    jitter = _JITTER
    while True:
        alpha = jitter if variances is None else variances + jitter
        process = QuickGaussianProcess(kernel=kernel, noise="gaussian", optimizer=search, alpha=alpha)
        with warnings.catch_warnings():
            # A length scale at its bound only means that a dimension does not matter.
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                process.fit(features, values)
                break
            except LinAlgError:  # points too close to each other for the precision of floats
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


def starts_of(scales: int, *, trend: bool) -> list[Array]:
    """Returns the starts of a fit: logarithms of amplitude, length scales, trend, and noise."""
    more = [math.log(_ALONE_START), _TOGETHER_PRIOR[0]] if trend else []
    return [np.array([0.0, *[math.log(size * math.sqrt(scales))] * scales, *more, math.log(1e-3)]) for size in _STARTS]


def log_prior(theta: Array, scales: int) -> tuple[float, Array]:
    """Returns the prior of these logarithms and its derivatives."""
    mean, deviation = _prior(scales, len(theta) > scales + 2)
    standard = (theta - mean) / deviation
    return -0.5 * float(standard @ standard), -standard / deviation


@lru_cache(maxsize=8)
def _prior(scales: int, trend: bool) -> tuple[Array, Array]:
    """Returns means and deviations of the logarithms."""
    scale = (_SCALE_PRIOR_MEAN + 0.5 * math.log(scales), _SCALE_PRIOR_DEVIATION)
    of_trend = [_ALONE_PRIOR, _TOGETHER_PRIOR] if trend else []
    mean, deviation = np.array([_AMPLITUDE_PRIOR, *[scale] * scales, *of_trend, _NOISE_PRIOR]).T
    return mean, deviation


def _most_probable(
    scales: int,
    tolerance: float,
    near: Array | None,
    negative_likelihood: Callable[[Array], tuple[float, Array]],
    initial: Array,
    bounds: Array,
) -> tuple[Array, float]:
    """Maximises likelihood times prior; scikit-learn's hook for an optimizer.

    `initial` has the logarithms of the amplitude, the length scales (their number is `scales`), the variances of the
    trend, and the noise; only its length is used. The search starts at `near`; if it is None, at `starts_of`.
    """

    def objective(theta: Array) -> tuple[float, Array]:
        value, gradient = negative_likelihood(theta)
        prior, prior_gradient = log_prior(theta, scales)
        return value - prior, gradient - prior_gradient

    starts = starts_of(scales, trend=len(initial) > scales + 2) if near is None else [near]
    options = {"maxiter": _STEPS, "ftol": tolerance}
    best: tuple[Array, float] | None = None
    for start in starts:
        inside = np.clip(start, bounds[:, 0], bounds[:, 1])
        found = minimize(objective, inside, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if best is None or found.fun < best[1]:
            best = (np.asarray(found.x), float(found.fun))
    assert best is not None
    return best


class QuickGaussianProcess(GaussianProcessRegressor):  # type: ignore[misc]  # scikit-optimize ships no types
    """scikit-optimize's regressor with the same likelihood, whose gradient takes a tenth of the time.

    The parent makes arrays of shape (n, n, n_features) each time. Here the squared differences of each pair of points
    are computed once, and a pair counts once. The kernel must be the sum of amplitude x Matérn 5/2, an optional
    `TrendKernel`, and noise, in this order.
    """

    def log_marginal_likelihood(
        self, theta: Array | None = None, eval_gradient: bool = False, clone_kernel: bool = True
    ) -> Any:
        """Returns the log likelihood of `theta` and its gradient.

        `theta` has the logarithms of amplitude, length scales, the two variances of a trend, and noise.
        """
        if theta is None or not eval_gradient:
            return super().log_marginal_likelihood(theta, eval_gradient=eval_gradient, clone_kernel=clone_kernel)
        pairs, values = self._pairs(theta), self.y_train_
        scales, count = self.X_train_.shape[1], len(values)
        amplitude, noise = math.exp(theta[0]), math.exp(theta[-1])
        steepness = np.exp(-2.0 * theta[1 : 1 + scales])
        distance = np.sqrt((5.0 * steepness) @ pairs.squares)
        decay = amplitude * np.exp(-distance)
        linear = 1.0 + distance
        covariance = (linear + distance * distance / 3.0) * decay
        apart, same = covariance, amplitude + noise + self.alpha  # of two points, of a point with itself
        trend = list(zip(np.exp(theta[1 + scales : -1]), pairs.trend, strict=True))
        for variance, (of_pairs, of_points) in trend:
            apart, same = apart + variance * of_pairs, same + variance * of_points
        noisy = np.empty(count * count)
        noisy[pairs.places], noisy[:: count + 1] = apart, same
        # LAPACK directly: with few points, scipy's wrappers take longer than LAPACK, and this inverse half as long.
        # It sees the lower triangle, in C order, as the upper one.
        factor, failed = lapack.dpotrf(noisy.reshape(count, count).T, lower=0, clean=0, overwrite_a=1)
        if failed:
            return -np.inf, np.zeros_like(theta)
        weights, _ = lapack.dpotrs(factor, values, lower=0)
        likelihood = (
            -0.5 * float(values @ weights)
            - float(np.log(np.diag(factor)).sum())
            - 0.5 * count * math.log(2.0 * math.pi)
        )
        inverse, _ = lapack.dpotri(factor, lower=0, overwrite_c=1)
        inverse = inverse.T.ravel()
        pull = weights[pairs.first] * weights[pairs.second] - inverse[pairs.places]
        own = 0.5 * (weights * weights - inverse[:: count + 1])
        gradient = np.empty_like(theta)
        gradient[0] = pull @ covariance + amplitude * own.sum()
        gradient[1 : 1 + scales] = (5.0 / 3.0) * steepness * (pairs.squares @ (pull * decay * linear))
        gradient[1 + scales : -1] = [variance * (pull @ apart + own @ same) for variance, (apart, same) in trend]
        gradient[-1] = noise * own.sum()
        return likelihood, gradient

    def _pairs(self, theta: Array) -> _Pairs:
        if getattr(self, "_pairs_of", None) is not self.X_train_:  # cached: a fit needs them many times
            has_trend = len(theta) > self.X_train_.shape[1] + 2
            self._pairs_of: Array | None = self.X_train_
            self._all_pairs = _Pairs(self.X_train_, self.kernel_.k1.k2.basis if has_trend else None)
        return self._all_pairs


class _Pairs:
    """The pairs of different points, each once.

    Attributes:
        first: the row of the point of each pair that has the larger one, shape (n_pairs,).
        second: the row of the other one.
        places: the index of each pair in the flat matrix of shape (n_points, n_points), in its lower triangle.
        squares: the squared differences of the features, shape (n_features, n_pairs).
        trend: the parts of the trend's covariance for unit variances, each for pairs, shape (n_pairs,), and for points
            with themselves, shape (n_points,).
    """

    def __init__(self, points: Array, basis: Basis | None) -> None:
        """Prepares the points, shape (n_points, n_features)."""
        self.first, self.second = np.tril_indices(len(points), -1)
        self.places = self.first * len(points) + self.second
        self.squares = np.array([(column[self.first] - column[self.second]) ** 2 for column in points.T])
        parts = () if basis is None else trend_parts(basis, points, points)
        self.trend = [(part.ravel()[self.places], np.diag(part).copy()) for part in parts]


#: The least variance, as a share of the prior variance: rounding must not make it 0 or negative.
_LEAST_VARIANCE = 1e-10

#: Added to the noise against rounding errors, as a share of the prior variance.
_LEAST_NOISE = 1e-11


class PriorMean(Protocol):
    """The mean of the values before they are known, as a function of the features."""

    def values(self, features: Array) -> Array:
        """Returns the prior mean, shape (m,), at features of shape (m, n_features)."""

    def slopes(self, features: Array) -> Array:
        """Returns the derivatives of `values` by the features, shape (m, n_features)."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Mean and variance of the value without noise, as functions of the features; `of_data` makes it.

    Attributes:
        fit: the hyper-parameters.
        points: the points on which it is conditioned, shape (n, n_features); first the data, then the believed points.
        factor: Cholesky factor of their covariance with noise, shape (n, n), lower.
        weights: factors of the covariances with `points` in the mean, shape (n,); 0 for believed points, because a
            value that equals its prediction does not change the mean.
        drift: the prior mean; None: 0.
    """

    fit: Hyperparameters
    points: Array
    factor: Array
    weights: Array
    drift: PriorMean | None = None

    @classmethod
    def of_data(
        cls,
        fit: Hyperparameters,
        features: Array,
        values: Array,
        variances: Array | None = None,
        drift: PriorMean | None = None,
    ) -> Self:
        """Returns the posterior given distinct points and their values.

        Args:
            fit: the hyper-parameters.
            features: shape (n, n_features).
            values: normalised, shape (n,).
            variances: the known noise variance of each value, shape (n,); None: unknown.
            drift: the prior mean; `fit` then describes the values minus this mean. None: 0.
        """
        if drift is not None:
            values = values - drift.values(features)
        covariance = fit.covariance(features, features)
        if variances is not None:
            covariance[np.diag_indices_from(covariance)] += variances
        factor = _factor(covariance, fit)
        return cls(fit, features, factor, cho_solve((factor, True), values, check_finite=False), drift)

    def fitted(self) -> Array:
        """Returns the mean at the data, shape (n_data,)."""
        fitted = self.fit.covariance(self.points, self.points) @ self.weights
        return fitted if self.drift is None else fitted + self.drift.values(self.points)

    def left_out(self) -> tuple[Array, Array]:
        """Returns how far each datum is from its prediction by all others, and the variance of that; shape (n_data,).

        Rasmussen and Williams 2006, "Gaussian processes for machine learning", eq. 5.12; the noise is in the variance.
        """
        inverse, _ = lapack.dpotri(self.factor, lower=1)
        precision = np.diag(inverse)
        return self.weights / precision, 1.0 / precision

    def mean(self, features: Array) -> Array:
        """Returns the mean, shape (m,)."""
        mean = self.weights @ self.fit.covariance(self.points, features)
        return mean if self.drift is None else mean + self.drift.values(features)

    def mean_slopes(self, features: Array) -> Array:
        """Returns the derivatives of `mean` by the features, shape (m, n_features)."""
        weights = self.fit.share(features, self.points) * self.weights[None, :]
        [slopes] = self._slopes(features, weights)
        slopes += self.fit.trend_slopes(features, self.points, weights)
        return slopes if self.drift is None else slopes + self.drift.slopes(features)

    def assuming(self, features: Array) -> Self:
        """Returns the posterior if the values at `features`, shape (m, n_features), equal their predictions."""
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

    def halfway(self, features: Array) -> tuple[Array, Array, Array]:
        """Returns the covariances with `points`, solved with the factor, shape (n, m), and mean and variance, (m,)."""
        covariance = self.fit.covariance(self.points, features)
        mean = self.weights @ covariance
        if self.drift is not None:
            mean += self.drift.values(features)
        half = solved(self.factor, covariance)
        variance = self.fit.prior_variance(features) - np.einsum("nm,nm->m", half, half)
        # Rounding must not make it 0 or negative.
        return half, mean, np.maximum(variance, _LEAST_VARIANCE * self.fit.amplitude)

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Returns mean and variance, each of shape (m,)."""
        return self.halfway(features)[1:]

    def gradients(self, features: Array) -> tuple[Array, Array, Array, Array]:
        """Returns mean and variance, shape (m,), and their derivatives by the features, shape (m, n_features)."""
        half, mean, variance = self.halfway(features)
        back = solved(self.factor, half, transposed=True)
        share = self.fit.share(features, self.points)
        of_mean, of_variance = share * self.weights[None, :], -2.0 * share * back.T
        d_mean, d_variance = self._slopes(features, of_mean, of_variance)
        d_mean += self.fit.trend_slopes(features, self.points, of_mean)
        d_variance += self.fit.prior_slopes(features) + self.fit.trend_slopes(features, self.points, of_variance)
        if self.drift is not None:
            d_mean += self.drift.slopes(features)
        return mean, variance, d_mean, d_variance

    def _slopes(self, features: Array, *weights: Array) -> list[Array]:
        """Returns the derivatives by the features of weighted sums of the Matérn covariances with `points`.

        Args:
            features: shape (m, n_features).
            weights: weights of the points, each of shape (1, n) or (m, n).

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
    """Returns the Cholesky factor of covariance + noise; with a little more noise where points are too close."""
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
    """Candidates with their mean and variance, which are updated as points are believed.

    Attributes:
        features: shape (m, n_features).
        mean: shape (m,).
        variance: shape (m,).
    """

    def __init__(self, posterior: Posterior, features: Array, room: int) -> None:
        """Evaluates all candidates.

        Args:
            posterior: the posterior before the batch.
            features: the candidates, shape (m, n_features).
            room: the largest number of points that will be believed.
        """
        self.features = features
        self._fit = posterior.fit
        half, self.mean, self.variance = posterior.halfway(features)
        self._rows = len(half)
        self._half = np.empty((self._rows + room, len(features)))
        self._half[: self._rows] = half
        self._least = _LEAST_VARIANCE * posterior.fit.amplitude

    def assume(self, features: Array, half: Array) -> None:
        """Conditions on a point with a believed value.

        Args:
            features: the point, shape (n_features,).
            half: its covariances with all earlier points, solved with the factor, shape (n,).
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

    def assume_candidate(self, index: int) -> None:
        """Conditions on one of the candidates."""
        self.assume(self.features[index], self._half[: self._rows, index].copy())
