"""Rules that stop hopeless trials early: ASHA and the median rule. They know neither jobs nor the clock."""

from __future__ import annotations

import math
import statistics
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from hpo_pilot.search import EarlyStopping


def projected(value: float, others: Sequence[tuple[float, float]]) -> float:
    """The final value that goes with the place of `value` among the others; lower is better.

    The place among the finished trainings at the step where it was stopped is taken for its place among their final
    values, between two of them by interpolation. Beyond the worst or the best of them its distance from them at that
    step is added, as far as such distances last: by the slope of the final values over those at that step, from 0 to 1.
    One that is better already than all of them were in the end is worth at least what it has.

    Args:
        value: at the step where the training was stopped; infinity is as bad as the worst of them.
        others: (value at that step, final value) of finished trainings; none: `value` is all that is known.
    """
    others = [pair for pair in others if math.isfinite(pair[0])]
    if not others:
        return value
    here = sorted(at for at, _ in others)
    finals = sorted(final for _, final in others)
    place = (bisect_left(here, value) + bisect_right(here, value)) / 2 / len(here)
    position = place * (len(finals) - 1)
    lower = int(position)
    upper = min(lower + 1, len(finals) - 1)
    between = finals[lower] * (1 - (position - lower)) + finals[upper] * (position - lower)
    if here[0] <= value <= here[-1] or not math.isfinite(value):
        return between
    slope = _slope(others, worse=value > here[-1])
    if value > here[-1]:
        return min(finals[-1] + slope * (value - here[-1]), sys.float_info.max)
    return max(min(finals[0] - slope * (here[0] - value), value), -sys.float_info.max)


def _slope(others: Sequence[tuple[float, float]], worse: bool) -> float:
    """How much of a distance at that step is left in the end, from 0 to 1: a robust regression.

    Of fewer than three trainings nothing can be said: all of what one is worse, nothing of what it is better.
    """
    if len(others) < 3:
        return float(worse)
    pairs = np.array(others) / len(others)  # so that no difference overflows
    low, high = np.percentile(pairs, [25, 75], axis=0)
    if not high[0] > low[0]:
        return float(worse)
    here, finals = pairs.argsort(axis=0, kind="stable").argsort(axis=0).T
    agreement = max(0.0, float(np.corrcoef(here, finals)[0, 1]))
    return min(1.0, agreement * float((high[1] - low[1]) / (high[0] - low[0])))


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


class StepValues:
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
        self.values: dict[int, StepValues] = defaultdict(lambda: StepValues(folds))
        """By checkpoint: of each fold the last value until then."""
        self.bests: dict[int, StepValues] = defaultdict(lambda: StepValues(folds))
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


@dataclass(frozen=True)
class Stop:
    """Why a trial need not go on.

    Attributes:
        step: where it was judged.
        value: what it was judged by, lower is better: the mean of its folds.
        reason: in words, such as `5th of 9 at step 27, where 3 go on`.
    """

    step: int
    value: float
    reason: str


#: Trials, and trainings, of which this part is done run to their end: little is saved by stopping them.
NEARLY_DONE = 0.75


