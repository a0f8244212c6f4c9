"""What was told, as arrays: distinct points with the mean of their values."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.values import Warped

Array = npt.NDArray[np.float64]

#: Points further beyond the bounds than this share of the range (an older search's) say nothing about what lies within.
_REACH = 0.5

#: The variance of what a stopped trial would probably have come to, on the scale of values with variance 1.
_STOPPED_VARIANCE = 0.1


class Told:
    """Grows with every told trial; any earlier state can be read back, for fits belong to a cut of the history."""

    def __init__(self) -> None:
        """Empty."""
        self._row_of: dict[str, int] = {}
        self._rows: list[int] = []
        self._values: list[float] = []
        self._stds: list[float] = []
        self._stopped: list[bool] = []
        self._units: list[tuple[float, ...]] = []

    def __len__(self) -> int:
        """How many trials it has, repetitions counted."""
        return len(self._rows)

    def add(self, observation: Observation) -> None:
        """Takes a trial, if the space has a place for it."""
        unit = observation.unit
        if unit is None or not all(-_REACH <= place <= 1.0 + _REACH for place in unit):
            return
        row = self._row_of.setdefault(observation.key, len(self._units))
        if row == len(self._units):
            self._units.append(unit)
        self._rows.append(row)
        self._values.append(np.nan if observation.value is None else observation.value)
        self._stds.append(observation.std or 0.0)
        self._stopped.append(observation.stopped)

    def failing(self, window: int) -> float:
        """The share of failures among the last `window` trials; 0 where there are none."""
        recent = self._values[-window:]
        return sum(math.isnan(value) for value in recent) / max(1, len(recent))

    def table(self, length: int) -> tuple[Array, Array]:
        """The distinct points of the first `length` trials.

        Returns:
            Units, shape (n, n_dims), and values, shape (n,): the mean of a point's good values, NaN where all failed.
        """
        rows = np.array(self._rows[:length], dtype=int)
        values = np.array(self._values[:length])
        count = int(rows.max()) + 1 if length else 0
        good = ~np.isnan(values)
        times = np.bincount(rows[good], minlength=count)
        # Divided before they are added up: a sum of huge values would overflow.
        means = np.bincount(rows[good], weights=values[good] / times[rows[good]], minlength=count)
        return np.array(self._units[:count]), np.where(times > 0, means, np.nan)

    def doubts(self, length: int) -> tuple[Array, npt.NDArray[np.bool_]]:
        """How sure the values of `table` are.

        Returns:
            Their standard errors, shape (n,), 0 where none was told; and which of them are only what stopped trials
            would probably have come to, shape (n,).
        """
        rows = np.array(self._rows[:length], dtype=int)
        count = int(rows.max()) + 1 if length else 0
        values, stds = np.array(self._values[:length]), np.array(self._stds[:length])
        good = ~np.isnan(values)
        times = np.bincount(rows[good], minlength=count)
        # Divided before they are squared and added up, as above.
        largest = float(stds.max()) if length and stds.max() > 0.0 else 1.0
        shares = stds[good] / largest / times[rows[good]]
        squares = np.bincount(rows[good], weights=shares * shares, minlength=count)
        full = np.bincount(rows[good & ~np.array(self._stopped[:length], dtype=bool)], minlength=count)
        return largest * np.sqrt(squares), (full == 0) & (times > 0)


def variances_of(warped: Warped, stds: Array, stopped: npt.NDArray[np.bool_]) -> Array:
    """The known variances of warped values, shape (n,)."""
    return warped.variances(stds) + np.where(stopped, _STOPPED_VARIANCE, 0.0)


def most_telling(values: Array, limit: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows of good values, at most `limit`, ascending: the better half by value, the others at random."""
    good = np.flatnonzero(~np.isnan(values))
    if len(good) <= limit:
        return good
    ranked = good[np.argsort(values[good], kind="stable")]
    others = rng.choice(ranked[limit // 2 :], limit - limit // 2, replace=False)
    return np.sort(np.concatenate([ranked[: limit // 2], others]))
