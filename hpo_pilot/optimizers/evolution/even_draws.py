"""Random numbers for the points of CMA-ES, spread evenly over each population: few points then say as much as many.

Steps come in pairs, one the mirror image of the other, along directions at right angles (Wang, Emmerich, Bäck 2014,
mirrored orthogonal sampling). The numbers that choices are made by are a Latin hypercube (McKay, Beckman, Conover
1979). Each step by itself is normal, and each number uniform.
"""

from __future__ import annotations

import math

import numpy as np

from hpo_pilot.optimizers.evolution.genotype import Array
from hpo_pilot.optimizers.streams import array_stream


class EvenDraws:
    """An endless row of draws, in blocks of a population: the draw at a position is always the same one.

    So points that are asked for one by one are spread like those of a batch.
    """

    def __init__(self, seed: int, population: int, coordinates: int, dimensions: int) -> None:
        """Draws nothing yet.

        Args:
            seed: names the row.
            population: the length of a block.
            coordinates: how long a step is.
            dimensions: how many uniform numbers go with it.
        """
        self._seed, self._population = seed, population
        self._coordinates, self._dimensions = coordinates, dimensions
        self._blocks: dict[int, tuple[Array, Array]] = {}

    def at(self, position: int) -> tuple[Array, Array]:
        """A normal step, shape (coordinates,), and numbers in [0, 1), shape (dimensions,)."""
        number, row = divmod(position, self._population)
        if number not in self._blocks:
            rng = array_stream(self._seed, "draws", self._population, number)
            self._blocks[number] = (
                mirrored_steps(rng, self._population, self._coordinates),
                latin_numbers(rng, self._population, self._dimensions),
            )
        steps, numbers = self._blocks[number]
        return steps[row], numbers[row]


def mirrored_steps(rng: np.random.Generator, count: int, coordinates: int) -> Array:
    """Normal steps z1, -z1, z2, -z2, …, of which `coordinates` pairs after one another are at right angles.

    Returns:
        Shape (count, coordinates).
    """
    sets = math.ceil(count / (2 * coordinates))
    turns, upper = np.linalg.qr(rng.standard_normal((sets, coordinates, coordinates)))
    signs = np.where(np.diagonal(upper, axis1=1, axis2=2) < 0.0, -1.0, 1.0)  # else not every turn is as likely
    lengths = np.sqrt(rng.chisquare(coordinates, (sets, coordinates)))
    steps = np.swapaxes(turns * (signs * lengths)[:, None, :], 1, 2)
    mirrored: Array = np.stack([steps, -steps], axis=2).reshape(-1, coordinates)[:count]
    return mirrored


def latin_numbers(rng: np.random.Generator, count: int, dimensions: int) -> Array:
    """Uniform numbers in [0, 1), one in each of `count` equal parts of it, in each dimension in another order.

    Returns:
        Shape (count, dimensions).
    """
    parts = rng.permuted(np.tile(np.arange(count)[:, None], (1, dimensions)), axis=0)
    return (parts + rng.random((count, dimensions))) / count
