"""The median rule.

After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2, where the best
value of a trial until a step is compared with the median of the others' running averages until that step. Here it is
compared with the median of their values at that step. An average lags behind a curve that comes down: measured by it,
trials go on that are worse than most (`python -m tests.performance early-stopping`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from typing_extensions import override

from hpo_pilot.optimizers.early_stopping.curves import Ranked, Report
from hpo_pilot.optimizers.early_stopping.rule import Stop, StoppingRule
from hpo_pilot.search import EarlyStopping


class MedianRule(StoppingRule):
    """A trial is stopped where its best value so far is clearly worse than the median of the others' values there.

    Clearly: of n others, more than n/2 + sqrt(n)/2 have a better value at that step. A trial that is as likely to be
    better as worse than each of them has n/2 such, give or take sqrt(n)/2; so the fewer there are to compare with, the
    worse it must be.

    The others are all that have come to the same step, whether they ended, run or were stopped there or later: those
    alone that ran to their end would be ever better ones, and the median with them. Steps are compared at the
    checkpoints of `Curves`. One whose value is no number there is stopped whatever it was before.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._from = 1 if settings.warmup_steps is None else settings.warmup_steps
        self._values: dict[int, Ranked] = defaultdict(Ranked)
        self._news: dict[int, int] = {}  # the last checkpoint that a trial came to since it was judged

    @override
    def see(self, report: Report, came: Sequence[int]) -> None:
        for step in came:
            at = self.curves.at[step][report.trial]
            if step >= self._from and at.folds >= self.folds_needed:
                self._values[step].put(report.trial, at.value / at.folds)
                self._news[report.trial] = max(step, self._news.get(report.trial, 0))

    @override
    def judge(self, trial: int) -> Stop | None:
        step = self._news.pop(trial, None)
        if step is None:
            return None
        values, at = self._values[step], self.curves.at[step][trial]
        others = len(values) - 1
        if others < self.trials_needed:
            return None
        # What is no number any more will hardly become one.
        best = at.best / at.folds if math.isfinite(at.value) else math.inf
        better = values.below(best)  # its own value is not among them: that is no better than its best
        if better <= others / 2 + math.sqrt(others) / 2:
            return None
        if best == math.inf:
            return Stop(step, best, f"at step {step}, to which {others} others came")
        return Stop(step, best, f"worse at step {step} than {better} of the {others} others that came to it")