class StoppingRule(ABC):
    """Decides by the values that trials report while they run. Lower is better.

    The contract: a decision is a function of the reports seen so far, in the order of the looks that brought them, of
    the folds that were over by then, and of nothing else. Whoever hands the same looks to a new rule gets the same
    decisions. The best trial at a step of comparison is never stopped there. A trial is judged by the newest step of
    comparison that it has come to: one that is beyond a step is not stopped by what it was there.

    Folds of a trial may run side by side or one after another. A trial is judged when enough of them have come to that
    step, and is compared with each other trial over the folds that both have there.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        """Knows nothing yet.

        Args:
            settings: `early_stopping` of the search.
            folds: of a trial.
        """
        self._folds = folds
        self.curves = Curves(folds)
        self.trials_needed = settings.trials_needed
        self.folds_needed = settings.folds_needed(folds)
        self._waits_for_folds = settings.folds is not None
        self._steps = settings.max_steps

    def look(
        self, reports: Iterable[Report], judged: Collection[int], ended: Mapping[tuple[int, int], float] | None = None
    ) -> dict[int, Stop]:
        """Takes what one look at the server brought, and says which trials need not go on.

        Args:
            reports: new values, of any trials; their order does not matter.
            judged: the trials that are out, and were not told to stop before.
            ended: the figures of merit of folds that ran to their end, by trial and fold.

        Returns:
            The trials to stop, by number.
        """
        new = sorted(report for report in reports if 0 <= report.fold < self._folds)
        for report in new:
            self.see(report, self.curves.see(report))
        for (trial, fold), final in (ended or {}).items():
            self.curves.end(trial, fold, final)
        stops = {}
        for trial in sorted({report.trial for report in new}):
            if trial in judged and self.curves.share(trial, self.length) < NEARLY_DONE:
                stop = self.judge(trial)
                if stop is not None:
                    stops[trial] = stop
        return stops

    def needed_of(self, trial: int) -> int:
        """How many folds of a trial must have come to a step before it is judged there: at least one.

        Where the search file does not say, those that have begun are enough: with few slots the others begin when these
        are over, and nothing would be saved by waiting for them.
        """
        if self._waits_for_folds:
            return self.folds_needed
        return max(1, min(self.folds_needed, self.curves.begun(trial)))

    @property
    def length(self) -> int | None:
        """The steps of a whole training; None where nobody knows."""
        return self._steps or self.curves.length

    @abstractmethod
    def see(self, report: Report, came: Sequence[int]) -> None:
        """Takes one value; those of a fold that come after a later step's change nothing.

        Args:
            report: the value; `curves` has it already.
            came: the checkpoints of `curves` that the fold came to by it.
        """

    @abstractmethod
    def judge(self, trial: int) -> Stop | None:
        """Whether the trial must stop, by the newest step of comparison that it has come to."""


def place_text(better: int) -> str:
    """`1st`, `2nd`, … for a trial than which so many are better."""
    place = better + 1
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


# Asynchronous successive halving.
#
# Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in the form that stops trials
# instead
# of pausing them (as in Ray Tune and Optuna): nothing waits for a rung to fill, and no trial has to be kept for
# later.


class AshaRule(StoppingRule):
    """Of the trials that come to a rung, the best 1/eta go on; rungs are at min_steps x eta^k steps.

    A trial is judged when it comes to a rung, against those that came before; later it may be overtaken, and goes on
    all the same to its next rung. While fewer than `trials_needed` have come to a rung, everybody goes on. As more
    folds of a trial come to its newest rung, it is judged again, by all of them.

    In the paper a trial that is not among the best waits, and goes on when more trials have come and it turns out to be
    one; about sqrt(n) of n are on the wrong side meanwhile. A stop is for good. So a trial is stopped only where it is
    clearly not among the best: of n others at least n/eta + sqrt(n (eta - 1))/eta are better. That is a deviation
    more than of one on the edge.

    A fold's value at a rung is that of its first report at or after it and before the next one.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._eta = settings.reduction
        self._first = settings.first_rung
        self._end = settings.max_steps
        self._brackets = settings.brackets or 1
        self._rungs: dict[tuple[int, int], StepValues] = defaultdict(lambda: StepValues(folds))  # by bracket and step
        self._next: dict[tuple[int, int], int] = {}  # the next rung of a (trial, fold)
        self._newest: dict[int, int] = {}  # of a trial: the last rung to which one of its folds has come
        self._judged: dict[int, tuple[int, int]] = {}  # of a trial: the rung, and how many folds were there

    def _bracket(self, trial: int) -> int:
        return (trial - 1) % self._brackets

    @override
    def see(self, report: Report, came: Sequence[int]) -> None:
        trial, fold, step, value = report
        bracket = self._bracket(trial)
        at = self._next.get((trial, fold), self._first * self._eta**bracket)
        last = None
        while at <= step and (self._end is None or at < self._end):
            last, at = at, at * self._eta
        if last is not None:
            # A value from beyond the next rung is none of those in between.
            self._rungs[bracket, last].put(trial, fold, value)
            self._newest[trial] = max(last, self._newest.get(trial, 0))
        self._next[trial, fold] = at

    @override
    def judge(self, trial: int) -> Stop | None:
        step = self._newest.get(trial)
        if step is None:
            return None
        while self.length and step >= NEARLY_DONE * self.length and step > self._first:
            step //= self._eta  # a rung at the end of a training decides nothing
        rung = self._rungs[self._bracket(trial), step]
        mine, needed = rung.of(trial), self.needed_of(trial)
        if len(mine) < needed or self._judged.get(trial) == (step, len(mine)):
            return None
        self._judged[trial] = step, len(mine)
        better, others = rung.better(trial, mine, needed)
        count = others + 1
        # Of so many others so many are better than one on the edge of the best 1/eta, and a deviation more.
        limit = (others + math.sqrt(others * (self._eta - 1))) / self._eta
        going_on = max(1, math.ceil(limit))
        if count < self.trials_needed or better < going_on:
            return None
        reason = f"{place_text(better)} of {count} at step {step}, where {going_on} go on"
        if going_on == 1:
            reason = reason.replace("1 go on", "1 goes on")
        return Stop(step, mean(list(mine.values())), reason)


