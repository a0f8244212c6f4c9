"""What chooses a batch needs to know of a model: what each point is worth, and that points chosen are believed."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Surrogate(Protocol):
    """A model of the values, conditioned on the told points, and what a batch has made of it so far."""

    @property
    def leaders(self) -> npt.NDArray[np.int64]:
        """Which of the data it is conditioned on are the best, those first; around them points are sought."""

    @property
    def scales(self) -> Array:
        """The length scales by which points are near or far from each other, shape (n_features,)."""

    @property
    def cost(self) -> float:
        """What one look at a point costs, in multiplications."""

    def look_at(self, features: Array, room: int) -> None:
        """Takes the candidates, shape (m, n_features); of all points, `room` will be believed at most."""

    def scores(self, bonus: Array) -> Array:
        """The logarithm of what the candidates are worth plus `bonus`, each of shape (m,).

        The largest is exact, the others may be more than they would be if they were computed again. A candidate whose
        bonus is -inf is out.
        """

    def value(self, features: Array) -> Array:
        """The logarithm of what points at `features`, shape (k, n_features), are worth; shape (k,)."""

    def gradient(self, features: Array) -> tuple[Array, Array]:
        """`value` and its derivatives by the features, shape (k, n_features)."""

    def believe(self, features: Array) -> None:
        """Takes a chosen point, of shape (n_features,), to return what is predicted for it."""

    def believe_candidate(self, index: int) -> None:
        """The same for a candidate, at less cost; from the first on, `believe` is not called any more."""
