"""Told trials as arrays for the Gaussian process: features of points, and values on a suitable scale."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import minimize_scalar

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.feasible_region import UnitCube, feasible_region
from hpo_pilot.optimizers.gaussian_process import Basis
from hpo_pilot.search import Dimension, SearchSpace
from hpo_pilot.search.nondominated import ranks

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Discrete ordered dimensions with more values than this use gradients like continuous ones, and are then rounded.
_FINE = 12


#: A dimension whose feasible part is narrower than this share of its range is scaled to that part, as found by this
#: many samples, and a margin at each side.
_NARROW, _SAMPLES, _MARGIN = 0.2, 256, 0.1


class FeatureMap:
    """Transforms unit vectors, shape (n, n_dims), to features, shape (n, n_features).

    An ordered dimension has one column. A categorical dimension has a column of 0 and 1 for each choice; one column is
    enough for two choices. If the constraints leave only a narrow part of a dimension, this part is from 0 to 1:
    otherwise all points of a tiny feasible region would look the same to the process.

    Attributes:
        cube: the unit cube of the space.
        size: number of features.
        ordered: the ordered dimensions.
        columns: the column of each ordered dimension.
        is_climbed: which dimensions use gradients; shape (n_dims,).
        stepwise: the dimensions with few values, which are tried one by one.
        basis: the polynomials of the trend over the features.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Lays the columns out in the order of the dimensions."""
        self._space = space
        self.cube = UnitCube(space)
        dimensions = list(space.dimensions.values())
        widths = [1 if d.is_ordered or d.size <= 2 else int(d.size) for d in dimensions]
        starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(int)
        self.size = int(sum(widths))
        self._choices = [(i, int(d.size), starts[i]) for i, d in enumerate(dimensions) if not d.is_ordered]
        self.ordered = [i for i, d in enumerate(dimensions) if d.is_ordered]
        self.columns = starts[self.ordered]
        self.is_climbed = np.array([not d.is_discrete or d.size > _FINE for d in dimensions])
        self.stepwise = [i for i, d in enumerate(dimensions) if d.is_discrete and d.size <= _FINE]
        self.basis = self._make_basis(dimensions, starts, widths)

    def _make_basis(self, dimensions: Sequence[Dimension], starts: IntArray, widths: Sequence[int]) -> Basis:
        centres, deviations, means = np.full(self.size, 0.5), np.full(self.size, 0.5), np.full(self.size, np.nan)
        for index, (dimension, start, width) in enumerate(zip(dimensions, starts, widths, strict=True)):
            if not dimension.is_ordered:
                size = max(2, self.cube.sizes[index])
                centres[start : start + width] = 1.0 / size
                deviations[start : start + width] = math.sqrt((size - 1.0) / size**2)
                continue
            deviations[start] = 1.0 / math.sqrt(12.0)
            # An inactive dimension is at its centre, where a quadratic term without an offset is 0.
            means[start] = 0.0 if dimension.when else 1.0 / 12.0
        return Basis(centres, deviations, means)

    @cached_property
    def _narrow(self) -> tuple[Array, Array]:
        """The places that become 0 and the widths that become 1, each of shape (n_ordered,)."""
        lows, widths = np.zeros(len(self.ordered)), np.ones(len(self.ordered))
        if self._space.constraints:
            found = feasible_region(self._space).sample(_SAMPLES, np.random.default_rng(20_260_102))
            if len(found):
                places = self.cube.snapped(found)[:, self.ordered]
                low, high = places.min(axis=0), places.max(axis=0)
                # An inactive dimension is at its centre.
                always = np.array([not dimension.when for dimension in self._space.dimensions.values()])[self.ordered]
                narrow = always & (high > low) & (high - low < _NARROW)
                margin = _MARGIN * (high - low)
                lows, widths = np.where(narrow, low - margin, lows), np.where(narrow, high - low + 2 * margin, widths)
        return lows, widths

    def features(self, units: Array) -> Array:
        """Returns the features of snapped unit vectors."""
        features = np.zeros((len(units), self.size))
        lows, widths = self._narrow
        features[:, self.columns] = (units[:, self.ordered] - lows) / widths
        for index, size, start in self._choices:
            chosen = np.minimum(size - 1, (units[:, index] * size).astype(int))
            if size > 2:
                features[np.arange(len(units)), start + chosen] = 1.0
            else:
                features[:, start] = chosen
        return features

    def told(self, table: Table, rows: Rows) -> Array:
        """Returns the features of rows of a table."""
        return self.features(table.units[rows])

    @cached_property
    def bounds(self) -> Array:
        """The features of the bounds of the ordered dimensions, 0 and 1 for the others; shape (n_features, 2)."""
        lows, widths = self._narrow
        bounds = np.tile([0.0, 1.0], (self.size, 1))
        bounds[self.columns] = (bounds[self.columns] - lows[:, None]) / widths[:, None]
        return bounds

    def moved(self, units: Array, features: Array) -> Array:
        """Returns snapped unit vectors with the ordered dimensions of `features` and the choices of `units`."""
        lows, widths = self._narrow
        moved = units.copy()
        moved[:, self.ordered] = features[:, self.columns] * widths + lows
        return self.cube.snapped(moved)

    def neighbours(self, unit: Array) -> Array:
        """Returns a snapped unit vector and all that differ from it in one stepwise dimension; shape (n, n_dims)."""
        found = [unit[None, :]]
        for index in self.stepwise:
            size = self.cube.sizes[index]
            others = np.repeat(unit[None, :], size, axis=0)
            others[:, index] = (np.arange(size) + 0.5) / size
            found.append(others)
        return self.cube.snapped(np.concatenate(found))


Mask = npt.NDArray[np.bool_]

#: Beyond this number of robust deviations from the median, values are compressed logarithmically: a diverged training
#: must not hide the differences between good ones.
_TAIL = 3.0

#: The range of Yeo-Johnson's exponent; 1 changes nothing, 2 and -1 are already strong.
_EXPONENTS = (-1.0, 3.0)

#: Larger deviations are cut to this.
_FARTHEST = 1e6

#: The variance of the projected value of a stopped trial, on the scale of values with variance 1.
_STOPPED_VARIANCE = 0.1

PLAIN, TAMED, NORMAL = "plain", "tamed", "normal"


@dataclass(frozen=True)
class ScaledValues:
    """Values on another scale.

    Attributes:
        name: `PLAIN`: only shifted and scaled; `TAMED`: extreme values compressed logarithmically; `NORMAL`: also made
            nearly normal.
        told: the original values, shape (n,).
        values: the values with mean 0 and deviation 1, in the same order, shape (n,).
        slopes: derivatives by the original values, shape (n,); in units of 1 / `unit`.
        unit: the divisor of the original values, so that huge ones do not overflow.
        log_volume: the logarithm of the product of the slopes, in the same units on all scales of the same values. With
            it, the likelihoods of a model on several scales can be compared.
    """

    name: str
    told: Array
    values: Array
    slopes: Array
    unit: float
    log_volume: float

    def variances(self, stds: Array, stopped: Mask) -> Array:
        """Returns the known variances of the values on this scale, shape (n,).

        Args:
            stds: the standard errors of the original values, shape (n,).
            stopped: which values are projected values of stopped trials, shape (n,).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            known = np.nan_to_num(np.minimum((stds / self.unit * self.slopes) ** 2, 4.0), nan=4.0)
        return known + np.where(stopped, _STOPPED_VARIANCE, 0.0)

    def placed(self, value: float) -> float:
        """Returns a value on this scale: between the told ones, or beyond them by the slope."""
        order = np.argsort(self.told, kind="stable")
        known = self.told[order]
        inside = float(np.clip(value, known[0], known[-1]))
        slope = self.slopes[order[0 if value < inside else -1]] / self.unit
        return float(np.interp(inside, known, self.values[order]) + slope * (value - inside))

    def original(self, means: Array, deviations: Array) -> tuple[Array, Array]:
        """Returns means and deviations, each of shape (m,), on the scale of the told values, within their range."""
        order = np.argsort(self.values, kind="stable")
        known = self.values[order]
        slopes = np.interp(means, known, self.slopes[order])
        with np.errstate(over="ignore"):
            return np.interp(means, known, self.told[order] / self.unit) * self.unit, deviations / slopes * self.unit


