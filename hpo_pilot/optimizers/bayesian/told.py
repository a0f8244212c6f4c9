"""What was told, as arrays: distinct points with the means of their values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.nondominated import ranks

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

#: Points further beyond the bounds than this share of the range (an older search's) say nothing about what lies within.
_REACH = 0.5


@dataclass(frozen=True)
class Table:
    """The distinct points of some trials.

    Attributes:
        units: their places in the unit cube, shape (n, n_dims).
        values: the means of a point's good values, shape (n, n_objectives); NaN where all failed.
        stds: the standard errors of `values`, in the same shape; 0 where none was told.
        stopped: which values are only what stopped trials would probably have come to, shape (n,).
    """

    units: Array
    values: Array
    stds: Array
    stopped: Mask

    @property
    def failed(self) -> Mask:
        """Which points have no value, shape (n,)."""
        return np.asarray(np.isnan(self.values[:, 0]))

    @property
    def good(self) -> Rows:
        """The rows with values, ascending."""
        return np.flatnonzero(~self.failed)

    def most_telling(self, limit: int, rng: np.random.Generator) -> Rows:
        """Rows with values, at most `limit`, ascending: the better half by value or front, the others at random."""
        good = self.good
        if len(good) <= limit:
            return good
        values = self.values[good]
        merit = values[:, 0] if values.shape[1] == 1 else np.array(ranks(values))
        ranked = good[np.argsort(merit, kind="stable")]
        others = rng.choice(ranked[limit // 2 :], limit - limit // 2, replace=False)
        return np.sort(np.concatenate([ranked[: limit // 2], others]))

    def some_of_both(self, limit: int, rng: np.random.Generator) -> Rows:
        """Rows, at most `limit`, ascending: failures and successes at random, up to half each where both abound."""
        failed = self.failed
        if len(failed) <= limit:
            return np.arange(len(failed))
        bad, good = np.flatnonzero(failed), np.flatnonzero(~failed)
        take_bad = min(len(bad), max(limit // 2, limit - len(good)))
        take_good = min(len(good), limit - take_bad)
        chosen = [rng.choice(bad, take_bad, replace=False), rng.choice(good, take_good, replace=False)]
        return np.sort(np.concatenate(chosen))


class Told:
    """Grows with every told trial; any earlier state can be read back, for fits belong to a cut of the history."""

    def __init__(self, dimensions: int, objectives: int = 1) -> None:
        """Empty, for points of so many dimensions with so many values each."""
        self._dimensions = dimensions
        self._objectives = objectives
        self._row_of: dict[str, int] = {}
        self._rows: list[int] = []
        self._values: list[tuple[float, ...]] = []
        self._stds: list[tuple[float, ...]] = []
        self._stopped: list[bool] = []
        self._units: list[tuple[float, ...]] = []

    def __len__(self) -> int:
        """How many trials it has, repetitions counted."""
        return len(self._rows)

    def add(self, observation: Observation) -> None:
        """Takes a trial, if the space has a place for it."""
        if observation.stopped and observation.values is None:
            return  # nothing is known of it, not even that it fails
        unit = observation.unit
        if unit is None or not all(-_REACH <= place <= 1.0 + _REACH for place in unit):
            return
        row = self._row_of.setdefault(observation.key, len(self._units))
        if row == len(self._units):
            self._units.append(unit)
        self._rows.append(row)
        self._values.append(observation.values or (math.nan,) * self._objectives)
        self._stds.append(observation.stds or (0.0,) * self._objectives)
        self._stopped.append(observation.stopped)

    def failing(self, window: int) -> float:
        """The share of failures among the last `window` trials; 0 where there are none."""
        recent = self._values[-window:]
        return sum(math.isnan(values[0]) for values in recent) / max(1, len(recent))

    def table(self, length: int) -> Table:
        """The first `length` trials."""
        shape = (length, self._objectives)
        values, stds = (np.array(part[:length]).reshape(shape) for part in (self._values, self._stds))
        every = np.array(self._rows[:length], dtype=int)
        count = int(every.max()) + 1 if length else 0
        good = ~np.isnan(values[:, 0])
        rows = every[good]
        times = np.bincount(rows, minlength=count)
        full = np.bincount(rows[~np.array(self._stopped[:length], dtype=bool)[good]], minlength=count)
        means, errors = np.empty((count, self._objectives)), np.empty((count, self._objectives))
        for j in range(self._objectives):
            # Divided before they are squared and added up: a sum of huge values would overflow.
            means[:, j] = np.bincount(rows, weights=values[good, j] / times[rows], minlength=count)
            largest = float(stds[:, j].max(initial=0.0)) or 1.0
            shares = stds[good, j] / largest / times[rows]
            errors[:, j] = largest * np.sqrt(np.bincount(rows, weights=shares * shares, minlength=count))
        means[times == 0] = np.nan
        units = np.array(self._units[:count]).reshape(count, self._dimensions)
        return Table(units, means, errors, (full == 0) & (times > 0))
