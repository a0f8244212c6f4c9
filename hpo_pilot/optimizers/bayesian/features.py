"""Points as the Gaussian process sees them: a number per ordered dimension, a column per categorical choice."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from skopt.space import Categorical as SkoptCategorical
from skopt.space import Real as SkoptReal
from skopt.space import Space as SkoptSpace

from hpo_pilot.optimizers.bayesian.trend import Basis
from hpo_pilot.search import Dimension, Integer, SearchSpace

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Discrete ordered dimensions with more values than this are climbed like continuous ones, then set on their values.
_FINE = 12


class FeatureMap:
    """From unit vectors, shape (n, n_dims), to features, shape (n, n_features).

    scikit-optimize's transformers do the work, on numbers that `SearchSpace` has made: choices go in by their index,
    for its own categorical dimension cannot tell 1 from True.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Lays the columns out in the order of the dimensions."""
        self.space = space
        dimensions = list(space.dimensions.values())
        self._sizes = [int(d.size) if d.is_discrete else 0 for d in dimensions]
        self._categorical = [i for i, d in enumerate(dimensions) if not d.is_ordered]
        self._transform = SkoptSpace(
            [
                SkoptReal(0.0, 1.0, transform="identity")
                if d.is_ordered
                else SkoptCategorical(list(range(int(d.size))), transform="onehot")
                for d in dimensions
            ]
        )
        widths = [d.transformed_size for d in self._transform.dimensions]
        starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(int)
        self.size = int(sum(widths))
        self.ordered = [i for i, d in enumerate(dimensions) if d.is_ordered]
        """The ordered dimensions."""
        self.columns = starts[self.ordered]
        """The column of each ordered dimension."""
        self.is_climbed = np.array([not d.is_discrete or d.size > _FINE for d in dimensions])
        """Which dimensions a gradient makes sense for; shape (n_dims,)."""
        self.stepwise = [i for i, d in enumerate(dimensions) if d.is_discrete and d.size <= _FINE]
        """The dimensions whose values can be tried one by one."""
        self._conditions = self._list_conditions()
        self.basis = self._make_basis(dimensions, starts, widths)
        """The polynomials of a trend over the features."""

    def _make_basis(self, dimensions: Sequence[Dimension], starts: IntArray, widths: Sequence[int]) -> Basis:
        centres, deviations, means = np.full(self.size, 0.5), np.full(self.size, 0.5), np.full(self.size, np.nan)
        for index, (dimension, start, width) in enumerate(zip(dimensions, starts, widths, strict=True)):
            if not dimension.is_ordered:
                size = max(2, self._sizes[index])
                centres[start : start + width] = 1.0 / size
                deviations[start : start + width] = math.sqrt((size - 1.0) / size**2)
                continue
            deviations[start] = 1.0 / math.sqrt(12.0)
            # An inactive dimension stands at its centre, where a quadratic that is 0 there adds nothing.
            means[start] = 0.0 if dimension.when else 1.0 / 12.0
        return Basis(centres, deviations, means)

    def _list_conditions(self) -> list[tuple[int, list[tuple[int, Array]]]]:
        """(dimension, [(parent, the parent's places that make it active)]), parents first."""
        names = list(self.space.dimensions)
        conditions, done = [], {name for name in names if not self.space.dimensions[name].when}
        while len(done) < len(names):
            for name in names:
                when = self.space.dimensions[name].when
                if name in done or not when.keys() <= done:
                    continue
                done.add(name)
                parents = []
                for parent, wanted in when.items():
                    domain = self.space.dimensions[parent]
                    values = wanted if isinstance(wanted, list) else [wanted]
                    parents.append(
                        (names.index(parent), np.array([domain.to_unit(domain.canonical(value)) for value in values]))
                    )
                conditions.append((names.index(name), parents))
        return conditions

    def snapped(self, units: Array) -> Array:
        """What `SearchSpace.encode` gives for the points at `units`: cells' middles, 0.5 where inactive."""
        snapped = np.clip(units, 0.0, 1.0)
        for index, (dimension, size) in enumerate(zip(self.space.dimensions.values(), self._sizes, strict=True)):
            if not size:
                continue
            if isinstance(dimension, Integer) and dimension.scale == "log":  # the only cells of unequal width
                snapped[:, index] = [dimension.to_unit(dimension.from_unit(u)) for u in snapped[:, index].tolist()]
            else:
                snapped[:, index] = (np.minimum(np.floor(snapped[:, index] * size), size - 1) + 0.5) / size
        # A parent that is inactive stands at 0.5 itself, which may be a place that its child waits for.
        active = np.ones(snapped.shape, dtype=bool)
        for index, parents in self._conditions:
            for parent, places in parents:
                near = np.abs(snapped[:, parent, None] - places[None, :]).min(axis=1) < 1e-9
                active[:, index] &= near & active[:, parent]
            snapped[~active[:, index], index] = 0.5
        return snapped

    def is_active(self, unit: Array) -> npt.NDArray[np.bool_]:
        """Which dimensions the point at `unit` has; both of shape (n_dims,)."""
        point = self.space.decode(unit.tolist())
        return np.array([name in point for name in self.space.dimensions])

    def features(self, units: Array) -> Array:
        """The features of snapped units."""
        if not self._categorical:
            return units.copy()
        if not len(units):
            return np.empty((0, self.size))
        rows = units.tolist()
        for index in self._categorical:
            size = self._sizes[index]
            for row in rows:
                row[index] = min(size - 1, int(row[index] * size))
        return np.asarray(self._transform.transform(rows), dtype=float)

    def neighbours(self, unit: Array) -> Array:
        """The unit vectors that differ from a snapped one in one stepwise dimension, and itself; shape (n, n_dims)."""
        found = [unit[None, :]]
        for index in self.stepwise:
            size = self._sizes[index]
            others = np.repeat(unit[None, :], size, axis=0)
            others[:, index] = (np.arange(size) + 0.5) / size
            found.append(others)
        return self.snapped(np.concatenate(found))