def scaled_values(values: Array) -> dict[str, ScaledValues]:
    """Returns `values`, shape (n,), on all suitable scales by name; none where they are all equal.

    With the plain scale alone the regret was higher in 19 and lower in 7 of 30 runs (ten problems, 8 x 12).
    """
    return _scaled(np.asarray(values, dtype=float).tobytes())


@lru_cache(maxsize=8)  # the models with and without a trend ask for the same ones, and the posterior for one of them
def _scaled(numbers: bytes) -> dict[str, ScaledValues]:
    values = np.frombuffer(numbers)
    unit, deviations, scale = _deviations(values)
    if scale == 0.0:
        return {}
    size = np.abs(deviations)
    far = size > _TAIL
    beyond = np.log1p(np.maximum(size - _TAIL, 0.0))
    tamed = np.sign(deviations) * np.where(far, _TAIL + beyond, size)
    log_slopes = np.where(far, -beyond, 0.0)
    bent = {PLAIN: (deviations, np.zeros_like(size))}
    if far.any():
        bent[TAMED] = (tamed, log_slopes)
    if len(np.unique(tamed)) >= 4:
        least = minimize_scalar(lambda e: -stats.yeojohnson_llf(e, tamed), bounds=_EXPONENTS, method="bounded")
        exponent = float(least.x)
        normal = np.asarray(stats.yeojohnson(tamed, lmbda=exponent), dtype=float)
        bent[NORMAL] = (normal, log_slopes + np.sign(tamed) * (exponent - 1.0) * np.log1p(np.abs(tamed)))
    found = {}
    for name, (places, log_slopes) in bent.items():
        if (deviation := float(places.std())) >= 1e-12:
            volume = float(log_slopes.sum() - len(places) * np.log(deviation))
            slopes = np.exp(log_slopes) / (scale * deviation)
            found[name] = ScaledValues(name, values, (places - places.mean()) / deviation, slopes, unit, volume)
    return found


