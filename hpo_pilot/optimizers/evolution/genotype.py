"""Points as CMA-ES sees them: a coordinate for each ordered dimension, a choice for each of the others.

A discrete value is a cell of its coordinate: the part of [0, 1] that `SearchSpace.decode` turns into it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpo_pilot.search import Integer, SearchSpace

Array = npt.NDArray[np.float64]


class Genotype:
    """Which dimensions are coordinates, and where their cells lie. Dimensions of one value are left out.

    Attributes:
        size: how many dimensions there are, shape (n_dims,) of a unit vector.
        ordered: the dimensions that are coordinates; coordinate i is dimension `ordered[i]`.
        discrete: the coordinates that have cells.
        categorical: the dimensions with choices.
        choices: how many choices each of those has.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Lays the coordinates out in the order of the dimensions."""
        dimensions = list(space.dimensions.values())
        self.size = len(dimensions)
        self.ordered = [i for i, d in enumerate(dimensions) if d.is_ordered and d.size > 1]
        self.categorical = [i for i, d in enumerate(dimensions) if not d.is_ordered and d.size > 1]
        self.choices = [int(dimensions[i].size) for i in self.categorical]
        self._dimensions = [dimensions[i] for i in self.ordered]
        self.discrete = frozenset(column for column, d in enumerate(self._dimensions) if d.is_discrete)

    @property
    def free(self) -> int:
        """How many dimensions have more than one value; at least 1."""
        return max(1, len(self.ordered) + len(self.categorical))

    def cells(self, column: int, units: Array) -> tuple[Array, Array]:
        """Where the cells of discrete values begin and end.

        Args:
            column: the coordinate.
            units: the values' places in [0, 1], shape (n,).
        """
        dimension = self._dimensions[column]
        if isinstance(dimension, Integer) and dimension.scale == "log":
            values = [dimension.from_unit(unit) for unit in units.tolist()]
            low = np.array([dimension.to_unit(value - 0.5) for value in values])
            high = np.array([dimension.to_unit(value + 0.5) for value in values])
            return low, high
        count = float(dimension.size)
        low = np.minimum(count - 1.0, np.floor(units * count)) / count
        return low, low + 1.0 / count

    def width(self, column: int, place: float) -> float:
        """How wide the cell at `place` is."""
        low, high = self.cells(column, np.array([min(1.0, max(0.0, place))]))
        return float(high[0] - low[0])