# The median rule.
#
# After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2, where the best
# value of a trial until a step is compared with the median of the others' running averages until that step. Here it
# is
# compared with the median of their values at that step. An average lags behind a curve that comes down: measured by
# it,
# trials go on that are worse than most (`python -m tests.performance early-stopping`).

#: Folds run side by side that have come at least so far, as a part of the foremost one's steps.
_BESIDE = 1 / 3


class MedianRule(StoppingRule):
    """A trial is stopped where its best value so far is clearly worse than the median of the others' values there.

    Clearly: of n others, more than n/2 + sqrt(n)/2 have a better value at that step. A trial that is as likely to be
    better as worse than each of them has n/2 such, give or take sqrt(n)/2; so the fewer there are to compare with, the
    worse it must be.

    The others are all that have come to the same step, whether they ended, run or were stopped there or later: those
    alone that ran to their end would be ever better ones, and the median with them. Steps are compared at the
    checkpoints of `Curves`. One whose value is no number there is stopped whatever it was before.

    Folds come to a checkpoint one by one. The trial is judged at the last one to which enough of those have come that
    run side by side with its foremost fold: one that begins when another is over is no reason to go back.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._from = 1 if settings.warmup_steps is None else settings.warmup_steps
        self._judged: dict[int, tuple[int, int]] = {}  # of a trial: the checkpoint, and how many folds were there

    @override
    def see(self, report: Report, came: Sequence[int]) -> None:
        """Goes by the curves alone."""

    @override
    def judge(self, trial: int) -> Stop | None:
        come = self.curves.come(trial).values()
        foremost, needed = max(come, default=0), self.needed_of(trial)
        beside = sorted((step for step in come if step >= _BESIDE * foremost), reverse=True)
        if len(beside) < needed or beside[needed - 1] < self._from:
            return None
        step = beside[needed - 1]
        there = self.curves.values[step].of(trial)
        if len(there) < needed or self._judged.get(trial) == (step, len(there)):
            return None
        self._judged[trial] = step, len(there)
        bests = self.curves.bests[step].of(trial)
        # What is no number any more will hardly become one.
        mine = {fold: bests[fold] if math.isfinite(value) else math.inf for fold, value in there.items()}
        better, others = self.curves.values[step].better(trial, mine, needed)
        if others < self.trials_needed or better <= others / 2 + math.sqrt(others) / 2:
            return None
        best = mean(list(mine.values()))
        if best == math.inf:
            return Stop(step, best, f"at step {step}, to which {others} others came")
        return Stop(step, best, f"worse at step {step} than {better} of the {others} others that came to it")


def create_rule(settings: EarlyStopping, folds: int) -> StoppingRule | None:
    """The rule that a search file asks for, knowing nothing yet; None: every trial runs to its end.

    Args:
        settings: `early_stopping` of the search.
        folds: of a trial.
    """
    if settings.method == "asha":
        return AshaRule(settings, folds)
    return MedianRule(settings, folds) if settings.method == "median" else None
