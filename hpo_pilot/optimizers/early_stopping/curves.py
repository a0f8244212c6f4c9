"""The learning curves of many trials, at the steps at which they are compared."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

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


@dataclass(slots=True)
class At:
    """A trial at a step: sums over the folds that have come to it.

    Attributes:
        folds: how many.
        value: of each the last value until then.
        best: of each the best value until then.
    """

    folds: int = 0
    value: float = 0.0
    best: float = 0.0


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
    """What every trial had come to at each checkpoint."""

    def __init__(self) -> None:
        """No curves yet."""
        self._folds: dict[int, dict[int, _Fold]] = defaultdict(dict)
        self.at: dict[int, dict[int, At]] = defaultdict(dict)
        """By checkpoint and trial."""

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
        came = self._come(trial, fold, step - 1)
        fold.step, fold.value = step, value
        fold.best = min(fold.best, value)
        return came + self._come(trial, fold, step)

    def _come(self, trial: int, fold: _Fold, step: int) -> list[int]:
        """Enters the fold, as it is, at the checkpoints up to `step`."""
        came = []
        while (place := CHECKPOINTS[fold.next]) <= step:
            at = self.at[place].setdefault(trial, At())
            at.folds += 1
            at.value += fold.value
            at.best += fold.best
            fold.next += 1
            came.append(place)
        return came

    def last(self, trial: int, needed: int) -> tuple[int, float] | None:
        """The last step to which `needed` folds of the trial have come, and the mean of the last values of those folds.

        Fewer will do where the trial has no more; None where it has reported nothing.
        """
        folds = self._folds.get(trial, {}).values()
        if not folds:
            return None
        step = sorted((fold.step for fold in folds), reverse=True)[min(needed, len(folds)) - 1]
        values = [fold.value for fold in folds if fold.step >= step]
        return step, sum(value / len(values) for value in values)

    def compared(self, trial: int, others: dict[int, float]) -> tuple[float, list[tuple[float, float]]] | None:
        """The trial beside `others` at the last checkpoint to which it has come.

        Args:
            trial: the trial.
            others: final values by trial.

        Returns:
            Its value there, and (value there, final value) of each of the others that have come to it; None where it
            has reported nothing.
        """
        steps = [fold.next for fold in self._folds.get(trial, {}).values()]
        place = CHECKPOINTS[max(max(steps, default=0) - 1, 0)]
        here = self.at.get(place, {})
        if trial not in here:
            return None
        pairs = [(at.value / at.folds, others[number]) for number, at in here.items() if number in others]
        return here[trial].value / here[trial].folds, pairs


class Ranked:
    """Numbers by trial, kept in order: which share of the others is better is found in no time."""

    def __init__(self) -> None:
        """Empty."""
        self._of: dict[int, float] = {}
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, trial: int) -> float:
        return self._of[trial]

    def put(self, trial: int, value: float) -> None:
        """Enters a trial's number, in the place of the one that it had."""
        old = self._of.get(trial)
        if old is not None:
            del self._sorted[bisect_left(self._sorted, old)]
        self._of[trial] = value
        self._sorted.insert(bisect_right(self._sorted, value), value)

    def below(self, number: float) -> int:
        """How many of the numbers are smaller."""
        return bisect_left(self._sorted, number)

    def better_than(self, trial: int) -> int:
        """How many others have a smaller number."""
        return self.below(self._of[trial])
