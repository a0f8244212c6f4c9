"""Rules that stop bad trials early: ASHA and the median rule. They depend neither on jobs nor on the clock."""

from __future__ import annotations

import math
import statistics
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from hpo_pilot.search import EarlyStopping


class Projection:
    """Projects the final values of trainings that were stopped at one step; lower is better.

    The rank of a value among finished trainings at the same step is assumed to be its rank among their final values;
    between two of them, the final values are interpolated. If the value is better or worse than all of them, a part of
    the distance at that step is added: the slope of the final values over the values at that step, from 0 to 1. A value
    that is already better than all final values is never projected to become worse.
    """

    def __init__(self, others: Sequence[tuple[float, float]]) -> None:
        """Sorts the finished trainings.

        Args:
            others: (value at that step, final value) of finished trainings; if empty, values are returned unchanged.
        """
        self._others = [pair for pair in others if math.isfinite(pair[0])]
        self._here = sorted(at for at, _ in self._others)
        self._finals = sorted(final for _, final in self._others)

    def __call__(self, value: float) -> float:
        """Returns the projected final value of a training.

        Args:
            value: the value at the step where the training was stopped; infinity counts as the worst of the others.
        """
        here, finals = self._here, self._finals
        if not here:
            return value
        place = (bisect_left(here, value) + bisect_right(here, value)) / 2 / len(here)
        position = place * (len(finals) - 1)
        lower = int(position)
        upper = min(lower + 1, len(finals) - 1)
        between = finals[lower] * (1 - (position - lower)) + finals[upper] * (position - lower)
        if here[0] <= value <= here[-1] or not math.isfinite(value):
            return between
        worse = value > here[-1]
        slope = float(worse) if self._slope is None else self._slope
        if worse:
            return min(finals[-1] + slope * (value - here[-1]), sys.float_info.max)
        return max(min(finals[0] - slope * (here[0] - value), value), -sys.float_info.max)

    @cached_property  # takes ten times as long as a projection, and many need none
    def _slope(self) -> float | None:
        """The share of a distance at that step that remains at the end, from 0 to 1, by robust regression.

        None: not known, as with fewer than three trainings; it is then 1 for a worse value, 0 for a better one.
        """
        if len(self._others) < 3:
            return None
        pairs = np.array(self._others) / len(self._others)  # so that differences do not overflow
        low, high = np.percentile(pairs, [25, 75], axis=0)
        if not high[0] > low[0]:
            return None
        here, finals = pairs.argsort(axis=0, kind="stable").argsort(axis=0).T
        agreement = max(0.0, float(np.corrcoef(here, finals)[0, 1]))
        return min(1.0, agreement * float((high[1] - low[1]) / (high[0] - low[0])))


#: Trials are compared at every step up to this one, and then at steps that grow by a tenth, so that a curve of any
#: length is kept in about a hundred numbers.
_EVERY_STEP = 20
_GROWTH = 1.1
_LARGEST_STEP = 2**53

#: A trial is projected by this number of the newest trials with ended folds, so that no projection takes longer.
COMPARED = 1_000


class Report(NamedTuple):
    """An intermediate value of a fold; lower is better, and infinity means that the value is not a number."""

    trial: int
    fold: int
    step: int
    value: float


class StepValues:
    """The values of many trials at one step, for each fold.

    Folds differ in difficulty, and may run one after another. So two trials are compared by the mean over the folds
    that both have at this step.
    """

    def __init__(self, folds: int) -> None:
        """Makes an empty table.

        Args:
            folds: number of folds of a trial.
        """
        self._rows: dict[int, int] = {}
        self._values = np.full((4, folds), np.nan)

    def put(self, trial: int, fold: int, value: float) -> None:
        """Stores the value of a fold."""
        row = self._rows.setdefault(trial, len(self._rows))
        if row == len(self._values):
            self._values = np.concatenate([self._values, np.full_like(self._values, np.nan)])
        self._values[row, fold] = value

    def get(self, trial: int, fold: int) -> float | None:
        """Returns the value of a fold; None if the fold has not reached this step."""
        row = self._rows.get(trial)
        if row is None or np.isnan(self._values[row, fold]):
            return None
        return float(self._values[row, fold])

    def of(self, trial: int) -> dict[int, float]:
        """Returns the values of the trial's folds that have reached this step."""
        found = {fold: self.get(trial, fold) for fold in range(self._values.shape[1])}
        return {fold: value for fold, value in found.items() if value is not None}

    def better(self, trial: int, mine: Mapping[int, float], needed: int) -> tuple[int, int]:
        """Returns the number of better trials, and the number of trials to compare with.

        Args:
            trial: the trial.
            mine: its value for each fold; may differ from the stored ones.
            needed: the least number of folds that two trials must have in common.
        """
        values = self._values[: len(self._rows)]
        own = np.full(self._values.shape[1], np.nan)
        for fold, value in mine.items():
            own[fold] = value
        common = ~(np.isnan(values) | np.isnan(own))
        compared = common.sum(axis=1) >= needed
        if trial in self._rows:
            compared[self._rows[trial]] = False
        # Scaled by a power of two, without rounding, so that sums of the largest floats stay finite.
        part = 0.5 ** len(own).bit_length()
        theirs, ours = (np.where(common, each * part, 0.0).sum(axis=1) for each in (values, own))
        return int((compared & (theirs < ours)).sum()), int(compared.sum())


