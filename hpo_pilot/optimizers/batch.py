"""Choosing a batch: one point after the other, each as if those before it had returned what was predicted for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from hpo_pilot.optimizers.acquisition import log_expected_improvement, log_expected_improvement_gradient
from hpo_pilot.optimizers.features import FeatureMap
from hpo_pilot.optimizers.posterior import Pool, Posterior
from hpo_pilot.optimizers.proposals import Proposals

Array = npt.NDArray[np.float64]

#: The climb starts from this many candidates, at least this far apart in length scales.
_STARTS, _APART = 4, 0.3

#: Steps of the climb.
_STEPS = 15

#: How many points of a batch are climbed to; the rest are the pool's best. The cost of a climb grows with the square
#: of the points known, so it is the first few that get one.
_MOST_CLIMBS, _LEAST_CLIMBS, _CLIMB_BUDGET = 16, 2, 4_000_000

#: More than any logarithm of an expected improvement that matters.
_LAST_RESORT = 1e4


class Surrogate:
    """A model of the values, and what a batch has made of it so far.

    Attributes:
        posterior: conditioned on the told points, and believing the pending and the chosen ones.
        best: the value to improve on, normalised.
    """

    def __init__(self, posterior: Posterior, best: float) -> None:
        """Before a batch is chosen."""
        self.posterior = posterior
        self.best = best

    def believe(self, features: Array) -> None:
        """Takes a chosen point, of shape (n_features,), to return what is predicted for it."""
        self.best = min(self.best, float(self.posterior.predict(features[None, :])[0][0]))
        self.posterior = self.posterior.believing(features[None, :])


class BatchChooser:
    """Greedy choice by expected improvement times the probability of success (kriging believer).

    Where there are several models they take turns, and each believes what the others chose: when one is sure of
    something wrong, the others' points tell.
    """

    def __init__(
        self,
        features: FeatureMap,
        surrogates: Sequence[Surrogate],
        turn: int,
        log_success: Callable[[Array], Array] | None,
        caution: float,
        feasible: Callable[[Array], Array],
    ) -> None:
        """Knows what is told and pending.

        Args:
            features: the map from unit vectors.
            surrogates: the models; used up.
            turn: whose turn is first.
            log_success: logarithm of the probability of success at features of shape (m, n_features); None: it is 1.
            caution: candidates less likely to succeed than this share of the likeliest are the last resort, in [0, 1].
            feasible: those of some unit vectors that satisfy the constraints.
        """
        self._map = features
        self._surrogates = list(surrogates)
        self._turn = turn
        self._log_success = log_success
        self._log_caution = math.log(max(caution, 1e-300))
        self._least_log_success = -math.inf
        self._feasible = feasible

    def fill(self, proposals: Proposals, units: Array) -> None:
        """Offers the best candidates until none is missing, or none is left.

        Args:
            proposals: where accepted points go.
            units: the candidates, snapped, shape (m, n_dims); m above 0.
        """
        features = self._map.features(units)
        pools = [Pool(model.posterior, features, room=proposals.missing) for model in self._surrogates]
        if self._log_success is not None:
            self._least_log_success = float(self._log_success(features).max()) + self._log_caution
        bonus = self._bonus(features)
        is_open = np.ones(len(units), dtype=bool)
        known = len(self._surrogates[0].posterior.points)
        climbs = int(np.clip(_CLIMB_BUDGET / known**2, _LEAST_CLIMBS, _MOST_CLIMBS))
        while proposals.missing > 0 and is_open.any():
            whose = self._turn % len(self._surrogates)
            model, pool = self._surrogates[whose], pools[whose]
            improvement = log_expected_improvement(pool.mean, pool.variance, model.best)
            scores = np.where(is_open, improvement + bonus, -np.inf)
            if climbs > 0:
                climbs -= 1
                chosen = self._climb(model, proposals, units[self._starts(model, features, scores)])
                if chosen is not None:
                    self._turn += 1
                    for model, pool in zip(self._surrogates, pools, strict=True):
                        model.believe(chosen)
                        pool.believe(chosen, model.posterior.factor[-1, :-1])
                    continue
                climbs = 0  # the pools' rows run ahead of the posteriors from here on
            index = int(np.argmax(scores))
            is_open[index] = False
            if proposals.offer(units[index].tolist()):
                self._turn += 1
                for model, pool in zip(self._surrogates, pools, strict=True):
                    model.best = min(model.best, float(pool.mean[index]))
                    pool.believe_candidate(index)

    def _bonus(self, features: Array) -> Array:
        """What the chance of failure takes from the logarithm of the expected improvement; shape (m,)."""
        if self._log_success is None:
            return np.zeros(len(features))
        log_success = self._log_success(features)
        return np.where(log_success < self._least_log_success, log_success - _LAST_RESORT, log_success)

    def _starts(self, model: Surrogate, features: Array, scores: Array) -> list[int]:
        """The best candidates that are apart from each other."""
        scaled = features / model.posterior.fit.scales
        left = scores.copy()
        starts: list[int] = []
        while len(starts) < _STARTS:
            index = int(np.argmax(left))
            if left[index] == -np.inf:
                break
            starts.append(index)
            left[cdist(scaled[index : index + 1], scaled)[0] < _APART] = -np.inf
            left[index] = -np.inf
        return starts

    def _climb(self, model: Surrogate, proposals: Proposals, starts: Array) -> Array | None:
        """Offers the best of the starts, their discrete neighbours and what a gradient makes of the best of these.

        Returns:
            The features of the point taken, shape (n_features,); None where none was taken.
        """
        units = np.concatenate([self._map.neighbours(start) for start in starts])
        units = self._feasible(np.unique(units, axis=0))
        if not len(units):
            return None
        scores, _ = self._score(model, units)
        best = units[np.argsort(-scores, kind="stable")[:_STARTS]]
        units = np.concatenate([units, self._feasible(self._uphill(model, best))])
        scores, features = self._score(model, units)
        for index in np.argsort(-scores, kind="stable"):
            if proposals.offer(units[index].tolist()):
                return np.asarray(features[index])
        return None

    def _score(self, model: Surrogate, units: Array) -> tuple[Array, Array]:
        features = self._map.features(units)
        mean, variance = model.posterior.predict(features)
        return log_expected_improvement(mean, variance, model.best) + self._bonus(features), features

    def _uphill(self, model: Surrogate, units: Array) -> Array:
        """Where L-BFGS leads from `units`; all climb together, so that one matrix product serves them all."""
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
            value, gradient = log_expected_improvement_gradient(*model.posterior.gradients(at), model.best)
            return -float(value.sum()), -gradient[free]

        bounds = [(0.0, 1.0)] * int(free.sum())
        found = minimize(
            descent, features[free], jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
        )
        features[free] = found.x
        moved = units.copy()
        moved[:, self._map.ordered] = features[:, self._map.columns]
        return self._map.snapped(moved)
