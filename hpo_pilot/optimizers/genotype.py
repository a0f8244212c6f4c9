"""Points as vectors of real numbers that a normal distribution can describe: what CMA-ES evolves.

An ordered dimension is one coordinate, its place in [0, 1]; a categorical one with k > 2 choices is k coordinates, and
the largest of them wins. Discrete values fill their whole cell: a told point's coordinate is spread over the cell by
a random number that belongs to the point. Its variance can then not fall far below the cell's width, where rounding
alone lets the distribution shrink inside one cell and never look into the next.
"""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt

from hpo_pilot.search import Integer, Point, SearchSpace

Array = npt.NDArray[np.float64]


class Genotype:
    """The map between points and vectors of shape (n_coordinates,)."""

    def __init__(self, space: SearchSpace) -> None:
        """Lays the coordinates out in the order of the dimensions."""
        self.space = space
        self._widths = [
            int(d.size) if not d.is_ordered and d.size > 2 else 1  # two choices are the halves of one coordinate
            for d in space.dimensions.values()
        ]
        self.size = sum(self._widths)
        self.bounded = np.concatenate([np.full(width, width == 1) for width in self._widths])
        """Which coordinates live in [0, 1]; shape (n_coordinates,)."""

    def vector(self, point: Point, unit: tuple[float, ...], rng: random.Random, filling: Array) -> Array:
        """A told point as a vector.

        Args:
            point: the point.
            unit: its unit vector, all within [0, 1].
            rng: the point's own random stream.
            filling: what inactive coordinates become; shape (n_coordinates,).
        """
        vector = filling.copy()
        start = 0
        for (name, dimension), width, place in zip(self.space.dimensions.items(), self._widths, unit, strict=True):
            r = [
                rng.random() for _ in range(width)
            ]  # drawn for inactive ones too: what follows must not depend on them
            if name in point:
                if width > 1:
                    chosen = min(width - 1, int(place * width))
                    vector[start : start + width] = [0.5 * (x + (i == chosen)) for i, x in enumerate(r)]
                elif isinstance(dimension, Integer) and dimension.scale == "log":
                    low, high = dimension.to_unit(point[name] - 0.5), dimension.to_unit(point[name] + 0.5)
                    vector[start] = low + r[0] * (high - low)
                elif dimension.is_discrete:
                    vector[start] = (
                        min(dimension.size - 1, math.floor(place * dimension.size)) + r[0]
                    ) / dimension.size
                else:
                    vector[start] = place
            start += width
        return vector

    def unit(self, vector: Array, rng: random.Random, margin: float) -> list[float]:
        """The unit vector that a sampled vector stands for.

        Args:
            vector: shape (n_coordinates,).
            rng: the random stream of the sample.
            margin: the least probability with which a discrete dimension leaves the value that the vector says, to a
                neighbour if it is ordered, so that no value dies out.
        """
        unit: list[float] = []
        start = 0
        for dimension, width in zip(self.space.dimensions.values(), self._widths, strict=True):
            part = vector[start : start + width]
            start += width
            place = float(part[0]) if width == 1 else (float(np.argmax(part)) + 0.5) / width
            if dimension.is_discrete and rng.random() < margin:
                place = place + rng.choice((-1, 1)) / dimension.size if dimension.is_ordered else rng.random()
            unit.append(min(1.0, max(0.0, place)))
        return unit
