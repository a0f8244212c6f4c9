"""Asynchronous successive halving.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in the form that stops trials instead
of pausing them (as in Ray Tune and Optuna): nothing waits for a rung to fill, and no trial has to be kept for later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from typing_extensions import override

from hpo_pilot.optimizers.early_stopping.curves import Board, Report, mean
from hpo_pilot.optimizers.early_stopping.rule import NEARLY_DONE, Stop, StoppingRule, place_text
from hpo_pilot.search import EarlyStopping


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
        self._rungs: dict[tuple[int, int], Board] = defaultdict(lambda: Board(folds))  # by bracket and step
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
