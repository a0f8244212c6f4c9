"""The acquisition function: the expected improvement of the hypervolume of a front, or of one value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr

from hpo_pilot.optimizers.gaussian_process import Pool, Posterior
from hpo_pilot.search.nondominated import crowding, front

Array = npt.NDArray[np.float64]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_HALF_LOG_HALF_PI = 0.5 * math.log(0.5 * math.pi)

#: Below this, the exact formula would subtract two equal numbers; an asymptotic expansion is used instead.
_FAR = -1e4


def log_h(z: Array) -> Array:
    """Returns log(phi(z) + z Phi(z)): the log expected improvement of a normal variable, in units of its deviation.

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


#: Two objectives have a box for each point of the front, three have two, five have some twenty.
_MOST_BOXES = 2_000

#: Upper limit of exponents: keeps gradients finite where almost no improvement is expected.
_LARGEST = 500.0


def open_boxes(front: Array, reference: Array) -> tuple[Array, Array]:
    """Divides the region that dominates `reference`, and that no row of `front` dominates, into disjoint boxes.

    Dächert, Klamroth, Lacour, Vanderpooten 2017, "Efficient computation of the search region in multi-objective
    optimization": the region is the union of the boxes below local upper bounds, each bound by one point per objective.

    Args:
        front: shape (n, n_objectives), the most important rows first: with many objectives there would be too many
            boxes, and the last rows are ignored.
        reference: shape (n_objectives,).

    Returns:
        Lower and upper bounds, each of shape (n_boxes, n_objectives); -inf where a box is open.
    """
    count = len(reference)
    upper = reference[None, :].copy()
    # points[i, j] bounds upper[i] in objective j; shape (n_bounds, n_objectives, n_objectives).
    points = np.full((1, count, count), -np.inf)
    points[0, np.arange(count), np.arange(count)] = reference
    for row in front:
        hit = (row < upper).all(axis=1)
        if not hit.any():
            continue
        if len(upper) > _MOST_BOXES:
            break
        new_upper, new_points = [upper[~hit]], [points[~hit]]
        for j in range(count):
            others = np.delete(points[hit], j, axis=1)[:, :, j].max(axis=1, initial=-np.inf)
            kept = row[j] >= others
            moved, by = upper[hit][kept], points[hit][kept]
            moved[:, j], by[:, j, :] = row[j], row
            new_upper.append(moved)
            new_points.append(by)
        upper, points = np.concatenate(new_upper), np.concatenate(new_points)
    lower = np.full(upper.shape, -np.inf)
    for j in range(count - 1):
        lower[:, j] = points[:, j + 1 :, j].max(axis=1)
    full = (lower < upper).all(axis=1)
    return lower[full], upper[full]


def _log_sum(logarithms: Array) -> Array:
    """Returns the logarithm of the sum of each row; scipy's function takes ten times as long for few columns."""
    if logarithms.shape[1] == 1:
        return logarithms[:, 0]
    largest = logarithms.max(axis=1)
    return np.asarray(largest + np.log(np.exp(logarithms - largest[:, None]).sum(axis=1)))


