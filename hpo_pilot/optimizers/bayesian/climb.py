"""Climbing: from the best candidates to what is better than any, by discrete neighbours and by the gradient."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.bayesian.surrogate import Surrogate
from hpo_pilot.optimizers.proposals import Proposals

Array = npt.NDArray[np.float64]

#: The climb starts from this many candidates, at least this far apart in length scales.
_STARTS, _APART = 4, 0.3

#: Steps of the climb.
_STEPS = 15


class Climber:
    """Climbs by what a surrogate says a point is worth, less a penalty."""

    def __init__(self, features: FeatureMap, feasible: Callable[[Array], Array]) -> None:
        """Climbs in a space.

        Args:
            features: the map from unit vectors.
            feasible: those of some unit vectors that satisfy the constraints.
        """
        self._map = features
        self._feasible = feasible

    def climb(
        self, surrogate: Surrogate, proposals: Proposals, starts: Array, penalty: Callable[[Array], Array]
    ) -> Array | None:
        """Offers the best of the starts, their discrete neighbours and what a gradient makes of the best of these.

        Args:
            surrogate: says what points are worth.
            proposals: where the point goes.
            starts: unit vectors, shape (k, n_dims), k above 0.
            penalty: what is added to the values at features of shape (m, n_features); shape (m,).

        Returns:
            The features of the point taken, shape (n_features,); None where none was taken.
        """
        units = np.concatenate([self._map.neighbours(start) for start in starts])
        units = self._feasible(np.unique(units, axis=0))
        if not len(units):
            return None
        features = self._map.features(units)
        scores = surrogate.value(features) + penalty(features)
        best = units[np.argsort(-scores, kind="stable")[:_STARTS]]
        units = np.concatenate([units, self._feasible(self._uphill(surrogate, best))])
        features = self._map.features(units)
        scores = surrogate.value(features) + penalty(features)
        for index in np.argsort(-scores, kind="stable"):
            if proposals.offer(units[index].tolist()):
                return np.asarray(features[index])
        return None

    def _uphill(self, surrogate: Surrogate, units: Array) -> Array:
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
            value, gradient = surrogate.gradient(at)
            return -float(value.sum()), -gradient[free]

        bounds = [(0.0, 1.0)] * int(free.sum())
        found = minimize(
            descent, features[free], jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
        )
        features[free] = found.x
        moved = units.copy()
        moved[:, self._map.ordered] = features[:, self._map.columns]
        return self._map.snapped(moved)


def starts_apart(features: Array, scores: Array, scales: Array) -> list[int]:
    """The best candidates that are apart from each other, in length scales.

    Args:
        features: shape (m, n_features).
        scores: shape (m,).
        scales: shape (n_features,).
    """
    scaled = features / scales
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
