"""The median rule.

After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2, where the best
value of a trial until a step is compared with the median of the others' running averages until that step. Here it is
compared with the median of their values at that step. An average lags behind a curve that comes down: measured by it,
trials go on that are worse than most (`python -m tests.performance early-stopping`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from typing_extensions import override

from hpo_pilot.optimizers.early_stopping.curves import Report, mean
from hpo_pilot.optimizers.early_stopping.rule import Stop, StoppingRule
from hpo_pilot.search import EarlyStopping

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