def _deviations(values: Array) -> tuple[float, Array, float]:
    """Returns (largest absolute value, robust deviations from the median, their scale; 0 where all are equal)."""
    values = np.asarray(values, dtype=float)
    largest = float(np.abs(values).max()) if values.size else 0.0
    if largest == 0.0:
        return 1.0, np.zeros_like(values), 0.0
    # Differences of huge values would overflow.
    centred = values / largest
    centred = centred - np.median(centred)
    low, high = np.quantile(centred, [0.1, 0.9])
    scale = max(min(-low, high), 0.25 * max(-low, high)) / 1.2816  # the narrower side, unless much narrower
    if scale <= 0.0:
        scale = float(np.abs(centred).mean())
    if scale < 1e-300:
        return largest, np.zeros_like(values), 0.0
    with np.errstate(over="ignore"):
        return largest, np.clip(centred / scale, -_FARTHEST, _FARTHEST), float(scale)


Rows = npt.NDArray[np.int64]

#: Points of older searches that are further beyond the bounds than this share of the range are not used.
_REACH = 0.5


@dataclass(frozen=True)
class Table:
    """The distinct points of some trials.

    Attributes:
        units: their unit vectors, shape (n, n_dims).
        values: the mean of the good values of each point, shape (n, n_objectives); NaN where all failed.
        stds: the standard errors of `values`, same shape; 0 where unknown.
        stopped: which values are only projected values of stopped trials, shape (n,).
        violations: the mean of `Observation.violation` over results with values, shape (n,); 0: within all limits.
        levels: the index of the level of each row, shape (n,); a point has a row for each level.
    """

    units: Array
    values: Array
    stds: Array
    stopped: Mask
    violations: Array
    levels: Rows

    @property
    def failed(self) -> Mask:
        """Marks the points without a value, shape (n,)."""
        return np.asarray(np.isnan(self.values[:, 0]))

    @property
    def good(self) -> Rows:
        """The rows with values, in ascending order."""
        return np.flatnonzero(~self.failed)

    def most_telling(self, limit: int, rng: np.random.Generator) -> Rows:
        """Returns at most `limit` rows with values, in ascending order: half are the best, the others random."""
        good = self.good
        if len(good) <= limit:
            return good
        values = self.values[good]
        merit = values[:, 0] if values.shape[1] == 1 else np.array(ranks(values))
        ranked = good[np.lexsort((merit, self.violations[good], -self.levels[good]))]
        others = rng.choice(ranked[limit // 2 :], limit - limit // 2, replace=False)
        return np.sort(np.concatenate([ranked[: limit // 2], others]))

    def some_of_both(self, limit: int, rng: np.random.Generator) -> Rows:
        """Returns at most `limit` random rows, in ascending order; half are failures if there are enough of both."""
        failed = self.failed
        if len(failed) <= limit:
            return np.arange(len(failed))
        bad, good = np.flatnonzero(failed), np.flatnonzero(~failed)
        take_bad = min(len(bad), max(limit // 2, limit - len(good)))
        take_good = min(len(good), limit - take_bad)
        chosen = [rng.choice(bad, take_bad, replace=False), rng.choice(good, take_good, replace=False)]
        return np.sort(np.concatenate(chosen))


#: A failure that is told as a number: this many points or more have it, and it is farther from all other values than
#: this many times their range.
_PENALISED, _BEYOND_RANGE = 3, 10.0


def penalties(values: Array, rows: Rows) -> Mask:
    """Marks results that are failures told as numbers, shape (n,).

    Many trainings return a constant such as 1e4 or 1e300 where they fail. Taken as values, such constants hide the
    differences between good values. A plateau, such as a clipped loss, is a value: it is near the others.

    The constant must be the worst value of every objective, so that such a point is never on the front; and as many
    points must have other values, so that a model can be fitted to them.

    Args:
        values: shape (n, n_objectives); NaN for failed trials.
        rows: the point of each result, shape (n,).
    """
    found = np.zeros(len(values), dtype=bool)
    left = np.flatnonzero(~np.isnan(values[:, 0]))
    while len(left):
        at = (values[left] == values[left].max(axis=0)).all(axis=1)
        worst, others = left[at], left[~at]
        if min(len(worst), len(others)) < _PENALISED:
            break
        low, high = values[others].min(axis=0), values[others].max(axis=0)
        with np.errstate(over="ignore"):
            is_far = (high > low) & (values[worst[0]] - high > _BEYOND_RANGE * (high - low))
        if not is_far.any() or min(len(np.unique(rows[some])) for some in (worst, others)) < _PENALISED:
            break
        found[worst] = True
        left = others
    return found


class ToldTrials:
    """All told trials. Any earlier state can be restored, because fits use the first trials of the history."""

    def __init__(
        self, dimensions: int, objectives: int = 1, *, may_be_penalties: bool = True, levels: Sequence[float] = ()
    ) -> None:
        """Starts empty, for points with this number of dimensions and values.

        Args:
            dimensions: of the points.
            objectives: the number of values of a trial.
            may_be_penalties: whether values may be failures told as numbers; see `penalties`.
            levels: the levels of trainings in ascending order; values at lower ones are moved to the range of those at
                the highest one.
        """
        self.levels = levels
        self._levels: list[int] = []
        self._may_be_penalties = may_be_penalties
        self._dimensions = dimensions
        self._objectives = objectives
        self._row_of: dict[tuple[str, int], int] = {}
        self._rows: list[int] = []
        self._values: list[tuple[float, ...]] = []
        self._stds: list[tuple[float, ...]] = []
        self._stopped: list[bool] = []
        self._violations: list[float] = []
        self._units: list[tuple[float, ...]] = []

    @property
    def keys(self) -> list[str]:
        """The keys of the distinct points, in the order of the rows of `table`."""
        return [key for key, _ in self._row_of]

    def __len__(self) -> int:
        """Returns the number of trials, repetitions included."""
        return len(self._rows)

    def add(self, observation: Observation) -> None:
        """Adds a trial, unless nothing can be learned from it."""
        if observation.stopped and observation.values is None:
            return  # nothing is known, not even whether the trial would fail
        unit = observation.unit
        if unit is None or not all(-_REACH <= place <= 1.0 + _REACH for place in unit):
            return
        level = self.level_of(observation)
        row = self._row_of.setdefault((observation.key, level), len(self._units))
        if row == len(self._units):
            self._units.append(unit)
            self._levels.append(level)
        self._rows.append(row)
        self._values.append(observation.values or (math.nan,) * self._objectives)
        self._stds.append(observation.stds or (0.0,) * self._objectives)
        self._stopped.append(observation.stopped)
        self._violations.append(observation.violation)

    def level_of(self, observation: Observation) -> int:
        """Returns the index of the level of a trial: of the highest one up to its level."""
        last = max(0, len(self.levels) - 1)
        return last if observation.level is None else max(0, bisect_right(self.levels, observation.level) - 1)

    def failing(self, window: int) -> float:
        """Returns the share of failures among the last `window` trials; 0 where there are no trials."""
        recent = np.isnan(self._results(len(self))[0][-window:, 0])
        return float(recent.sum()) / max(1, len(recent))

    def _results(self, length: int) -> tuple[Array, Rows]:
        """Returns the values of the first `length` trials, NaN for failures, and the rows of their points."""
        values = np.array(self._values[:length]).reshape(length, self._objectives)
        rows = np.array(self._rows[:length], dtype=int)
        if self._may_be_penalties:
            values[penalties(values, rows)] = math.nan
        return values, rows

    def table(self, length: int) -> Table:
        """Returns the distinct points of the first `length` trials."""
        values, every = self._results(length)
        stds = np.array(self._stds[:length]).reshape(values.shape)
        count = int(every.max()) + 1 if length else 0
        good = ~np.isnan(values[:, 0])
        rows = every[good]
        times = np.bincount(rows, minlength=count)
        full = np.bincount(rows[~np.array(self._stopped[:length], dtype=bool)[good]], minlength=count)
        means, errors = np.empty((count, self._objectives)), np.empty((count, self._objectives))
        for j in range(self._objectives):
            # Divided before they are squared and summed: the sum of huge values would overflow.
            means[:, j] = np.bincount(rows, weights=values[good, j] / times[rows], minlength=count)
            largest = float(stds[:, j].max(initial=0.0)) or 1.0
            shares = stds[good, j] / largest / times[rows]
            errors[:, j] = largest * np.sqrt(np.bincount(rows, weights=shares * shares, minlength=count))
        means[times == 0] = np.nan
        units = np.array(self._units[:count]).reshape(count, self._dimensions)
        violations = np.bincount(rows, np.array(self._violations[:length])[good], count) / np.maximum(times, 1)
        levels = np.array(self._levels[:count], dtype=int)
        if self.levels:
            for each, error in zip(means.T, errors.T, strict=True):
                _level_out(each, error, levels)
        return Table(units, means, errors, (full == 0) & (times > 0), violations, levels)


#: Fewer values of a level do not tell its range.
_RANGE_NEEDS = 4


def _level_out(means: Array, errors: Array, levels: Rows) -> None:
    """Moves the values of all levels to the range of the highest level: equal medians, and equal good ends.

    Args:
        means: the values, shape (n,); NaN where all failed; changed.
        errors: their standard errors, same shape; changed.
        levels: the index of the level of each row, shape (n,).
    """
    found: list[tuple[Rows, float, float]] = []
    for level in np.unique(levels):
        rows = np.flatnonzero((levels == level) & ~np.isnan(means))
        if not len(rows):
            continue
        middle, good = np.quantile(means[rows], [0.5, 0.1])
        spread = float(middle - good)
        if (len(rows) < _RANGE_NEEDS or not 0.0 < spread < math.inf) and found:
            spread = found[-1][2]
        found.append((rows, float(middle), spread))
    if not found:
        return
    _, to_middle, to_spread = found[-1]
    for rows, middle, spread in found[:-1]:
        factor = to_spread / spread if spread > 0.0 and to_spread > 0.0 else 1.0
        means[rows] = to_middle + (means[rows] - middle) * factor
        errors[rows] *= factor
