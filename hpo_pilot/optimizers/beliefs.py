"""The user's beliefs (`prior` of a search file) as a probability density on the unit cube.

Hvarfner, Stoll, Souza, Lindauer, Hutter, Nardi 2022, "piBO: augmenting acquisition functions with user beliefs for
Bayesian optimization": the acquisition value is multiplied by the density to the power b / n, n the number of points
so far, so that a wrong belief is overcome.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from hpo_pilot.optimizers.feasible_region import UnitCube
from hpo_pilot.search import SearchSpace
from hpo_pilot.search.prior import deviation

Array = npt.NDArray[np.float64]

#: The probability of the value that a user names among choices without an order.
_CHOSEN = 0.75

#: The share of each parameter's density that is even over its range: it limits what a wrong belief can cost.
_EVEN = 0.1


class Beliefs:
    """Densities of the parameters that have a prior; they are independent of each other.

    On an ordered parameter it is a normal distribution on its scale, whose deviation is `within`, cut off at the
    bounds; among choices without an order the named one has three quarters.
    """

    def __init__(self, space: SearchSpace, cube: UnitCube) -> None:
        """Takes the priors of the space; `cube` is its unit cube."""
        self._cube = cube
        self._ordered: list[tuple[int, float, float]] = []  # index of the dimension, centre, deviation
        self._choices: list[tuple[int, float, int]] = []  # index of the dimension, place, number of choices
        for index, (name, dimension) in enumerate(space.dimensions.items()):
            if (prior := space.prior.get(name)) is None:
                continue
            place = dimension.to_unit(dimension.canonical(prior.around))
            if dimension.is_ordered:
                self._ordered.append((index, place, deviation(dimension, prior)))
            else:
                self._choices.append((index, place, cube.sizes[index]))

    def __bool__(self) -> bool:
        """Whether there is a prior at all."""
        return bool(self._ordered or self._choices)

    def log_density(self, units: Array) -> Array:
        """Returns the logarithm of the density at snapped unit vectors, shape (n, n_dims); shape (n,)."""
        total = np.zeros(len(units))
        active = self._cube.active(units)
        for index, centre, width in self._ordered:
            z = (units[:, index] - centre) / width
            mass = ndtr((1.0 - centre) / width) - ndtr(-centre / width)
            density = np.exp(-0.5 * z * z) / (np.sqrt(2.0 * np.pi) * width * mass)
            total += np.where(active[:, index], np.log(_EVEN + (1.0 - _EVEN) * density), 0.0)
        for index, place, size in self._choices:
            others = (1.0 - _CHOSEN) / max(1, size - 1)
            probability = np.where(np.abs(units[:, index] - place) < 0.5 / size, _CHOSEN, others)
            total += np.where(active[:, index], np.log(_EVEN + (1.0 - _EVEN) * probability * size), 0.0)
        return total

    def placed(self, even: Array) -> Array:
        """Returns unit vectors with this density for vectors that are evenly distributed; shape (n, n_dims).

        The vector of 0.5 becomes the point that all priors name.
        """
        units = even.copy()
        for index, centre, width in self._ordered:
            # Symmetric about the centre where no bound cuts it off, so that 0.5 is the centre.
            low, high, at = ndtr(-centre / width), ndtr((1.0 - centre) / width), even[:, index]
            share = np.where(at < 0.5, low + 2 * at * (0.5 - low), 0.5 + (2 * at - 1) * (high - 0.5))
            units[:, index] = np.clip(centre + width * ndtri(share), 0.0, 1.0)
        for index, place, size in self._choices:
            first = 0.5 - _CHOSEN / 2
            at = even[:, index]
            outside = np.where(at < first, at, at - _CHOSEN) / (1.0 - _CHOSEN)  # in [0, 1) over the other choices
            number = np.minimum((outside * (size - 1)).astype(int), size - 2)
            number += number >= int(place * size)
            chosen = (np.abs(at - 0.5) <= _CHOSEN / 2) | (size < 2)
            units[:, index] = np.where(chosen, place, (number + 0.5) / size)
        return units
