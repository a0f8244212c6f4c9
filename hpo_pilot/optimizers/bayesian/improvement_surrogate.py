"""A Gaussian process of one objective, by which a point is worth the improvement that is expected of it."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.bayesian.acquisition import log_expected_improvement, log_expected_improvement_gradient
from hpo_pilot.optimizers.bayesian.posterior import Pool, Posterior

Array = npt.NDArray[np.float64]

#: So many of the data lead.
_LEADERS = 10


class ImprovementSurrogate:
    """See `Surrogate`.

    Attributes:
        leaders: the rows of the data with the best values.
    """

    def __init__(self, posterior: Posterior, best: float, leaders: npt.NDArray[np.int64]) -> None:
        """Use `of_data`."""
        self._posterior = posterior
        self._best = best
        self.leaders = leaders

    @classmethod
    def of_data(cls, posterior: Posterior, stopped: npt.NDArray[np.bool_], reach: Array, believed: Array) -> Self:
        """Before a batch is chosen.

        Args:
            posterior: conditioned on the data.
            stopped: which of the data are no more than guesses, and never the best; shape (n_data,).
            reach: the features of what is to be improved on where there are no data, shape (k, n_features).
            believed: the features of the points that are out, shape (m, n_features).
        """
        fitted = np.where(stopped, np.inf, posterior.fitted())
        leaders = np.argsort(fitted, kind="stable")[:_LEADERS]
        if not len(stopped):
            best = float(posterior.mean(reach).min())
        elif stopped.all():
            best = float(posterior.fitted().max())
        else:
            best = float(fitted.min())
        return cls(posterior.believing(believed), best, leaders)

    @property
    def scales(self) -> Array:
        """See `Surrogate`."""
        return self._posterior.fit.scales

    @property
    def cost(self) -> float:
        """See `Surrogate`."""
        return float(len(self._posterior.points) ** 2)

    def look_at(self, features: Array, room: int) -> None:
        """See `Surrogate`."""
        self._pool = Pool(self._posterior, features, room)

    def scores(self, bonus: Array) -> Array:
        """See `Surrogate`."""
        return log_expected_improvement(self._pool.mean, self._pool.variance, self._best) + bonus

    def value(self, features: Array) -> Array:
        """See `Surrogate`."""
        mean, variance = self._posterior.predict(features)
        return log_expected_improvement(mean, variance, self._best)

    def gradient(self, features: Array) -> tuple[Array, Array]:
        """See `Surrogate`."""
        return log_expected_improvement_gradient(*self._posterior.gradients(features), self._best)

    def believe(self, features: Array) -> None:
        """See `Surrogate`."""
        self._best = min(self._best, float(self._posterior.predict(features[None, :])[0][0]))
        self._posterior = self._posterior.believing(features[None, :])
        self._pool.believe(features, self._posterior.factor[-1, :-1])

    def believe_candidate(self, index: int) -> None:
        """See `Surrogate`."""
        self._best = min(self._best, float(self._pool.mean[index]))
        self._pool.believe_candidate(index)
