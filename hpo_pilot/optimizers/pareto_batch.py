"""Choosing a batch for several objectives: greedily by expected hypervolume improvement, as if each point had come out.

Like `batch`, with a Gaussian process for each objective. A chosen point is believed to return what is predicted for it,
so the front grows by it and its surroundings are known better: no candidate gains by that. So a candidate's score, once
computed, is a bound for all that follow, and only those at the top have to be computed again (lazy greedy).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from hpo_pilot.optimizers.features import FeatureMap
from hpo_pilot.optimizers.hypervolume_improvement import HypervolumeImprovement
from hpo_pilot.optimizers.nondominated import crowding, front
from hpo_pilot.optimizers.posterior import Pool, Posterior
from hpo_pilot.optimizers.proposals import Proposals

Array = npt.NDArray[np.float64]

#: The climb starts from this many candidates, at least this far apart in length scales, and takes so many steps.
_STARTS, _APART, _STEPS = 4, 0.3, 15

#: How many points of a batch are climbed to; the rest are the pool's best. As in `batch`.
_MOST_CLIMBS, _LEAST_CLIMBS, _CLIMB_BUDGET = 16, 2, 4_000_000

#: So many candidates are computed again at a time.
_AGAIN = 48

#: More than any logarithm of an improvement that matters.
_LAST_RESORT = 1e4


class ParetoBatch:
    """Greedy choice by expected hypervolume improvement times the probability of success (kriging believer)."""

    def __init__(
        self,
        features: FeatureMap,
        posteriors: Sequence[Posterior],
        reached: Array,
        reference: Array,
        log_success: Callable[[Array], Array] | None,
        caution: float,
        feasible: Callable[[Array], Array],
    ) -> None:
        """Knows what is told and pending.

        Args:
            features: the map from unit vectors.
            posteriors: one for each objective: conditioned on the told points, and believing the pending ones.
            reached: the costs of told and pending points, normalised, shape (n, n_objectives).
            reference: the costs beyond which nothing counts, shape (n_objectives,).
            log_success: logarithm of the probability of success at features of shape (m, n_features); None: it is 1.
            caution: candidates less likely to succeed than this share of the likeliest are the last resort, in [0, 1].
            feasible: those of some unit vectors that satisfy the constraints.
        """
        self._map = features
        self._posteriors = list(posteriors)
        self._front = reached[front(reached)]
        self._reference = reference
        self._log_success = log_success
        self._log_caution = math.log(max(caution, 1e-300))
        self._least_log_success = -math.inf
        self._feasible = feasible
        self._improvement = self._made_improvement()

    def _made_improvement(self) -> HypervolumeImprovement:
        order = np.argsort(-np.array(crowding(self._front)), kind="stable")
        return HypervolumeImprovement(self._front[order], self._reference)

    def fill(self, proposals: Proposals, units: Array) -> None:
        """Offers the best candidates until none is missing, or none is left.

        Args:
            proposals: where accepted points go.
            units: the candidates, snapped, shape (m, n_dims); m above 0.
        """
        features = self._map.features(units)
        pools = [Pool(posterior, features, room=proposals.missing) for posterior in self._posteriors]
        if self._log_success is not None:
            self._least_log_success = float(self._log_success(features).max()) + self._log_caution
        bonus = self._bonus(features)
        scores = self._improvement.log_value(*_moments(pools)) + bonus
        known = len(self._posteriors[0].points)
        climbs = int(np.clip(_CLIMB_BUDGET / (known**2 * len(pools)), _LEAST_CLIMBS, _MOST_CLIMBS))
        while proposals.missing > 0:
            index = self._top(pools, scores, bonus)
            if scores[index] == -np.inf:
                return
            if climbs > 0:
                climbs -= 1
                chosen = self._climb(proposals, units[self._starts(features, scores)])
                if chosen is not None:
                    self._posteriors = [posterior.believing(chosen[None, :]) for posterior in self._posteriors]
                    for pool, posterior in zip(pools, self._posteriors, strict=True):
                        pool.believe(chosen, posterior.factor[-1, :-1])
                    continue
                climbs = 0  # the pools' rows run ahead of the posteriors from here on
            scores[index] = -np.inf
            if proposals.offer(units[index].tolist()):
                self._believe(np.array([pool.mean[index] for pool in pools]))
                for pool in pools:
                    pool.believe_candidate(index)

    def _top(self, pools: Sequence[Pool], scores: Array, bonus: Array) -> int:
        """The best candidate now; brings as many of `scores` up to date as that takes."""
        fresh = np.zeros(len(scores), dtype=bool)
        while True:
            index = int(np.argmax(scores))
            if fresh[index] or scores[index] == -np.inf:
                return index
            rows = np.argsort(-np.where(fresh, -np.inf, scores), kind="stable")[:_AGAIN]
            rows = rows[scores[rows] > -np.inf]
            scores[rows] = self._improvement.log_value(*_moments(pools, rows)) + bonus[rows]
            fresh[rows] = True

    def _believe(self, costs: Array) -> None:
        """The front when a point with these costs, shape (n_objectives,), has come out."""
        if (self._front <= costs).all(axis=1).any():
            return
        grown = np.concatenate([self._front, costs[None, :]])
        self._front = grown[front(grown)]
        self._improvement = self._made_improvement()

    def _bonus(self, features: Array) -> Array:
        """What the chance of failure takes from the logarithm of the improvement; shape (m,)."""
        if self._log_success is None:
            return np.zeros(len(features))
        log_success = self._log_success(features)
        return np.where(log_success < self._least_log_success, log_success - _LAST_RESORT, log_success)

    def _starts(self, features: Array, scores: Array) -> list[int]:
        """The best candidates that are apart from each other, in the length scales of the nearest objective."""
        left = scores.copy()
        starts: list[int] = []
        while len(starts) < _STARTS:
            index = int(np.argmax(left))
            if left[index] == -np.inf:
                break
            starts.append(index)
            for posterior in self._posteriors[:1]:
                scaled = features / posterior.fit.scales
                left[cdist(scaled[index : index + 1], scaled)[0] < _APART] = -np.inf
            left[index] = -np.inf
        return starts

    def _climb(self, proposals: Proposals, starts: Array) -> Array | None:
        """Offers the best of the starts, their discrete neighbours and what a gradient makes of the best of these.

        Returns:
            The features of the point taken, shape (n_features,); None where none was taken.
        """
        units = np.concatenate([self._map.neighbours(start) for start in starts])
        units = self._feasible(np.unique(units, axis=0))
        if not len(units):
            return None
        scores, _, _ = self._score(units)
        best = units[np.argsort(-scores, kind="stable")[:_STARTS]]
        units = np.concatenate([units, self._feasible(self._uphill(best))])
        scores, features, means = self._score(units)
        for index in np.argsort(-scores, kind="stable"):
            if proposals.offer(units[index].tolist()):
                self._believe(means[index])
                return np.asarray(features[index])
        return None

    def _score(self, units: Array) -> tuple[Array, Array, Array]:
        features = self._map.features(units)
        moments = [posterior.predict(features) for posterior in self._posteriors]
        means, variances = (np.stack(columns, axis=1) for columns in zip(*moments, strict=True))
        return self._improvement.log_value(means, variances) + self._bonus(features), features, means

    def _uphill(self, units: Array) -> Array:
        """Where L-BFGS leads from `units`; all climb together."""
        features = self._map.features(units)
        free = np.zeros(features.shape, dtype=bool)
        for row, unit in zip(free, units, strict=True):
            moves = self._map.is_active(unit) & self._map.is_climbed
            row[self._map.columns] = moves[self._map.ordered]
        if not free.any():
            return units[:0]

        def descent(variables: Array) -> tuple[float, Array]:
            at = features.copy()
            at[free] = variables
            found = [posterior.gradients(at) for posterior in self._posteriors]
            means, variances = (np.stack(columns, axis=1) for columns in list(zip(*found, strict=True))[:2])
            value, by_mean, by_variance = self._improvement.log_gradient(means, variances)
            gradient = np.zeros_like(at)
            for j, (_, _, d_mean, d_variance) in enumerate(found):
                gradient += by_mean[:, j, None] * d_mean + by_variance[:, j, None] * d_variance
            return -float(value.sum()), -gradient[free]

        bounds = [(0.0, 1.0)] * int(free.sum())
        found = minimize(
            descent, features[free], jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
        )
        features[free] = found.x
        moved = units.copy()
        moved[:, self._map.ordered] = features[:, self._map.columns]
        return self._map.snapped(moved)


def _moments(pools: Sequence[Pool], rows: npt.NDArray[np.int64] | slice = slice(None)) -> tuple[Array, Array]:
    """Means and variances of candidates, each of shape (m, n_objectives)."""
    means = np.stack([pool.mean[rows] for pool in pools], axis=1)
    return means, np.stack([pool.variance[rows] for pool in pools], axis=1)