@dataclass(slots=True)
class _Fold:
    step: int
    value: float
    best: float
    next: int  # index of the first checkpoint that it has not reached


def _checkpoints() -> list[int]:
    """Returns the steps of comparison, including one beyond the largest step."""
    steps = list(range(_EVERY_STEP + 1))
    while steps[-1] <= _LARGEST_STEP:
        steps.append(round(steps[-1] * _GROWTH))
    return steps


CHECKPOINTS = _checkpoints()


class Curves:
    """The values of all folds at each checkpoint, and the final values of the folds that are over.

    Attributes:
        values: by checkpoint, the last value of each fold up to it.
        bests: by checkpoint, the best value of each fold up to it.
    """

    def __init__(self, folds: int = 1) -> None:
        """Starts without curves.

        Args:
            folds: number of folds of a trial.
        """
        self._count = folds
        self._folds: dict[int, dict[int, _Fold]] = defaultdict(dict)
        self._finals: dict[int, dict[int, float]] = defaultdict(dict)
        self._ended: list[int] = []  # the trials with ended folds by number, which is the same after a restart
        self._lengths: list[int] = []
        self.values: dict[int, StepValues] = defaultdict(lambda: StepValues(folds))
        self.bests: dict[int, StepValues] = defaultdict(lambda: StepValues(folds))

    def see(self, report: Report) -> None:
        """Takes a value; ignored if the fold has already reported a later step."""
        trial, number, step, value = report
        if not 0 <= step <= _LARGEST_STEP:
            return
        fold = self._folds[trial].get(number)
        if fold is None:
            # The fold has no values at checkpoints before its first report.
            fold = self._folds[trial][number] = _Fold(-1, value, value, bisect_left(CHECKPOINTS, step))
        if step <= fold.step:
            return
        self._store(trial, number, fold, step - 1)
        fold.step, fold.value = step, value
        fold.best = min(fold.best, value)
        self._store(trial, number, fold, step)

    def _store(self, trial: int, number: int, fold: _Fold, step: int) -> None:
        """Stores the present values of the fold at the checkpoints up to `step`."""
        while (place := CHECKPOINTS[fold.next]) <= step:
            self.values[place].put(trial, number, fold.value)
            self.bests[place].put(trial, number, fold.best)
            fold.next += 1

    def end(self, trial: int, fold: int, final: float) -> None:
        """Takes the figure of merit of a fold that ran to its end, after all its intermediate values."""
        if trial not in self._finals:
            insort(self._ended, trial)
        if fold not in self._finals[trial]:
            self._finals[trial][fold] = final
            seen = self._folds.get(trial, {}).get(fold)
            if seen is not None:
                insort(self._lengths, seen.step)

    def come(self, trial: int) -> dict[int, int]:
        """Returns the last checkpoint that each fold of the trial has reached."""
        return {number: CHECKPOINTS[fold.next - 1] for number, fold in self._folds.get(trial, {}).items()}

    @property
    def length(self) -> int | None:
        """The number of steps of a whole training: the median of all finished ones; None: none has finished."""
        return self._lengths[len(self._lengths) // 2] if self._lengths else None

    def share(self, trial: int, length: int | None) -> float:
        """Returns the completed share of the trial over all folds; `length`: number of steps of a whole training."""
        whole = self._finals.get(trial, {})
        done = float(len(whole))
        for number, fold in self._folds.get(trial, {}).items():
            if number not in whole and length:
                done += min(1.0, fold.step / length)
        return done / self._count

    def last(self, trial: int, needed: int) -> tuple[int, float] | None:
        """Returns the last step that `needed` folds of the trial have reached, and the mean of their last values.

        If fewer folds have reported, these are used; None where there are none.
        """
        folds = self._folds.get(trial, {}).values()
        if not folds:
            return None
        step = sorted((fold.step for fold in folds), reverse=True)[min(needed, len(folds)) - 1]
        values = [fold.value for fold in folds if fold.step >= step]
        return step, mean(values)

    def projected(self, trial: int) -> float | None:
        """Returns the projected figure of merit of a trial, the mean of its folds.

        A complete fold counts with its value. An incomplete fold is projected from its last value, by comparison with
        the same fold of other trials where it is complete. Folds that have not started are assumed to differ from these
        as in the complete trials. Only the newest 1,000 trials with ended folds are compared. None where nothing is
        known of the trial, or it diverged.
        """
        found = dict(self._finals.get(trial, {}))
        for number, fold in self._folds.get(trial, {}).items():
            if number not in found:
                if not math.isfinite(fold.value):
                    return None
                found[number] = Projection(self._others(number, CHECKPOINTS[fold.next - 1]))(fold.value)
        if not found:
            return None
        complete = [finals for _, finals in self._recent() if len(finals) == self._count > len(found)]
        rest = [mean(list(finals.values())) - mean([finals[fold] for fold in found]) for finals in complete]
        value = mean(list(found.values())) + (statistics.median(rest) if rest else 0.0)
        return max(-sys.float_info.max, min(value, sys.float_info.max))

    def _recent(self) -> list[tuple[int, dict[int, float]]]:
        return [(trial, self._finals[trial]) for trial in self._ended[-COMPARED:]]

    def _others(self, fold: int, step: int) -> list[tuple[float, float]]:
        """Returns (value at a checkpoint, final value) of one fold, for the newest trials where it is complete."""
        here = self.values[step]
        pairs = [(here.get(trial, fold), finals[fold]) for trial, finals in self._recent() if fold in finals]
        return [(value, final) for value, final in pairs if value is not None]


def mean(values: Sequence[float]) -> float:
    """Returns the mean, without overflow."""
    return sum(value / len(values) for value in values)


@dataclass(frozen=True)
class Stop:
    """The decision to stop a trial, with its reason.

    Attributes:
        step: the step at which the trial was judged.
        value: the value by which it was judged, lower is better: the mean of its folds.
        reason: the reason in words, such as `5th of 9 at step 27, where 3 go on`.
    """

    step: int
    value: float
    reason: str


#: Trials and trainings that are complete by this share are not stopped: little would be saved.
NEARLY_DONE = 0.75


class StoppingRule(ABC):
    """Decides from intermediate values which trials to stop. Lower values are better.

    The contract: a decision depends only on the reports so far, in the order of the calls of `look`, and on the folds
    that were over by then. A new rule that gets the same calls makes the same decisions. The best trial at a step of
    comparison is never stopped there. A trial is judged by the newest step of comparison that it has reached, and not
    by its value at an earlier one.

    Folds of a trial may run at the same time or one after another. A trial is judged when enough of them have reached
    the step, and is compared with each other trial over the folds that both have there.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        """Starts without reports.

        Args:
            settings: `early_stopping` of the search.
            folds: number of folds of a trial.
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
        """Takes the new reports of one poll of the server, and decides which trials to stop.

        Args:
            reports: new values of any trials; their order does not matter.
            judged: the running trials that were not stopped before.
            ended: the figures of merit of folds that ran to their end, by trial and fold.

        Returns:
            The decisions for the trials to stop, by trial number.
        """
        new = sorted(report for report in reports if 0 <= report.fold < self._folds)
        for report in new:
            self.curves.see(report)
            self.see(report)
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
        """Returns the number of folds of a trial that must have reached a step before it is judged there; at least 1.

        If the search file does not set it, the folds that have started are enough. With few slots, the other folds
        start only when these folds are over, so waiting for the others would save nothing.
        """
        if self._waits_for_folds:
            return self.folds_needed
        return max(1, min(self.folds_needed, len(self.curves.come(trial))))

    @property
    def length(self) -> int | None:
        """The number of steps of a whole training; None where it is not known."""
        return self._steps or self.curves.length

    def see(self, report: Report) -> None:  # noqa: B027 - the curves may be all that a rule needs
        """Takes a value, which `curves` has already; ignored if the fold has already reported a later step."""

    @abstractmethod
    def judge(self, trial: int) -> Stop | None:
        """Decides by the newest step of comparison whether the trial must stop; None: it continues."""


def place_text(better: int) -> str:
    """Returns `1st`, `2nd`, … for a trial, from the number of better trials."""
    place = better + 1
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


class AshaRule(StoppingRule):
    """Asynchronous successive halving: the best 1/eta of the trials at a rung continue; rungs: min_steps x eta^k.

    Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in the variant that stops trials
    instead of pausing them (as in Ray Tune and Optuna): no trial waits until a rung is full.

    A trial is judged when it reaches a rung, against the trials that have reached it before; it then continues to its
    next rung, also if others become better. While fewer than `trials_needed` trials have reached a rung, all continue.
    When more folds of a trial reach its newest rung, it is judged again by all of them.

    In the paper, a trial that is not among the best waits, and continues if it belongs to the best of more trials;
    meanwhile about sqrt(n) of n trials are on the wrong side. Our stop is final. So a trial is stopped only if it is
    clearly not among the best: of n others, at least n/eta + sqrt(n (eta - 1))/eta are better. That is one standard
    deviation more than for a trial at the limit.

    The value of a fold at a rung is that of its first report at or after the rung and before the next rung.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._eta = settings.reduction
        self._first = settings.first_rung
        self._end = settings.max_steps
        self._brackets = settings.brackets or 1
        self._rungs: dict[tuple[int, int], StepValues] = defaultdict(lambda: StepValues(folds))  # by bracket and step
        self._next: dict[tuple[int, int], int] = {}  # the next rung of a (trial, fold)
        self._newest: dict[int, int] = {}  # by trial: the last rung that one of its folds has reached
        self._judged: dict[int, tuple[int, int]] = {}  # by trial: the rung, and the number of folds there

    def _bracket(self, trial: int) -> int:
        return (trial - 1) % self._brackets

    @override
    def see(self, report: Report) -> None:
        trial, fold, step, value = report
        bracket = self._bracket(trial)
        at = self._next.get((trial, fold), self._first * self._eta**bracket)
        last = None
        while at <= step and (self._end is None or at < self._end):
            last, at = at, at * self._eta
        if last is not None:
            # A value from beyond a rung counts only for the last rung before it.
            self._rungs[bracket, last].put(trial, fold, value)
            self._newest[trial] = max(last, self._newest.get(trial, 0))
        self._next[trial, fold] = at

    @override
    def judge(self, trial: int) -> Stop | None:
        step = self._newest.get(trial)
        if step is None:
            return None
        while self.length and step >= NEARLY_DONE * self.length and step > self._first:
            step //= self._eta  # a rung near the end of a training saves nothing
        rung = self._rungs[self._bracket(trial), step]
        mine, needed = rung.of(trial), self.needed_of(trial)
        if len(mine) < needed or self._judged.get(trial) == (step, len(mine)):
            return None
        self._judged[trial] = step, len(mine)
        better, others = rung.better(trial, mine, needed)
        count = others + 1
        # The expected number of better trials at the limit of the best 1/eta, plus one standard deviation.
        limit = (others + math.sqrt(others * (self._eta - 1))) / self._eta
        going_on = max(1, math.ceil(limit))
        if count < self.trials_needed or better < going_on:
            return None
        reason = f"{place_text(better)} of {count} at step {step}, where {going_on} go on"
        if going_on == 1:
            reason = reason.replace("1 go on", "1 goes on")
        return Stop(step, mean(list(mine.values())), reason)


#: Folds that have done at least this share of the steps of the first fold run at the same time as it.
_BESIDE = 1 / 3


class MedianRule(StoppingRule):
    """The median rule: stops a trial whose best value is clearly worse than the median of the others at that step.

    After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2. There, the
    best value of a trial up to a step is compared with the median of the others' running averages. Here it is compared
    with the median of their values at that step: an average lags behind a falling curve, so trials would continue that
    are worse than most (`python -m tests.performance early-stopping`).

    Clearly means: of n others, more than n/2 + sqrt(n)/2 have a better value at that step. A typical trial has n/2
    better ones, with a standard deviation of sqrt(n)/2; so with fewer trials to compare with, it must be worse.

    The others are all trials that have reached the same step, whether they are finished, running or stopped: with only
    the finished ones, the median would become better and better. Trials are compared at the checkpoints of `Curves`. A
    trial whose value is not a number there is stopped.

    Folds reach a checkpoint one by one. The trial is judged at the last checkpoint that enough folds have reached of
    those that run at the same time as its first fold; folds that start later do not count.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._from = 1 if settings.warmup_steps is None else settings.warmup_steps
        self._judged: dict[int, tuple[int, int]] = {}  # by trial: the checkpoint, and the number of folds there

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
        # A training that has diverged will hardly recover.
        mine = {fold: bests[fold] if math.isfinite(value) else math.inf for fold, value in there.items()}
        better, others = self.curves.values[step].better(trial, mine, needed)
        if others < self.trials_needed or better <= others / 2 + math.sqrt(others) / 2:
            return None
        best = mean(list(mine.values()))
        if best == math.inf:
            return Stop(step, best, f"at step {step}, to which {others} others came")
        return Stop(step, best, f"worse at step {step} than {better} of the {others} others that came to it")


def create_rule(settings: EarlyStopping, folds: int) -> StoppingRule | None:
    """Makes the rule of a search file; None: every trial runs to its end.

    Args:
        settings: `early_stopping` of the search.
        folds: number of folds of a trial.
    """
    if settings.method == "asha":
        return AshaRule(settings, folds)
    return MedianRule(settings, folds) if settings.method == "median" else None
