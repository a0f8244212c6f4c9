"""The points among which the next batch is sought: some from anywhere, some near the best."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.feasible_region import feasible_region
from hpo_pilot.optimizers.proposals import feasible_units
from hpo_pilot.search import SearchSpace

Array = npt.NDArray[np.float64]

#: Finite spaces up to this size are looked at in full.
LISTED = 2_000

#: Candidates from anywhere, and near the best; more for batches so wide that there would be little to choose from.
_ANYWHERE, _NEARBY = 1_000, 600
_PER_POINT = 3

#: With constraints every candidate costs an evaluation in Python, some 20 µs: then fewer from anywhere.
_ANYWHERE_CONSTRAINED = 400


class Candidates:
    """Draws snapped unit vectors of feasible points."""

    def __init__(self, space: SearchSpace, features: FeatureMap) -> None:
        """Draws from `space`."""
        self._space = space
        self._features = features
        self._ordered = np.array([d.is_ordered for d in space.dimensions.values()])
        self._steps = np.array([1.0 / d.size if d.is_discrete else 0.0 for d in space.dimensions.values()])
        self._list: Array | None = None

    def draw(
        self,
        wanted: int,
        best: Array,
        anchors: Sequence[Sequence[float]],
        numbers: np.random.Generator,
        rng: random.Random,
    ) -> Array:
        """Candidates for a batch of `wanted` points; shape (n, n_dims), n = 0 where no feasible point was found.

        Args:
            wanted: the size of the batch.
            best: unit vectors of the best points known, shape (k, n_dims).
            anchors: unit vectors known to be feasible.
            numbers: the random stream.
            rng: the random stream of the constrained case.
        """
        if self._space.size <= LISTED:
            return self._listed()
        near = self._near(best, max(_NEARBY, wanted * _PER_POINT), numbers)
        if not self._space.constraints:
            anywhere = numbers.random((max(_ANYWHERE, wanted * _PER_POINT), len(self._ordered)))
            return np.concatenate([self._features.snapped(anywhere), near])
        found = feasible_units(self._space, max(_ANYWHERE_CONSTRAINED, wanted), rng, anchors)
        if not found:
            return near[:0]
        return np.concatenate([self._features.snapped(np.array(found)), self.feasible(near)])

    def feasible(self, units: Array) -> Array:
        """Those of `units` that satisfy the constraints."""
        if not self._space.constraints:
            return units
        return np.asarray(units[feasible_region(self._space).mask(units)])

    def _listed(self) -> Array:
        if self._list is None:
            units = [self._space.encode(point) for point in self._space.all_points()]
            self._list = self._features.snapped(np.array(units).reshape(len(units), len(self._ordered)))
        return self._list

    def _near(self, best: Array, count: int, numbers: np.random.Generator) -> Array:
        """Neighbours of `best` at distances from a thousandth to a third of the range, in some of the dimensions."""
        dims = len(self._ordered)
        units = best[np.arange(count) % len(best)].clip(0.0, 1.0)
        scale = 10.0 ** numbers.uniform(-3.0, -0.5, (count, 1))
        changed = numbers.random((count, dims)) < max(0.3, min(1.0, 2.0 / dims))
        changed[np.arange(count), numbers.integers(dims, size=count)] = True
        shifted = units + np.maximum(scale, self._steps) * numbers.standard_normal((count, dims))
        folded = np.mod(np.abs(shifted), 2.0)
        shifted = np.where(folded > 1.0, 2.0 - folded, folded)
        other = np.where(self._ordered, shifted, numbers.random((count, dims)))
        return self._features.snapped(np.where(changed, other, units))
