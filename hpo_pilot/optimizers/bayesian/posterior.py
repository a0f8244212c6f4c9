"""What a Gaussian process says about points, given data, and given points whose values are believed."""

from __future__ import annotations

import math
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_solve

from hpo_pilot.optimizers.bayesian.gaussian_process import Hyperparameters
from hpo_pilot.optimizers.bayesian.triangular import lower_factor, solved

Array = npt.NDArray[np.float64]

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