class HypervolumeImprovement:
    """The logarithm of the expected hypervolume improvement of one front, for independent normal costs; exact.

    With one objective it is the expected improvement below the best value.

    The region that improves the front is divided into boxes. The volume that a point adds within a box is a product
    over the objectives, and so is its expectation; each factor is the difference of two expected improvements, to the
    box's upper and lower bound (Yang, Emmerich, Deutz, Bäck 2019, "Efficient computation of expected hypervolume
    improvement using box decomposition algorithms"). Everything is computed as logarithms, which stay exact where
    almost no improvement is expected (Ament et al. 2023).

    Attributes:
        boxes: the number of boxes.
    """

    def __init__(self, front: Array, reference: Array) -> None:
        """Divides the region below the reference point; arguments as for `open_boxes`."""
        lower, upper = open_boxes(front, reference)
        self.boxes = len(upper)
        sides_of = list(zip(lower.T, upper.T, strict=True))
        # For each objective, only the distinct sides of boxes and their distinct pairs are computed.
        self._sides = [np.unique(np.concatenate([low[low > -np.inf], high])) for low, high in sides_of]
        self._pairs, self._of_box = [], []
        for sides, (low, high) in zip(self._sides, sides_of, strict=True):
            ends = np.stack([np.where(low > -np.inf, np.searchsorted(sides, low), -1), np.searchsorted(sides, high)])
            pairs, place = np.unique(ends, axis=1, return_inverse=True)
            self._pairs.append(pairs)
            self._of_box.append(place.reshape(-1))

    def log_value(self, means: Array, variances: Array) -> Array:
        """Returns the values, shape (m,), for costs with these means and variances, shape (m, n_objectives)."""
        return _log_sum(self._log_boxes(means, variances))

    def log_gradient(self, means: Array, variances: Array) -> tuple[Array, Array, Array]:
        """Returns the values, shape (m,), and their derivatives by means and variances, shape (m, n_objectives)."""
        boxes = self._log_boxes(means, variances)
        value = _log_sum(boxes)
        shares = np.exp(boxes - value[:, None])
        by_mean, by_variance = np.empty_like(means), np.empty_like(means)
        for j, (place, pairs) in enumerate(zip(self._of_box, self._pairs, strict=True)):
            widths, z, deviation = self._log_widths(j, means[:, j], variances[:, j])
            share = np.zeros(widths.shape)
            np.add.at(share.T, place, shares.T)
            in_mean = np.zeros(widths.shape)
            in_deviation = np.zeros(widths.shape)
            for end, sign in ((1, 1.0), (0, -1.0)):
                there = pairs[end] >= 0
                at, width = z[:, pairs[end][there]], widths[:, there]
                in_mean[:, there] -= sign * np.exp(np.minimum(log_ndtr(at) - width, _LARGEST))
                in_deviation[:, there] += sign * np.exp(np.minimum(-0.5 * at * at - _HALF_LOG_2PI - width, _LARGEST))
            by_mean[:, j] = (share * in_mean).sum(axis=1)
            by_variance[:, j] = (share * in_deviation).sum(axis=1) / (2.0 * deviation)
        return value, by_mean, by_variance

    def _log_boxes(self, means: Array, variances: Array) -> Array:
        """Returns the logarithm of the volume that each box adds; shape (m, n_boxes)."""
        total = np.zeros((len(means), self.boxes))
        for j, place in enumerate(self._of_box):
            total += self._log_widths(j, means[:, j], variances[:, j])[0][:, place]
        return total

    def _log_widths(self, j: int, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        """Returns log factors of the pairs of sides of objective j, shape (m, n_pairs), standard sides, deviations."""
        deviation = np.sqrt(variance)
        z = (self._sides[j][None, :] - mean[:, None]) / deviation[:, None]
        improvement = np.log(deviation)[:, None] + log_h(z)
        low, high = self._pairs[j]
        to_high = improvement[:, high]
        below = np.where(low[None, :] >= 0, improvement[:, low], -np.inf) - to_high
        with np.errstate(divide="ignore"):  # close sides, far from the point, give log(0)
            return to_high + np.log(-np.expm1(np.minimum(below, 0.0))), z, deviation


class Threshold:
    """The probability that a measured figure is at most a bound."""

    def __init__(self, posterior: Posterior, bound: float) -> None:
        """Takes the process of the figure, and the bound on the scale of its values."""
        self._posterior = posterior
        self._bound = bound

    def log_probability(self, features: Array) -> Array:
        """Returns the logarithm of the probability at `features`, shape (m, n_features); shape (m,)."""
        mean, variance = self._posterior.predict(features)
        return np.asarray(log_ndtr((self._bound - mean) / np.sqrt(variance + self._posterior.fit.noise)))

    def log_gradient(self, features: Array) -> tuple[Array, Array]:
        """Returns `log_probability` and its derivatives with respect to the features, shape (m, n_features)."""
        mean, variance, d_mean, d_variance = self._posterior.gradients(features)
        variance += self._posterior.fit.noise
        z = (self._bound - mean) / np.sqrt(variance)
        value = log_ndtr(z)
        by_z = np.exp(np.minimum(-0.5 * z * z - _HALF_LOG_2PI - value, _LARGEST))
        by_mean, by_variance = -by_z / np.sqrt(variance), -0.5 * by_z * z / variance
        return value, by_mean[:, None] * d_mean + by_variance[:, None] * d_variance


#: Number of leaders for one objective, and for several.
_VALUE_LEADERS, _FRONT_LEADERS = 10, 20

#: Number of candidates whose scores are computed again at a time, with more than one box.
_AGAIN = 48

#: A point is believed to be within the limits if the logarithm of the probability is above this.
_LIKELY = math.log(0.5)

#: The reference point is worse than the front and than this share of the first trials, by this share of the range, and
#: at least by this part of the standard deviation of all values.
_SHARE, _BEYOND, _LEAST_BEYOND = 0.75, 0.1, 0.1


class Surrogate:
    """Gaussian processes of the objectives, by which the points of a batch are chosen.

    They are conditioned on the told points. A pending or chosen point is believed to return its predicted costs: the
    front grows by it, and the uncertainty around it falls, so no other candidate becomes better. A score is therefore
    an upper bound for all later ones, and only the largest scores have to be computed again (lazy greedy).

    With limits the acquisition value is the expected improvement times the probabilities that each limit holds (Gardner
    et al. 2014, "Bayesian optimization with inequality constraints"). Only points within the limits are on the front.
    While there is none, any value that is better than the worst one is an improvement.

    Attributes:
        leaders: the rows of the data with the best values, or those on the front, the least crowded first; candidates
            are drawn around them.
    """

    def __init__(
        self,
        posteriors: Sequence[Posterior],
        reached: Array,
        reference: Array,
        leaders: npt.NDArray[np.int64],
        limits: Sequence[Threshold],
    ) -> None:
        """Use `of_data`.

        Args:
            posteriors: one for each objective, conditioned on the data and assuming the pending points.
            reached: costs of the data and the pending points, shape (n, n_objectives).
            reference: the reference point, shape (n_objectives,).
            leaders: see above.
            limits: one for each limit on a measured figure with enough data.
        """
        self._limits = limits
        self._posteriors = list(posteriors)
        self._reference = reference
        self.leaders = leaders
        self._front = reached[front(reached)]
        self._improvement = self._made_improvement()

    @classmethod
    def of_data(
        cls,
        posteriors: Sequence[Posterior],
        limits: Sequence[Threshold],
        stopped: npt.NDArray[np.bool_],
        violations: Array,
        first: int,
        reach: Array,
        believed: Array,
    ) -> Self:
        """Makes the surrogate for a new batch.

        Args:
            posteriors: one for each objective, conditioned on the same data.
            limits: see `__init__`.
            stopped: which data are projected values of stopped trials, never on the front; shape (n_data,).
            violations: distances of the data beyond the limits; only those with 0 are on the front; shape (n_data,).
            first: number of data, from the beginning, that are evenly distributed start points.
            reach: features of the points to improve on if there are no data, shape (k, n_features).
            believed: features of the pending points, shape (m, n_features).
        """
        fitted = np.stack([posterior.fitted() for posterior in posteriors], axis=1)
        known, feasible = ~stopped & (violations == 0.0), (violations == 0.0).any()
        rows = np.flatnonzero(known) if known.any() else np.arange(len(fitted))
        reached = fitted[rows] if len(rows) else _means(posteriors, reach)
        members = np.array(front(reached))
        reference = _reference(reached, members, fitted[:first] if first else reached)
        if len(posteriors) == 1:
            order = np.argsort(reached[:, 0], kind="stable")[:_VALUE_LEADERS]
        else:
            order = members[np.argsort(-np.array(crowding(reached[members])), kind="stable")[:_FRONT_LEADERS]]
        leaders = rows[order] if len(rows) else rows
        if len(rows) and not feasible:
            leaders = np.lexsort((violations, stopped))[:_VALUE_LEADERS]  # figures of stopped trials are not known
            reached = reached.max(axis=0, keepdims=True)
        if len(believed) and len(posteriors) > 1:  # a single value is improved on what was found and chosen
            reached = np.concatenate([reached, _means(posteriors, believed)[_log_holds(limits, believed) > _LIKELY]])
        return cls([posterior.assuming(believed) for posterior in posteriors], reached, reference, leaders, limits)

    def _made_improvement(self) -> HypervolumeImprovement:
        order = np.argsort(-np.array(crowding(self._front)), kind="stable")
        return HypervolumeImprovement(self._front[order], self._reference)

    @property
    def scales(self) -> Array:
        """The length scales of the first objective, shape (n_features,); they define distances between points."""
        return self._posteriors[0].fit.scales

    @property
    def cost(self) -> float:
        """The cost of one evaluation at a point, in multiplications."""
        return float(len(self._posteriors[0].points) ** 2 * len(self._posteriors))

    def look_at(self, features: Array, room: int) -> None:
        """Takes the candidates, shape (m, n_features); at most `room` points will be believed."""
        self._pools = [Pool(posterior, features, room) for posterior in self._posteriors]
        self._log_holds = _log_holds(self._limits, features)
        self._bounds = self._improvement.log_value(*self._moments(slice(None)))

    def scores(self, bonus: Array) -> Array:
        """Returns the log acquisition values of the candidates plus `bonus`; arrays have shape (m,).

        The largest score is exact; the others are upper bounds. A bonus of -inf excludes a candidate.
        """
        again = len(bonus) if self._improvement.boxes == 1 else _AGAIN
        fresh = np.zeros(len(bonus), dtype=bool)
        while True:
            scores = self._bounds + self._log_holds + bonus
            index = int(np.argmax(scores))
            if fresh[index] or scores[index] == -np.inf:
                return scores
            rows = np.argsort(-np.where(fresh, -np.inf, scores), kind="stable")[:again]
            rows = rows[scores[rows] > -np.inf]
            self._bounds[rows] = self._improvement.log_value(*self._moments(rows))
            fresh[rows] = True

    def value(self, features: Array) -> Array:
        """Returns the log acquisition values at `features`, shape (k, n_features); shape (k,)."""
        moments = [posterior.predict(features) for posterior in self._posteriors]
        means, variances = (np.stack(columns, axis=1) for columns in zip(*moments, strict=True))
        return self._improvement.log_value(means, variances) + _log_holds(self._limits, features)

    def gradient(self, features: Array) -> tuple[Array, Array]:
        """Returns `value` and its derivatives with respect to the features, shape (k, n_features)."""
        found = [posterior.gradients(features) for posterior in self._posteriors]
        means, variances = (np.stack(columns, axis=1) for columns in list(zip(*found, strict=True))[:2])
        value, by_mean, by_variance = self._improvement.log_gradient(means, variances)
        gradient = np.zeros_like(features)
        for j, (_, _, d_mean, d_variance) in enumerate(found):
            gradient += by_mean[:, j, None] * d_mean + by_variance[:, j, None] * d_variance
        for limit in self._limits:
            log_holds, slopes = limit.log_gradient(features)
            value, gradient = value + log_holds, gradient + slopes
        return value, gradient

    def assume(self, features: Array) -> None:
        """Assumes that a chosen point, shape (n_features,), returns its predicted value."""
        if _log_holds(self._limits, features[None, :])[0] > _LIKELY:
            self._reach(_means(self._posteriors, features[None, :])[0])
        self._posteriors = [posterior.assuming(features[None, :]) for posterior in self._posteriors]
        for pool, posterior in zip(self._pools, self._posteriors, strict=True):
            pool.assume(features, posterior.factor[-1, :-1])

    def assume_candidate(self, index: int) -> None:
        """Like `assume` for a candidate, at less cost; after the first call, `assume` is not called any more."""
        if self._log_holds[index] > _LIKELY:
            self._reach(np.array([pool.mean[index] for pool in self._pools]))
        for pool in self._pools:
            pool.assume_candidate(index)

    def _reach(self, costs: Array) -> None:
        """Adds a point with these costs, shape (n_objectives,), to the front."""
        if (self._front <= costs).all(axis=1).any():
            return
        grown = np.concatenate([self._front, costs[None, :]])
        self._front = grown[front(grown)]
        self._improvement = self._made_improvement()

    def _moments(self, rows: npt.NDArray[np.int64] | slice) -> tuple[Array, Array]:
        """Returns means and variances of candidates, each of shape (m, n_objectives)."""
        means = np.stack([pool.mean[rows] for pool in self._pools], axis=1)
        return means, np.stack([pool.variance[rows] for pool in self._pools], axis=1)


def _log_holds(limits: Sequence[Threshold], features: Array) -> Array:
    """Returns the logarithm of the probability that all limits hold, shape (m,)."""
    return sum((limit.log_probability(features) for limit in limits), start=np.zeros(len(features)))


def _means(posteriors: Sequence[Posterior], features: Array) -> Array:
    """Returns the predicted means, shape (m, n_objectives), at features of shape (m, n_features)."""
    return np.stack([posterior.mean(features) for posterior in posteriors], axis=1)


def _reference(reached: Array, members: npt.NDArray[np.int64], spread: Array) -> Array:
    """Returns the reference point for normalised costs, shape (n, n_objectives).

    It is worse than the front (the rows `members`), and worse than most of the evenly distributed points `spread`,
    shape (m, n_objectives): the true front may be longer than the present one, and points that extend it must count.
    All trials together would not do, because they crowd around the present front.
    """
    worst = np.maximum(reached[members].max(axis=0), np.quantile(spread, _SHARE, axis=0))
    return np.asarray(worst + np.maximum(_BEYOND * (worst - reached.min(axis=0)), _LEAST_BEYOND))
