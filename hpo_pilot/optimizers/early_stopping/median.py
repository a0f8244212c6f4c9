"""The median rule.

Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2: a trial is stopped at
step s if its best value until s is worse than the median of the running averages until s of the other trials.
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
    """A trial is stopped where its best value so far is worse than the median of the others' averages so far.

    The others are all that have come to the same step, whether they ended, run or were stopped there or later: those
    alone that ran to their end would be ever better ones, and the median with them. Steps are compared at the
    checkpoints of `Curves`. One whose value is no number there is stopped whatever it was before.
    """

    def __init__(self, settings: EarlyStopping, folds: int) -> None:
        super().__init__(settings, folds)
        self._from = 1 if settings.warmup_steps is None else settings.warmup_steps
        self._averages: dict[int, Ranked] = defaultdict(Ranked)
        self._news: dict[int, int] = {}  # the last checkpoint that a trial came to since it was judged

    @override
    def see(self, report: Report, came: Sequence[int]) -> None:
        for step in came:
            at = self.curves.at[step][report.trial]
            if step >= self._from and at.folds >= self.folds_needed:
                self._averages[step].put(report.trial, at.average / at.folds)
                self._news[report.trial] = max(step, self._news.get(report.trial, 0))

    @override
    def judge(self, trial: int) -> Stop | None:
        step = self._news.pop(trial, None)
        if step is None:
            return None
        averages = self._averages[step]
        if len(averages) - 1 < self.trials_needed:
            return None
        at, median = self.curves.at[step][trial], averages.median_of_others(trial)
        # What is no number any more will hardly become one.
        best = at.best / at.folds if math.isfinite(at.value) else math.inf
        # One that is the best of all by its average may have found its best before the others' averages came down.
        if best <= median or averages.better_than(trial) == 0:
            return None
        if best == math.inf:
            return Stop(step, best, f"at step {step}, to which {len(averages) - 1} others came")
        reason = f"worse at step {step} than the median of the {len(averages) - 1} others that came to it"
        return Stop(step, best, reason)
