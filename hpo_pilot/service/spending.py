"""What a search has used of its budget, and whether that is all."""

from __future__ import annotations

import time
from datetime import datetime

from hpo_pilot.errors import GiveUpError
from hpo_pilot.search import Search, Trial, TrialState


class Spending:
    """Trials, job time and failures in a row of one search."""

    def __init__(self, search: Search, *, trials: int, job_seconds: float, forgiven: int) -> None:
        """Starts from what the store knows.

        Args:
            search: the search.
            trials: how many have been asked for; neither confirmation runs nor those that were stopped.
            job_seconds: that all its jobs ran.
            forgiven: failures up to this place in the order of results no longer count.
        """
        self._search = search
        self._forgiven = forgiven
        self.trials = trials
        self.job_seconds = job_seconds
        self._failures_in_a_row = 0
        self._last_failure = ""

    @property
    def trials_left(self) -> int:
        """How many may still be asked for."""
        return self._search.budget.trials - self.trials

    def told(self, trial: Trial) -> None:
        """Takes a result, in the order of results."""
        failed = trial.state is TrialState.FAILED and (trial.told or 0) > self._forgiven
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        self._last_failure = trial.error or "" if failed else ""

    def check_failures(self) -> None:
        """Makes sure that it is worth while to go on.

        Raises:
            GiveUpError: as many trials failed in a row as may.
        """
        if self._failures_in_a_row >= self._search.budget.failures:
            name = self._search.name
            raise GiveUpError(
                f"{self._failures_in_a_row} trials failed in a row (budget.failures); the last: {self._last_failure}. "
                f"See `hpo-pilot trials {name}`, mend the payload, then `hpo-pilot resume {name}`"
            )

    def time_is_up(self, clock: datetime | None) -> bool:
        """Whether the hours since `clock`, or the GPU-hours of all jobs, are spent."""
        budget = self._search.budget
        if budget.hours is not None and clock and time.time() - clock.timestamp() > budget.hours * 3600:
            return True
        gpu_hours = self.job_seconds * self._search.resources.gpus / 3600
        return budget.gpu_hours is not None and gpu_hours >= budget.gpu_hours
