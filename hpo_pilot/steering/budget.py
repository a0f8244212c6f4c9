"""The used and the remaining budget of a search, and the state in which the search ends."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from hpo_pilot.advice import command
from hpo_pilot.errors import GiveUpError
from hpo_pilot.jobs import Attempt, JobState
from hpo_pilot.search import Budget, Search, Trial, TrialState
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.search.trials import seconds_allowed
from hpo_pilot.steering.ledger import Ledger
from hpo_pilot.store import SearchRecord, SearchState, Store
from hpo_pilot.store.queries import measured_runs, spent

#: Limits of a budget that may end a search before its number of trials.
_LIMITS = ("hours", "gpu_hours", "core_hours", "fidelity")


class Spending:
    """Trials, job time, levels and failures in a row of one search."""

    def __init__(self, record: SearchRecord, store: Store) -> None:
        """Loads the time spent by a search from the store; the caller then sets `trials` and `levels`."""
        self._search = record.search
        self._forgiven = record.forgiven  # failures up to this place in the order of results do not count
        self.trials = 0
        """Number of trials that count against the budget: no confirmation runs, no trials ended by a stop."""
        self.levels = 0.0
        """Sum of the levels that trials were or are being trained to."""
        self.job_seconds = spent(store.engine, record.id).seconds
        self._runs, self.run_seconds = measured_runs(store.engine, record.id)
        self._failures_in_a_row = 0
        self._last_failure = ""

    @property
    def trials_left(self) -> int:
        """Number of trials that the budget still has."""
        return self._search.budget.trials - self.trials

    @property
    def levels_left(self) -> float:
        """The sum of levels that `budget.fidelity` still has; infinity: no limit."""
        limit = self._search.budget.fidelity
        return math.inf if limit is None else limit - self.levels

    def told(self, trial: Trial) -> None:
        """Takes a result, in the order of results."""
        failed = trial.state is TrialState.FAILED and (trial.told or 0) > self._forgiven
        self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
        self._last_failure = trial.error or "" if failed else ""

    def ran(self, attempts: Iterable[Attempt]) -> None:
        """Takes the run times of folds with a result."""
        for attempt in attempts:
            if attempt.is_final and attempt.seconds:
                self._runs += 1
                self.run_seconds += attempt.seconds

    def check_failures(self) -> None:
        """Checks the failures in a row.

        Raises:
            GiveUpError: `budget.failures` trials failed in a row.
        """
        if self._failures_in_a_row >= self._search.budget.failures:
            name = self._search.name
            raise GiveUpError(
                f"{self._failures_in_a_row} trials failed in a row (budget.failures); the last: {self._last_failure}. "
                f"See `hpo-pilot trials {name}`, correct the payload, then `hpo-pilot resume {name} --new-payload`"
            )

    def time_is_up(self, clock: datetime | None) -> bool:
        """Returns True if `budget.hours` have passed since `clock`."""
        hours = self._search.budget.hours
        return hours is not None and clock is not None and time.time() - clock.timestamp() > hours * 3600

    @property
    def fold_seconds(self) -> float | None:
        """Mean run time of a fold in seconds; None before the first result."""
        return self.run_seconds / self._runs if self._runs else None


@dataclass(frozen=True)
class RunningJob:
    """A running job.

    Attributes:
        seconds: run time so far.
        members: the folds that it runs, one after another.
    """

    seconds: float
    members: tuple[Attempt, ...]

    def cut_off(self, now: float) -> list[Attempt]:
        """Returns the attempts of its members after a kill whose report is not awaited: charged up to now."""
        share = self.seconds / len(self.members)
        return [replace(each, state=JobState.CANCELLED, seconds=share, ended=now) for each in self.members]


def running_jobs(known: Iterable[Attempt], now: float, limit: float) -> list[RunningJob]:
    """Returns the running jobs.

    Args:
        known: attempts of folds. The newest attempt of a fold counts.
        now: seconds since the epoch.
        limit: walltime limit in seconds. A job that seems to run longer has ended, but its end was not reported.
    """
    newest: dict[tuple[int, int], Attempt] = {}
    for attempt in sorted(known, key=lambda each: (each.task_id, each.attempt)):
        newest[attempt.trial, attempt.fold] = attempt
    by_job: dict[tuple[int, int | None], list[Attempt]] = {}
    for attempt in newest.values():
        if not attempt.state.is_over and attempt.seconds is None:
            by_job.setdefault((attempt.task_id, attempt.panda_id), []).append(attempt)
    found = []
    for members in by_job.values():
        started = min((each.started for each in members if each.started is not None), default=None)
        if started is not None:
            found.append(RunningJob(min(max(0.0, now - started), limit), tuple(members)))
    return found


#: Shortest pause before the next check of a budget that is nearly used up, in seconds.
_SHORTEST_PAUSE = 0.05


class Allowance:
    """The hard limit on the run time of all jobs together, from `budget.gpu_hours` and `budget.core_hours`.

    A trial starts only if all open trials and this one should fit below the limit, judging by the mean run time of a
    fold; of an open trial to a high level, in proportion to what it trains. Before the first result,
    `resources.minutes` takes its place. At the limit all open trials are stopped.
    """

    def __init__(self, search: Search, spent: Spending, ledger: Ledger) -> None:
        """Computes the limit. The caller keeps `spent` and `ledger` up to date."""
        self._search, self._spent, self._ledger = search, spent, ledger
        self._allowed = seconds_allowed(search.budget, search.resources)
        self._longest = 60.0 * search.resources.minutes

    @property
    def is_limited(self) -> bool:
        """Whether the budget has such a limit."""
        return self._allowed < math.inf

    @property
    def trials(self) -> int:
        """Number of trials that may start now; very large without a limit."""
        if not self.is_limited:
            return sys.maxsize
        folds, out = self._search.folds.k, self._ledger.open
        expected = self._spent.fold_seconds or self._longest / self._search.resources.trials_per_job
        each = self._expected_each(expected)
        awaited = sum(each[number] * sum(map(one.awaits, range(folds))) for number, one in out.items())
        late = sum(
            max(0.0, job.seconds - sum(each.get(member.trial, expected) for member in job.members))
            for job in self._running(time.time())
        )
        left = self._allowed - self._spent.job_seconds - awaited - late
        return max(0, math.floor(left / (expected * folds) + 1e-9))

    def _expected_each(self, mean: float) -> dict[int, float]:
        """Returns the expected run time of a fold of each open trial, by number; `mean`: of all folds."""
        out, levels = self._ledger.open, self._search.levels
        if levels is None or self._spent.fold_seconds is None:
            return dict.fromkeys(out, mean)
        parts = {number: levels.part(one.trial) for number, one in out.items()}
        trained = self._spent.levels - sum(part for number, part in parts.items() if out[number].trial.trains_point)
        per_level = self._spent.run_seconds / self._search.folds.k / trained if trained > 0 else 0.0
        return {number: max(mean, per_level * part) for number, part in parts.items()}

    def seconds_left(self) -> float:
        """Returns the seconds until the running jobs use up the rest, if none of them ends before."""
        if not self.is_limited or not (running := self._running(time.time())):
            return math.inf
        return max(_SHORTEST_PAUSE, self._rest(running) / len(running))

    @property
    def is_used_up(self) -> bool:
        """Whether the limit is reached and open trials must be stopped."""
        return self.is_limited and bool(self._ledger.open) and self._rest(self._running(time.time())) <= 0

    def __str__(self) -> str:
        budget = self._search.budget
        limits = ((budget.gpu_hours, "GPU-hours"), (budget.core_hours, "core-hours"))
        return " and ".join(f"{hours:g} {unit}" for hours, unit in limits if hours is not None)

    def killed(self) -> list[Attempt]:
        """Returns the attempts of running folds that are killed now without a report: charged up to now."""
        now = time.time()
        return [attempt for job in self._running(now) for attempt in job.cut_off(now)]

    def _running(self, now: float) -> list[RunningJob]:
        return running_jobs(self._ledger.attempts, now, self._longest)

    def _rest(self, running: list[RunningJob]) -> float:
        return self._allowed - self._spent.job_seconds - sum(job.seconds for job in running)


def final_state(
    search: Search, progress: SearchProgress, told: int, *, exhausted: bool, waiting: int = 0
) -> tuple[SearchState, str]:
    """Returns the final state of a search and its message, which may be empty.

    Args:
        search: the search.
        progress: its progress.
        told: number of results.
        exhausted: whether the optimizer has no point left.
        waiting: number of requested points that were not tried, for lack of time or GPU-hours.
    """
    state, message = _final_state(search, progress, told, exhausted=exhausted)
    if waiting:
        wait = "a point that was asked for waits" if waiting == 1 else f"{waiting} points that were asked for wait"
        more = extend_command(search.name, search.budget)
        message = f"{message}; {wait}: {more} gives more of what was spent".removeprefix("; ")
    return state, message


def _final_state(search: Search, progress: SearchProgress, told: int, *, exhausted: bool) -> tuple[SearchState, str]:
    if progress.best_for_people is None:
        if exhausted and not progress.trials:
            return SearchState.FAILED, "no point that satisfies the constraints was found"
        reason = f"none of its {told} trials gave a figure of merit" if told else "its budget allowed no trial"
        if progress.infeasible:
            reason = f"none of its {told} trials is known to be within the limits"
        return SearchState.FAILED, f"{reason}; see `hpo-pilot trials {search.name}`"
    if exhausted:
        where = "grid" if search.optimizer.name == "grid" else "space"
        return SearchState.DONE, f"every point of the {where} was tried: {told} trial{'s' * (told != 1)}"
    limits = [f"budget.{limit}" for limit in _LIMITS if getattr(search.budget, limit) is not None]
    if limits and (tried := progress.counted) < search.budget.trials:
        kind = "point" if search.fidelity else "trial"
        return SearchState.DONE, f"{' or '.join(limits)} was spent after {tried} {kind}{'s' * (tried != 1)}"
    return SearchState.DONE, ""


def overspent(progress: SearchProgress, limits: str, out: int) -> tuple[SearchState, str]:
    """Returns the final state and message of a search that has used up its GPU-hours or core-hours.

    Args:
        progress: the progress of the search.
        limits: the limits in words.
        out: number of open trials.
    """
    state = SearchState.FAILED if progress.best_for_people is None else SearchState.DONE
    others = "the trial that was still out was" if out == 1 else f"the {out} trials that were still out were"
    return state, f"the budget of {limits} is used up; {others} stopped"


def extend_command(name: str, budget: Budget, *limits: str) -> str:
    """Returns the command that extends the limits on time and levels of a search.

    Args:
        name: name of the search.
        budget: its budget. Limits that it does not have are left out.
        limits: the limits to extend, of hours, gpu_hours, core_hours and fidelity; none named: all.
    """
    every = limits or _LIMITS
    options = [
        (f"--{limit.replace('_', '-')}", "+N" if limit == "fidelity" else "+H")
        for limit in every
        if getattr(budget, limit) is not None
    ]
    return command("extend", name, *itertools.chain.from_iterable(options))
