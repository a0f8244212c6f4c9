"""Gaussian processes of several objectives, by which a point is worth the hypervolume that is expected of it.

A chosen point is believed to return what is predicted for it, so the front grows by it and its surroundings are known
better: no candidate gains by that. So a candidate's score, once computed, is a bound for all that follow, and only
those at the top have to be computed again (lazy greedy).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.bayesian.hypervolume_improvement import HypervolumeImprovement
from hpo_pilot.optimizers.bayesian.posterior import Pool, Posterior
from hpo_pilot.optimizers.nondominated import crowding, front

Array = npt.NDArray[np.float64]

#: So many of the data lead.
_LEADERS = 20

#: So many candidates are computed again at a time.
_AGAIN = 48

#: The reference point lies beyond the worst of the front and beyond what this share of the first trials reached, by
#: this share of the range, and by so much at least (of a deviation of all values).
_SHARE, _BEYOND, _LEAST_BEYOND = 0.75, 0.1, 0.1


class FrontSurrogate:
    """See `Surrogate`.

    Attributes:
        leaders: the rows of the data that are on the front, the least crowded first.
    """

    def __init__(
        self, posteriors: Sequence[Posterior], reached: Array, reference: Array, leaders: npt.NDArray[np.int64]
    ) -> None:
        """Before a batch is chosen.

        Args:
            posteriors: one for each objective: conditioned on the data, and believing what is out.
            reached: the costs of both, shape (n, n_objectives).
            reference: the costs beyond which nothing counts, shape (n_objectives,).
            leaders: see above.
        """
        self._posteriors = list(posteriors)
        self._reference = reference
        self.leaders = leaders
        self._front = reached[front(reached)]
        self._improvement = self._made_improvement()

    @classmethod
    def of_data(
        cls, posteriors: Sequence[Posterior], stopped: npt.NDArray[np.bool_], first: int, reach: Array, believed: Array
    ) -> Self:
        """Before a batch is chosen.

        Args:
            posteriors: one for each objective, conditioned on the same data.
            stopped: which of the data are no more than guesses, and never on the front; shape (n_data,).
            first: how many of the data, at their beginning, are of an even spread.
            reach: the features of what is to be improved on where there are no data, shape (k, n_features).
            believed: the features of the points that are out, shape (m, n_features).
        """
        fitted = np.stack([posterior.fitted() for posterior in posteriors], axis=1)
        rows = np.arange(len(fitted)) if stopped.all() else np.flatnonzero(~stopped)
        reached = fitted[rows] if len(rows) else _means(posteriors, reach)
        members = np.array(front(reached))
        reference = _reference(reached, members, fitted[:first] if first else reached)
        order = np.argsort(-np.array(crowding(reached[members])), kind="stable")[:_LEADERS]
        leaders = rows[members[order]] if len(rows) else rows
        if len(believed):
            reached = np.concatenate([reached, _means(posteriors, believed)])
        return cls([posterior.believing(believed) for posterior in posteriors], reached, reference, leaders)

    def _made_improvement(self) -> HypervolumeImprovement:
        order = np.argsort(-np.array(crowding(self._front)), kind="stable")
        return HypervolumeImprovement(self._front[order], self._reference)

    @property
    def scales(self) -> Array:
        """See `Surrogate`; those of the first objective."""
        return self._posteriors[0].fit.scales

    @property
    def cost(self) -> float:
        """See `Surrogate`."""
        return float(len(self._posteriors[0].points) ** 2 * len(self._posteriors))

    def look_at(self, features: Array, room: int) -> None:
        """See `Surrogate`."""
        self._pools = [Pool(posterior, features, room) for posterior in self._posteriors]
        self._bounds = self._improvement.log_value(*self._moments(slice(None)))

    def scores(self, bonus: Array) -> Array:
        """See `Surrogate`."""
        fresh = np.zeros(len(bonus), dtype=bool)
        while True:
            scores = self._bounds + bonus
            index = int(np.argmax(scores))
            if fresh[index] or scores[index] == -np.inf:
                return scores
            rows = np.argsort(-np.where(fresh, -np.inf, scores), kind="stable")[:_AGAIN]
            rows = rows[scores[rows] > -np.inf]
            self._bounds[rows] = self._improvement.log_value(*self._moments(rows))
            fresh[rows] = True

    def value(self, features: Array) -> Array:
        """See `Surrogate`."""
        moments = [posterior.predict(features) for posterior in self._posteriors]
        means, variances = (np.stack(columns, axis=1) for columns in zip(*moments, strict=True))
        return self._improvement.log_value(means, variances)

    def gradient(self, features: Array) -> tuple[Array, Array]:
        """See `Surrogate`."""
        found = [posterior.gradients(features) for posterior in self._posteriors]
        means, variances = (np.stack(columns, axis=1) for columns in list(zip(*found, strict=True))[:2])
        value, by_mean, by_variance = self._improvement.log_gradient(means, variances)
        gradient = np.zeros_like(features)
        for j, (_, _, d_mean, d_variance) in enumerate(found):
            gradient += by_mean[:, j, None] * d_mean + by_variance[:, j, None] * d_variance
        return value, gradient

    def believe(self, features: Array) -> None:
        """See `Surrogate`."""
        self._reach(_means(self._posteriors, features[None, :])[0])
        self._posteriors = [posterior.believing(features[None, :]) for posterior in self._posteriors]
        for pool, posterior in zip(self._pools, self._posteriors, strict=True):
            pool.believe(features, posterior.factor[-1, :-1])

    def believe_candidate(self, index: int) -> None:
        """See `Surrogate`."""
        self._reach(np.array([pool.mean[index] for pool in self._pools]))
        for pool in self._pools:
            pool.believe_candidate(index)

    def _reach(self, costs: Array) -> None:
        """The front when a point with these costs, shape (n_objectives,), has come out."""
        if (self._front <= costs).all(axis=1).any():
            return
        grown = np.concatenate([self._front, costs[None, :]])
        self._front = grown[front(grown)]
        self._improvement = self._made_improvement()

    def _moments(self, rows: npt.NDArray[np.int64] | slice) -> tuple[Array, Array]:
        """Means and variances of candidates, each of shape (m, n_objectives)."""
        means = np.stack([pool.mean[rows] for pool in self._pools], axis=1)
        return means, np.stack([pool.variance[rows] for pool in self._pools], axis=1)


def _means(posteriors: Sequence[Posterior], features: Array) -> Array:
    """What is predicted at features of shape (m, n_features): shape (m, n_objectives)."""
    return np.stack([posterior.mean(features) for posterior in posteriors], axis=1)


def _reference(reached: Array, members: npt.NDArray[np.int64], spread: Array) -> Array:
    """The reference point for normalised costs, shape (n, n_objectives), of which the rows `members` are the front.

    Beyond the worst of the front, and beyond what a good share of an even spread of points reached, shape
    (m, n_objectives): the end of the present front is not that of the true one, and what extends it must be worth
    something. All trials together would not tell, for they crowd where the front is already.
    """
    worst = np.maximum(reached[members].max(axis=0), np.quantile(spread, _SHARE, axis=0))
    return np.asarray(worst + np.maximum(_BEYOND * (worst - reached.min(axis=0)), _LEAST_BEYOND))
