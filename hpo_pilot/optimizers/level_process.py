"""The Gaussian process over points and levels of training: what low levels tell of the highest one.

Values at a level are the sum of a part that is smooth over the points (as `Hyperparameters` has it), a part of each
point alone, and an offset. Either part is correlated between levels, each level with the next one by a coefficient
that is fitted; that of the smooth part may be negative, because the best trainings often begin slowly. (A linear
model of coregionalization; Swersky, Snoek, Adams 2014, "Freeze-thaw Bayesian optimization", have an exponential decay
in place of the levels.)

The last feature is the index of the level. Its length scale is infinite, so that distances do not depend on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import lapack
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from hpo_pilot.optimizers.gaussian_process import Basis, Fit, Hyperparameters, log_prior, starts_of, trend_parts
from hpo_pilot.optimizers.training_data import FeatureMap, Rows, Table
from hpo_pilot.search import SearchSpace

Array = npt.NDArray[np.float64]

#: The prior variance of the offset of each level, of values with variance 1.
_OFFSET = 4.0

#: Priors, (mean, deviation): of the logarithm of a level's deviation in units of the highest one's; of the area tangent
#: of the correlation of the smooth part with the next level; of the logarithm of the variance of the points' own part;
#: and of the log odds of its correlation with the next level.
_SIZE_PRIOR, _SHARED_PRIOR, _OWN_PRIOR, _KEPT_PRIOR = (0.0, 0.5), (1.4, 0.8), (math.log(0.02), 1.5), (1.0, 1.2)

#: Steps of a fit, at most, and the change of the log posterior at which it ends.
_STEPS, _ENOUGH = 40, 0.02

#: Bounds in a fit: of the logarithms of amplitude, length scales, trend and noise; of the others in deviations of their
#: priors.
_BOUNDS, _FAR = ((-3.0, 3.0), (-3.5, 4.6), (-9.2, 6.9), (-16.0, 0.0)), 4.0

#: Added to the diagonal, and the least correlation, against rounding errors.
_JITTER, _LEAST = 1e-8, 1e-9


class LevelFeatures(FeatureMap):
    """Features of points at the highest level, and at others.

    Attributes:
        levels: the levels in ascending order.
    """

    def __init__(self, space: SearchSpace, levels: tuple[float, ...]) -> None:
        """Adds a column for the index of the level."""
        super().__init__(space)
        self.levels = levels
        self.size += 1
        self.basis = self.basis.widened()

    def features(self, units: Array) -> Array:
        """Returns the features of snapped unit vectors at the highest level."""
        return self.at(units, np.full(len(units), len(self.levels) - 1))

    def at(self, units: Array, indices: Rows) -> Array:
        """Returns the features of snapped unit vectors at levels with these indices."""
        features = super().features(units)
        features[:, -1] = indices
        return features

    def told(self, table: Table, rows: Rows) -> Array:
        """Returns the features of rows of a table at their levels."""
        return self.at(table.units[rows], table.levels[rows])

    @cached_property
    def bounds(self) -> Array:
        """As of `FeatureMap`."""
        bounds = super().bounds
        bounds[-1] = len(self.levels) - 1.0
        return bounds


@dataclass(frozen=True)
class LevelHyperparameters(Hyperparameters):
    """The hyper-parameters of a process over points and levels; those of the smooth part are of the highest level.

    Attributes:
        between: for the levels below the highest one the logarithms of their deviations in units of its, and the area
            tangents of the correlations of the smooth part with the next level; for all levels the logarithms of the
            variances of the points' own parts; and the log odds of their correlations with the next level; shape
            (4 L - 3,).
        shared: the covariances between levels of the smooth part, in units of that of the highest level, (L, L).
        own: the covariances between levels of the points' own parts, shape (L, L).
    """

    between: Array = field(kw_only=True)

    @cached_property
    def shared(self) -> Array:
        """See above."""
        sizes, correlations, _, _ = _parts(self.between)
        return _covariance(sizes, correlations)

    @cached_property
    def own(self) -> Array:
        """See above."""
        _, _, sizes, correlations = _parts(self.between)
        return self.amplitude * _covariance(sizes, correlations)

    def covariance(self, first: Array, second: Array) -> Array:
        """Returns the covariance of two sets of features, shape (n_first, n_second), without noise."""
        result = super().covariance(first, second)
        levels, others = first[:, -1].astype(int), second[:, -1].astype(int)
        result *= self.shared[levels][:, others]
        same = cdist(first[:, :-1], second[:, :-1], "chebyshev") == 0.0
        result += np.where(same, self.own[levels][:, others], 0.0)
        result += _OFFSET * (levels[:, None] == others)
        return result

    @classmethod
    def wide_for(cls, features: int, levels: int) -> Self:
        """Returns the hyper-parameters used before a fit is possible."""
        plain = Hyperparameters.wide(features - 1)
        scales = np.append(plain.scales, np.inf)
        return cls(plain.amplitude, scales, plain.noise, between=_level_priors(levels)[0])

    def prior_variance(self, features: Array) -> Array:
        """Returns the prior variance at features, shape (n,), at the highest level without the points' own part.

        The own part of a point without results is chance. If it counted as a possible improvement, new points beside
        the best one would stay promising for ever: on a made-up problem whose levels mislead, two searches then ended
        at 0.15 and 0.10, without it at -0.12 and -0.12, and with whole trainings at -0.12 and -0.15.
        """
        levels = features[:, -1].astype(int)
        smooth = np.diag(self.shared)[levels] * super().prior_variance(features)
        own = np.diag(self.own).copy()
        own[-1] = 0.0
        return np.asarray(smooth + own[levels] + _OFFSET)

    def share(self, features: Array, points: Array) -> Array:
        """Returns the factors of the smooth covariances, shape (n_features, n_points)."""
        return np.asarray(self.shared[features[:, -1].astype(int)][:, points[:, -1].astype(int)])


def _level_priors(levels: int) -> tuple[Array, Array]:
    """Returns means and deviations of `LevelHyperparameters.between`."""
    steps = levels - 1
    priors = [*[_SIZE_PRIOR] * steps, *[_SHARED_PRIOR] * steps, *[_OWN_PRIOR] * levels, *[_KEPT_PRIOR] * steps]
    means, deviations = np.array(priors).T
    return means, deviations


def _parts(between: Array) -> tuple[Array, Array, Array, Array]:
    """Returns deviations of the levels, correlations of the smooth part, deviations and correlations of the own one."""
    steps = len(between) // 4
    sizes, shared = np.append(np.exp(between[:steps]), 1.0), np.tanh(between[steps : 2 * steps])
    own = np.exp(0.5 * between[2 * steps : 3 * steps + 1])
    return sizes, shared, own, 1.0 / (1.0 + np.exp(-between[3 * steps + 1 :]))


def _covariance(sizes: Array, correlations: Array) -> Array:
    """Returns the covariances between levels, from their deviations and the correlations between neighbours."""
    result = np.eye(len(sizes))
    for low in range(len(sizes)):
        for high in range(low + 1, len(sizes)):
            result[low, high] = result[high, low] = np.prod(correlations[low:high])
    return np.asarray(np.outer(sizes, sizes) * result)


def best_level_fit(
    levels: int,
    features: Array,
    values: Array,
    *,
    basis: Basis | None,
    variances: Array,
    start: Hyperparameters | None = None,
) -> Fit:
    """Returns the most probable hyper-parameters of values at several levels; the same arguments give the same fit.

    Args:
        levels: the number of levels.
        features: shape (n, n_features), the last one the index of the level; distinct rows, a few hundred at most.
        values: shape (n,), mean 0, deviation 1.
        basis: the polynomials of the trend; None: no trend.
        variances: the known noise variance of each value, shape (n,).
        start: a fit to similar values, with a trend if there is a `basis`; None: two fixed starts, smooth and rough.
    """
    likelihood = _Likelihood(levels, features, values, basis, variances)
    best = min(map(likelihood.descent, likelihood.starts(start)), key=lambda found: found[1])
    return Fit(likelihood.hyperparameters(best[0]), -best[1])


class _Likelihood:
    """The likelihood of values at several levels, times the prior.

    Its parameters are logarithms of amplitude, length scales, the variances of a trend, and noise; then
    `LevelHyperparameters.between`.
    """

    def __init__(self, levels: int, features: Array, values: Array, basis: Basis | None, variances: Array) -> None:
        """Prepares the data, as of `best_level_fit`."""
        self._values, self._variances, self._basis = values, variances, basis
        self._points, self._at = features[:, :-1], features[:, -1].astype(int)
        self._scales = self._points.shape[1]
        self._same = cdist(self._points, self._points, "chebyshev") == 0.0
        self._equal = self._at[:, None] == self._at
        low, high = np.minimum(self._at[:, None], self._at), np.maximum(self._at[:, None], self._at)
        self._crossing = [(low <= step) & (high > step) for step in range(levels - 1)]
        self._trend = () if basis is None else trend_parts(basis, features, features)
        self._base = 2 + self._scales + len(self._trend)  # the number of parameters without levels
        self._means, self._deviations = _level_priors(levels)

    def starts(self, near: Hyperparameters | None) -> list[Array]:
        """Returns the starts of a fit."""
        if isinstance(near, LevelHyperparameters):
            logarithms = replace(near, scales=near.scales[:-1]).logarithms()
            return [np.append(logarithms, near.between)]
        return [np.append(start, self._means) for start in starts_of(self._scales, trend=bool(self._trend))]

    def descent(self, start: Array) -> tuple[Array, float]:
        """Returns the parameters at the end of a descent, and the negative logarithm there."""
        amplitude, scale, trend, noise = _BOUNDS
        bounds = np.array([amplitude, *[scale] * self._scales, *[trend] * len(self._trend), noise])
        far = _FAR * self._deviations
        bounds = np.concatenate([bounds, np.column_stack([self._means - far, self._means + far])])
        options = {"maxiter": _STEPS, "ftol": _ENOUGH / len(self._values)}
        start = start.clip(*bounds.T)
        found = minimize(self.negative, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return np.asarray(found.x), float(found.fun)

    def hyperparameters(self, theta: Array) -> LevelHyperparameters:
        """Returns the parameters by their names."""
        amplitude, *rest, noise = np.exp(theta[: self._base]).tolist()
        alone, together = rest[self._scales :] or (0.0, 0.0)
        scales = np.array([*rest[: self._scales], np.inf])
        between = theta[self._base :]
        return LevelHyperparameters(amplitude, scales, noise, alone, together, self._basis, between=between)

    def negative(self, theta: Array) -> tuple[float, Array]:
        """Returns the negative logarithm and its derivatives."""
        base, between = theta[: self._base], theta[self._base :]
        amplitude, noise = math.exp(base[0]), math.exp(base[-1])
        scaled = self._points / np.exp(base[1 : 1 + self._scales])
        distance = math.sqrt(5.0) * cdist(scaled, scaled)
        decay = amplitude * np.exp(-distance)
        near = (1.0 + distance + distance * distance / 3.0) * decay
        trend = [math.exp(one) * part for one, part in zip(base[1 + self._scales : -1], self._trend, strict=True)]
        sizes, correlations, own_sizes, kept = _parts(between)
        share = _covariance(sizes, correlations)[self._at][:, self._at]
        smooth = share * sum(trend, start=near)
        own = np.where(self._same, amplitude * _covariance(own_sizes, kept)[self._at][:, self._at], 0.0)
        noisy = smooth + own + _OFFSET * self._equal
        noisy[np.diag_indices_from(noisy)] += noise + self._variances + _JITTER
        factor, failed = lapack.dpotrf(noisy, lower=1, clean=0)
        if failed:
            return np.inf, np.zeros_like(theta)
        weights, _ = lapack.dpotrs(factor, self._values, lower=1)
        value = 0.5 * float(self._values @ weights) + float(np.log(np.diag(factor)).sum())
        inverse, _ = lapack.dpotri(factor, lower=1)
        inverse = np.tril(inverse)
        inverse += np.tril(inverse, -1).T
        pull = 0.5 * (inverse - np.outer(weights, weights))
        of_share, of_smooth, of_own = pull * share, pull * smooth, pull * own
        slope = of_share * decay * ((5.0 / 3.0) * (1.0 + distance))
        by_scale = (scaled * scaled).T @ slope.sum(axis=1) - np.einsum("id,id->d", scaled, slope @ scaled)
        smooth_rows, own_rows = 2.0 * of_smooth.sum(axis=1), of_own.sum(axis=1)
        correlations = np.where(np.abs(correlations) < _LEAST, _LEAST, correlations)
        crossed = np.array([[of_smooth[over].sum(), of_own[over].sum()] for over in self._crossing])
        gradient = [
            np.vdot(of_share, near) + of_own.sum(),
            *(2.0 * by_scale),
            *(np.vdot(of_share, part) for part in trend),
            noise * np.trace(pull),
            *(smooth_rows[self._at == level].sum() for level in range(len(sizes) - 1)),
            *(crossed[:, 0] * (1.0 / correlations - correlations)),
            *(own_rows[self._at == level].sum() for level in range(len(sizes))),
            *(crossed[:, 1] * (1.0 - kept)),
        ]
        prior, prior_gradient = log_prior(base, self._scales)
        away = (between - self._means) / self._deviations
        prior_gradient = np.append(prior_gradient, -away / self._deviations)
        constant = 0.5 * len(self._values) * math.log(2.0 * math.pi)
        return value + constant - prior + 0.5 * float(away @ away), np.array(gradient) - prior_gradient
