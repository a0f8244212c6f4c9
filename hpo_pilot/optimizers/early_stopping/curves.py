"""The learning curves of many trials, at the steps at which they are compared."""

from __future__ import annotations

import math
import statistics
import sys
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpo_pilot.optimizers.early_stopping.projection import projected

#: Trials are compared at every step up to this one, from there on at steps that grow by a tenth: so that a curve of
#: any length is kept in a hundred numbers or so.
_EVERY_STEP = 20
_GROWTH = 1.1
_LARGEST_STEP = 2**53


class Report(NamedTuple):
    """A value that a fold of a trial reported while it ran; lower is better, infinity is no number at all."""

    trial: int
    fold: int
    step: int
    value: float


class Board:
    """The values of many trials at one step, fold by fold.

    Folds differ in difficulty, and they come one after another where slots are few. So two trials are compared by the
    mean over the folds that both have here, and by no others.
    """

    def __init__(self, folds: int) -> None:
        """Empty.

        Args:
            folds: of a trial.
        """
        self._rows: dict[int, int] = {}
        self._values = np.full((4, folds), np.nan)

    def put(self, trial: int, fold: int, value: float) -> None:
        """Enters the value of a fold."""
        row = self._rows.setdefault(trial, len(self._rows))
        if row == len(self._values):
            self._values = np.concatenate([self._values, np.full_like(self._values, np.nan)])
        self._values[row, fold] = value

    def get(self, trial: int, fold: int) -> float | None:
        """The value of a fold; None where it has not come here."""
        row = self._rows.get(trial)
        if row is None or np.isnan(self._values[row, fold]):
            return None
        return float(self._values[row, fold])

    def of(self, trial: int) -> dict[int, float]:
        """The values of the trial's folds that have come here."""
        found = {fold: self.get(trial, fold) for fold in range(self._values.shape[1])}
        return {fold: value for fold, value in found.items() if value is not None}

    def better(self, trial: int, mine: Mapping[int, float], needed: int) -> tuple[int, int]:
        """How many others are better than a trial, and how many there are to compare with.

        Args:
            trial: the trial.
            mine: its value for each fold, which need not be the one that is here.
            needed: so many folds must two trials have in common.
        """
        values = self._values[: len(self._rows)]
        own = np.full(self._values.shape[1], np.nan)
        for fold, value in mine.items():
            own[fold] = value
        common = ~(np.isnan(values) | np.isnan(own))
        compared = common.sum(axis=1) >= needed
        if trial in self._rows:
            compared[self._rows[trial]] = False
        # Made smaller first: sums of the largest floats stay finite. By a power of two, which rounds nothing.
        part = 0.5 ** len(own).bit_length()
        theirs, ours = (np.where(common, each * part, 0.0).sum(axis=1) for each in (values, own))
        return int((compared & (theirs < ours)).sum()), int(compared.sum())


@dataclass(slots=True)
class _Fold:
    step: int
    value: float
    best: float
    next: int  # index of the first checkpoint that it has not come to


def _checkpoints() -> list[int]:
    """The steps of comparison, one beyond the largest step included."""
    steps = list(range(_EVERY_STEP + 1))
    while steps[-1] <= _LARGEST_STEP:
        steps.append(round(steps[-1] * _GROWTH))
    return steps


CHECKPOINTS = _checkpoints()


