"""What a search has used of its budget, and whether that is all."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime
from typing import Self

from hpo_pilot.errors import GiveUpError
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.store import JobOutcome, SearchRecord, Store
from hpo_pilot.store.tallies import measured_runs


class Spending:
    """Trials, job time and failures in a row of one search."""

    def __init__(
        self, search: Search, *, trials: int, job_seconds: float, forgiven: int, runs: tuple[int, float] = (0, 0.0)
    ) -> None:
        """Starts from what the store knows.

        Args:
            search: the search.
            trials: how many have been asked for; neither confirmation runs nor those that were stopped.
            job_seconds: that all its jobs ran which are over.
            forgiven: failures up to this place in the order of results no longer count.
            runs: how many folds came to their end, and how many seconds they ran together.
        """
        self._search = search
        self._forgiven = forgiven
        self.trials = trials
        self.job_seconds = job_seconds
        self._runs, self._run_seconds = runs
        self._failures_in_a_row = 0
        self._last_failure = ""

    @classmethod
    def of(cls, record: SearchRecord, store: Store, trials: int) -> Self:
        """That of a search in a store; `trials` as above."""
        return cls(
            record.search,
            trials=trials,
            job_seconds=store.job_seconds(record.id),
            forgiven=record.forgiven,
            runs=measured_runs(store.engine, record.id),
        )

    @property
    def trials_left(self) -> int:
        """How many may still be asked for."""
        return self._search.budget.trials - self.trials

    def told(self, trial: Trial) -> None:
        """Takes a result, in the order of results."""
        failed = trial.state is TrialState.FAILED and (trial.told or 0) > self._forgiven
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        self._last_failure = trial.error or "" if failed else ""

    def ran(self, outcomes: Iterable[JobOutcome]) -> None:
        """Takes the run times of folds that came to their end."""
        for outcome in outcomes:
            if outcome.is_verdict and outcome.seconds:
                self._runs += 1
                self._run_seconds += outcome.seconds

    def check_failures(self) -> None:
        """Makes sure that it is worth while to go on.

        Raises:
            GiveUpError: as many trials failed in a row as may.
        """
        if self._failures_in_a_row >= self._search.budget.failures:
            name = self._search.name
            raise GiveUpError(
                f"{self._failures_in_a_row} trials failed in a row (budget.failures); the last: {self._last_failure}. "
                f"See `hpo-pilot trials {name}`, mend the payload, then `hpo-pilot resume {name} --new-payload`"
            )

    def time_is_up(self, clock: datetime | None) -> bool:
        """Whether the hours since `clock` are spent."""
        hours = self._search.budget.hours
        return hours is not None and clock is not None and time.time() - clock.timestamp() > hours * 3600

    @property
    def fold_seconds(self) -> float | None:
        """How long a fold ran on average; None: none has come to its end."""
        return self._run_seconds / self._runs if self._runs else None
