"""Asynchronous successive halving.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in the form that stops trials instead
of pausing them (as in Ray Tune and Optuna): nothing waits for a rung to fill, and no trial has to be kept for later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from typing_extensions import override

from hpo_pilot.optimizers.early_stopping.curves import Ranked, Report
from hpo_pilot.optimizers.early_stopping.rule import Stop, StoppingRule, place_text
from hpo_pilot.search import EarlyStopping


class _Rung:
    """The trials that have come to one step of comparison."""

    def __init__(self) -> None:
        self.folds: dict[int, dict[int, float]] = defaultdict(dict)
        self.means = Ranked()


class AshaRule(StoppingRule):
    """Of the trials that come to a rung, the best 1/eta go on; rungs are at min_steps x eta^k steps.

    A trial is judged when it comes to a rung, against those that came before; later it may be overtaken, and goes on
    all the same to its next rung. While fewer than `trials_needed` have come to a rung, everybody goes on. A fold's
    value at a rung is that of its first report at or after it. As more folds of a trial come to the rung, its mean
    over them is judged again.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._eta = settings.reduction
        self._first = settings.first_rung
        self._end = settings.max_steps
        self._brackets = settings.brackets or 1
        self._rungs: dict[tuple[int, int], _Rung] = defaultdict(_Rung)  # by bracket and step
        self._next: dict[tuple[int, int], int] = {}  # the next rung of a (trial, fold)
        self._news: dict[int, dict[int, None]] = defaultdict(dict)  # rungs that a trial came to since it was judged

    def _bracket(self, trial: int) -> int:
        return (trial - 1) % self._brackets

    @override
    def see(self, report: Report, came: Sequence[int]) -> None:
        trial, fold, step, value = report
        bracket = self._bracket(trial)
        at = self._next.get((trial, fold), self._first * self._eta**bracket)
        while at <= step and (self._end is None or at < self._end):
            rung = self._rungs[bracket, at]
            of_trial = rung.folds[trial]
            of_trial[fold] = value
            if len(of_trial) >= self.folds_needed:
                rung.means.put(trial, sum(one / len(of_trial) for one in of_trial.values()))
                self._news[trial][at] = None
            at *= self._eta
        self._next[trial, fold] = at

    @override
    def judge(self, trial: int) -> Stop | None:
        for step in self._news.pop(trial, ()):
            means = self._rungs[self._bracket(trial), step].means
            count, better = len(means), means.better_than(trial)
            going_on = max(1, count // self._eta)
            if count >= self.trials_needed and better >= going_on:
                reason = f"{place_text(better)} of {count} at step {step}, where {going_on} go on"
                return Stop(step, means[trial], reason.replace("1 go on", "1 goes on") if going_on == 1 else reason)
        return None