class Curves:
    """What the folds of every trial had come to at each checkpoint, and what came of those that are over."""

    def __init__(self, folds: int = 1) -> None:
        """No curves yet.

        Args:
            folds: of a trial.
        """
        self._count = folds
        self._folds: dict[int, dict[int, _Fold]] = defaultdict(dict)
        self._finals: dict[int, dict[int, float]] = defaultdict(dict)
        self._lengths: list[int] = []
        self.values: dict[int, Board] = defaultdict(lambda: Board(folds))
        """By checkpoint: of each fold the last value until then."""
        self.bests: dict[int, Board] = defaultdict(lambda: Board(folds))
        """By checkpoint: of each fold the best value until then."""

    def see(self, report: Report) -> list[int]:
        """Takes a value; one that comes after a later step's of the same fold changes nothing.

        Returns:
            The checkpoints that the fold came to by it.
        """
        trial, number, step, value = report
        if not 0 <= step <= _LARGEST_STEP:
            return []
        fold = self._folds[trial].get(number)
        if fold is None:
            # Checkpoints before its first report tell nothing of it.
            fold = self._folds[trial][number] = _Fold(-1, value, value, bisect_left(CHECKPOINTS, step))
        if step <= fold.step:
            return []
        came = self._come(trial, number, fold, step - 1)
        fold.step, fold.value = step, value
        fold.best = min(fold.best, value)
        return came + self._come(trial, number, fold, step)

    def _come(self, trial: int, number: int, fold: _Fold, step: int) -> list[int]:
        """Enters the fold, as it is, at the checkpoints up to `step`."""
        came = []
        while (place := CHECKPOINTS[fold.next]) <= step:
            self.values[place].put(trial, number, fold.value)
            self.bests[place].put(trial, number, fold.best)
            fold.next += 1
            came.append(place)
        return came

    def end(self, trial: int, fold: int, final: float) -> None:
        """Takes the figure of merit of a fold that has run to its end, after all that it reported: a whole fold."""
        if fold not in self._finals[trial]:
            self._finals[trial][fold] = final
            seen = self._folds.get(trial, {}).get(fold)
            if seen is not None:
                insort(self._lengths, seen.step)

    def come(self, trial: int) -> dict[int, int]:
        """The last checkpoint to which each fold of the trial has come."""
        return {number: CHECKPOINTS[fold.next - 1] for number, fold in self._folds.get(trial, {}).items()}

    def begun(self, trial: int) -> int:
        """How many folds of the trial have reported something."""
        return len(self._folds.get(trial, {}))

    @property
    def length(self) -> int | None:
        """The steps of a whole training, by those that are over; None where none is."""
        return self._lengths[len(self._lengths) // 2] if self._lengths else None

    def share(self, trial: int, length: int | None) -> float:
        """Which part of the trial is done, all its folds taken together; `length`: the steps of a whole training."""
        whole = self._finals.get(trial, {})
        done = float(len(whole))
        for number, fold in self._folds.get(trial, {}).items():
            if number not in whole and length:
                done += min(1.0, fold.step / length)
        return done / self._count

    def last(self, trial: int, needed: int) -> tuple[int, float] | None:
        """The last step to which `needed` folds of the trial have come, and the mean of the last values of those folds.

        Fewer will do where the trial has no more; None where it has reported nothing.
        """
        folds = self._folds.get(trial, {}).values()
        if not folds:
            return None
        step = sorted((fold.step for fold in folds), reverse=True)[min(needed, len(folds)) - 1]
        values = [fold.value for fold in folds if fold.step >= step]
        return step, mean(values)

    def projected(self, trial: int) -> float | None:
        """What a trial would probably have come to: the mean of its folds.

        A whole fold counts as it is. What another one would have come to is projected from its last value, beside the
        same fold of the trials where that one is whole. The folds that have not begun are taken to differ from these
        as they do in the trials with all folds whole. None where nothing is known of the trial, or it diverged.
        """
        found = dict(self._finals.get(trial, {}))
        for number, fold in self._folds.get(trial, {}).items():
            if number not in found:
                if not math.isfinite(fold.value):
                    return None
                found[number] = projected(fold.value, self._others(number, CHECKPOINTS[fold.next - 1]))
        if not found:
            return None
        complete = [finals for finals in self._finals.values() if len(finals) == self._count > len(found)]
        rest = [mean(list(finals.values())) - mean([finals[fold] for fold in found]) for finals in complete]
        value = mean(list(found.values())) + (statistics.median(rest) if rest else 0.0)
        return max(-sys.float_info.max, min(value, sys.float_info.max))

    def _others(self, fold: int, step: int) -> list[tuple[float, float]]:
        """Of one fold of all trials in which it is whole and has come to a checkpoint: its value there, and its end."""
        here = self.values[step]
        pairs = [(here.get(trial, fold), finals[fold]) for trial, finals in self._finals.items() if fold in finals]
        return [(value, final) for value, final in pairs if value is not None]


def mean(values: Sequence[float]) -> float:
    """The mean; of the largest floats, too."""
    return sum(value / len(values) for value in values)
