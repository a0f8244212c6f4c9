"""What the budget's GPU-hours and core-hours still allow, the jobs that run included."""

from __future__ import annotations

import math
import sys
import time

from hpo_pilot.search import Search
from hpo_pilot.search.cost import seconds_allowed
from hpo_pilot.service.ledger import Ledger
from hpo_pilot.service.running import RunningJob, running_jobs
from hpo_pilot.service.spending import Spending
from hpo_pilot.store import JobOutcome

#: Where a budget is about to be used up, it is looked after this often, in seconds.
_SOON = 0.05


class Allowance:
    """The hard part of a search's budget: a limit on the run time of all jobs together.

    A new trial is begun if all that is out, and the trial itself, stay below the limit by the time that folds take on
    average; by the minutes asked for while none has come to its end. At the limit all that is out is to be stopped.
    """

    def __init__(self, search: Search, spent: Spending, ledger: Ledger) -> None:
        """Looks at books that others keep."""
        self._search, self._spent, self._ledger = search, spent, ledger
        self._allowed = seconds_allowed(search.budget, search.resources)
        self._longest = 60.0 * search.resources.minutes

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._allowed < math.inf

    @property
    def trials(self) -> int:
        """How many more trials may be begun; without a limit any number."""
        if not self.is_limited:
            return sys.maxsize
        folds = self._search.folds.k
        expected = self._spent.fold_seconds or self._longest / self._search.resources.trials_per_job
        awaited = sum(trial.awaits(fold) for trial in self._ledger.open.values() for fold in range(folds))
        late = sum(max(0.0, job.seconds - expected * len(job.members)) for job in self._running(time.time()))
        left = self._allowed - self._spent.job_seconds - awaited * expected - late
        return max(0, math.floor(left / (expected * folds) + 1e-9))

    def seconds_left(self) -> float:
        """Seconds until the jobs that run have used up the rest, if none ends before; at least a moment."""
        if not self.is_limited or not (running := self._running(time.time())):
            return math.inf
        return max(_SOON, self._rest(running) / len(running))

    @property
    def is_used_up(self) -> bool:
        """Whether nothing that is out may go on."""
        return self.is_limited and bool(self._ledger.open) and self._rest(self._running(time.time())) <= 0

    def __str__(self) -> str:
        budget = self._search.budget
        limits = ((budget.gpu_hours, "GPU-hours"), (budget.core_hours, "core-hours"))
        return " and ".join(f"{hours:g} {unit}" for hours, unit in limits if hours is not None)

    def killed(self) -> list[JobOutcome]:
        """The folds that run as they are where they are killed now and their end is not waited for: paid for so far."""
        now = time.time()
        return [outcome for job in self._running(now) for outcome in job.cut_off(now)]

    def _running(self, now: float) -> list[RunningJob]:
        return running_jobs(self._ledger.outcomes, now, self._longest)

    def _rest(self, running: list[RunningJob]) -> float:
        return self._allowed - self._spent.job_seconds - sum(job.seconds for job in running)
