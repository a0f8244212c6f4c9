"""The progress of a search as one value: counts, best trials, costs and curve. Its readers load no trials.

The store has it as one row a search, which changes in the transaction of the trials. `ProgressTracker` computes it from
all trials, and then keeps it up to date trial by trial.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from hpo_pilot.search.ranking import (
    FIRST_RESULTS,
    Standing,
    best_confirmed_first,
    convergence,
    figures_of_merit,
    front_of,
    hypervolume_of,
    reference_of,
)
from hpo_pilot.search.trials import Spent, Trial, TrialCounts, TrialState

if TYPE_CHECKING:
    from hpo_pilot.search.search import Search

#: Two sums of the same numbers in another order may differ by this share.
_ROUNDING = 1e-6
#: The numbers of a progress that `ProgressTracker` counts one by one.
_COUNTED = (
    *(state.value for state in TrialState),
    *("stopped_early", "confirmations", "confirmations_over", "continuations", "good", "with_std", "with_spread"),
)


@dataclass(frozen=True)
class SearchProgress:
    """The progress of a search.

    Attributes:
        pending: trials in this state, as are `running`, `finished`, `infeasible`, `failed` and `stopped`; confirmation
            runs included.
        stopped_early: trials in `stopped` that a rule stopped; the others were stopped together with the search.
        confirmations: confirmation runs, without those that were stopped together with the search.
        confirmations_over: confirmation runs in `confirmations` that are over.
        continuations: trials that go on from a lower level, without those that were stopped together with the search.
        good: finished trials without confirmation runs.
        with_std: finished trials with a spread over their folds.
        with_spread: trials in `with_std` whose spread is not 0.
        told: number of results.
        generations: number of generations.
        failures_in_a_row: failed trials at the end of the results.
        last_failure: number of the failed trial that ended last; None: none failed.
        first_value: first figure of merit in the order of results; None: there is none.
        best: number of the best trial by its folds; None: there is none, or there are several objectives.
        best_value: its figure of merit.
        best_std: its standard deviation over the folds; None: it has none.
        best_told: its place in the order of results.
        ties: number of trials with `best_value`.
        confirmed: number of the best confirmed trial; None: none was confirmed, or there are several objectives.
        confirmed_value: mean of its confirmation runs.
        confirmed_runs: number of these runs.
        confirmed_told: its place in the order of results.
        job_seconds: run time of all ended attempts of jobs, in seconds.
        metered_seconds: the part of it with measured energy.
        joules: measured energy.
        front: numbers of the trials of the Pareto front, in the order of the first objective; one objective: empty.
        hypervolume: hypervolume of several objectives; None: there is no result.
        reference: its reference point, in the payload's units.
        course: (number of the result, best value so far) at each improvement; with several objectives hypervolumes.
    """

    pending: int = 0
    running: int = 0
    finished: int = 0
    infeasible: int = 0
    failed: int = 0
    stopped: int = 0
    stopped_early: int = 0
    confirmations: int = 0
    confirmations_over: int = 0
    continuations: int = 0
    good: int = 0
    with_std: int = 0
    with_spread: int = 0
    told: int = 0
    generations: int = 0
    failures_in_a_row: int = 0
    last_failure: int | None = None
    first_value: float | None = None
    best: int | None = None
    best_value: float | None = None
    best_std: float | None = None
    best_told: int | None = None
    ties: int = 0
    confirmed: int | None = None
    confirmed_value: float | None = None
    confirmed_runs: int = 0
    confirmed_told: int | None = None
    job_seconds: float = 0.0
    metered_seconds: float = 0.0
    joules: float = 0.0
    front: tuple[int, ...] = ()
    hypervolume: float | None = None
    reference: tuple[float, ...] = ()
    course: tuple[tuple[int, float], ...] = ()

    @property
    def trials(self) -> int:
        """Number of all trials."""
        return self.pending + self.running + self.finished + self.infeasible + self.failed + self.stopped

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state that occurs."""
        found = {state: int(getattr(self, state.value)) for state in TrialState}
        return {state: count for state, count in found.items() if count}

    @property
    def over(self) -> int:
        """Trials that finished, failed or were stopped early."""
        return self.finished + self.infeasible + self.failed + self.stopped_early

    @property
    def counted(self) -> int:
        """Trials that count against the budget."""
        return self.pending + self.running + self.over - self.confirmations - self.continuations

    @property
    def spent(self) -> Spent:
        """Time and energy of the jobs."""
        return Spent(self.job_seconds, self.metered_seconds, self.joules)

    @property
    def best_for_people(self) -> int | None:
        """Number of the best trial, confirmed first; with several objectives the first of the front."""
        if self.front:
            return self.front[0]
        return self.best if self.confirmed is None else self.confirmed

    @property
    def since_best(self) -> int | None:
        """Results since `best_for_people`; None before the first one, and with several objectives."""
        best = self.best_told if self.confirmed is None else self.confirmed_told
        return None if best is None else self.told - best

    def extent(self, planned: int, *, is_done: bool) -> TrialCounts:
        """Returns the counters of a search; `planned`: its `planned_trials`, `is_done`: it needs no more."""
        planned = self.over if is_done else max(planned, self.over)
        return TrialCounts(self.over, planned, self.failed, self.confirmations_over)

    def failed_in_a_row(self, forgiven: int) -> int:
        """Returns the failures at the end of the results, without results up to the one numbered `forgiven`."""
        return max(0, min(self.failures_in_a_row, self.told - forgiven))

    def agrees(self, other: SearchProgress) -> bool:
        """Returns whether both are equal; sums may differ by rounding, and hypervolumes by their sampling."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if each.name == "course" and self.reference:
                continue
            if mine != theirs and not (
                isinstance(mine, float) and isinstance(theirs, float) and math.isclose(mine, theirs, rel_tol=_ROUNDING)
            ):
                return False
        return True


class ProgressTracker:
    """Computes the progress of a search, and keeps it up to date. Call its methods before the change is committed."""

    def __init__(
        self,
        search: Search,
        trials: Iterable[Trial],
        *,
        spent: Spent,
        generations: int,
        confirmed: Iterable[Trial] = (),
    ) -> None:
        """Computes the progress.

        Args:
            search: the search.
            trials: all its trials, results in their order; folds are not needed.
            spent: time and energy of all attempts of its jobs.
            generations: number of its generations.
            confirmed: the trials that have confirmation runs.
        """
        self._search = search
        self._spent = spent
        self._generations = generations
        self._several = len(search.objectives) > 1
        self._counts: Counter[str] = Counter()
        self._running: set[int] = set()
        self._open_continuations = 0
        self._told = self._failures_in_a_row = self._ties = 0
        self._last_failure: Trial | None = None
        self._first: float | None = None
        self._best: Trial | None = None
        self._confirming: list[Trial] = []
        self._course: list[tuple[int, float]] = []
        self._level: float = 0  # the highest level with a result
        self._early: list[Trial] = []  # the first results: the reference point depends on them
        self._confirmed = {trial.number: trial for trial in confirmed}
        self._over: list[Trial] = []  # with several objectives
        self._own_front: list[Standing] = []  # the front without confirmation runs
        self._front: tuple[int, ...] = ()
        self._volume: tuple[float | None, tuple[float, ...]] = (None, ())
        self._front_is_old = False
        for trial in trials:
            self._add(trial)
            if trial.state is TrialState.RUNNING:
                self._start(trial.number)
            elif trial.state.is_over:
                self._end(trial)
        if self._several:
            self._own_front = front_of(search, [trial for trial in self._over if trial.confirms is None])
            self._front_is_old = True
            self._course = _improvements(convergence(search, self._over))

    @classmethod
    def resumed(cls, search: Search, progress: SearchProgress, trials: Mapping[int, Trial]) -> ProgressTracker:
        """Returns a tracker that goes on from a progress, without all trials.

        Args:
            search: the search, with one objective.
            progress: its progress.
            trials: by number the open trials, the confirmation runs and what they confirm, the best trial and the last
                failed one; others may be among them.
        """
        tracker = cls(search, (), spent=progress.spent, generations=progress.generations, confirmed=trials.values())
        tracker._counts.update({name: getattr(progress, name) for name in _COUNTED})
        tracker._running = {number for number, trial in trials.items() if trial.state is TrialState.RUNNING}
        tracker._open_continuations = sum(
            trial.continues is not None and not trial.state.is_over for trial in trials.values()
        )
        tracker._told, tracker._first, tracker._ties = progress.told, progress.first_value, progress.ties
        tracker._failures_in_a_row = progress.failures_in_a_row
        tracker._last_failure = None if progress.last_failure is None else trials[progress.last_failure]
        tracker._confirming = [each for each in trials.values() if each.confirms is not None and each.state.is_over]
        tracker._course = list(progress.course)
        if progress.best is not None:
            tracker._best = trials[progress.best]
            tracker._level = tracker._best.level or 0
        return tracker

    def add(self, trials: Iterable[Trial], confirmed: Iterable[Trial] = ()) -> SearchProgress:
        """Takes a new generation; `confirmed`: the trials that it confirms."""
        self._generations += 1
        self._confirmed.update((trial.number, trial) for trial in confirmed)
        for trial in trials:
            self._add(trial)
        return self.progress

    def change(self, started: Iterable[int], ends: Iterable[Trial], spent: Spent) -> SearchProgress:
        """Takes trials that have started, trials that are over, and the growth of time and energy."""
        self._spent += spent
        for number in started:
            self._start(number)
        for trial in ends:
            self._end(trial)
            if self._several and trial.confirms is None and figures_of_merit(self._search, trial) is not None:
                self._extend_front(trial)
        return self.progress

    def stop_rest(self, spent: Spent) -> SearchProgress:
        """Takes the end of the search: its open trials are stopped; `spent`: growth of time and energy."""
        self._spent += spent
        self._counts["stopped"] += self._counts["pending"] + self._counts["running"]
        self._counts["pending"] = self._counts["running"] = 0
        self._counts["confirmations"] = self._counts["confirmations_over"]
        self._counts["continuations"] -= self._open_continuations
        self._open_continuations = 0
        self._running.clear()
        return self.progress

    def _add(self, trial: Trial) -> None:
        self._counts["pending"] += 1
        self._counts["confirmations"] += trial.confirms is not None
        self._counts["continuations"] += trial.continues is not None
        self._open_continuations += trial.continues is not None

    def _start(self, number: int) -> None:
        if number not in self._running:
            self._running.add(number)
            self._counts["pending"] -= 1
            self._counts["running"] += 1

    def _end(self, trial: Trial) -> None:
        if self._several:
            self._over.append(trial)
        counts = self._counts
        counts["running" if trial.number in self._running else "pending"] -= 1
        self._running.discard(trial.number)
        self._open_continuations -= trial.continues is not None
        counts["continuations"] -= trial.continues is not None and trial.ended_with_search
        counts[trial.state.value] += 1
        if trial.state is TrialState.FINISHED and trial.std is not None:
            counts["with_std"] += 1
            counts["with_spread"] += trial.std != 0.0
        if trial.state is TrialState.FAILED and not _ended_before(trial, self._last_failure):
            self._last_failure = trial
        if trial.confirms is not None:
            counts["confirmations_over"] += trial.is_result
            counts["confirmations"] -= not trial.is_result
            self._confirming.append(trial)
            self._front_is_old = True
            return
        counts["good"] += trial.state is TrialState.FINISHED
        if trial.told is None:
            return
        counts["stopped_early"] += trial.stopped_early
        self._told = max(self._told, trial.told)
        self._failures_in_a_row = self._failures_in_a_row + 1 if trial.state is TrialState.FAILED else 0
        if (figures := figures_of_merit(self._search, trial)) is not None:
            self._take_result(trial, figures[0], trial.told)

    def _take_result(self, trial: Trial, value: float, told: int) -> None:
        level = trial.level or 0
        if level < self._level:
            return
        if level > self._level:  # only results of the highest level count
            self._level, self._first, self._best, self._ties = level, None, None, 0
            self._early, self._own_front = [], []
            self._course.clear()
        if self._first is None:
            self._first = value
        if self._several:
            if len(self._early) < FIRST_RESULTS:
                self._early.append(trial)
            return
        best, sign = self._best, self._search.objective.sign
        if best is None or best.value is None or sign * value < sign * best.value:
            self._best, self._ties = trial, 1
            self._course.append((told, value))
        elif value == best.value:
            self._ties += 1
            self._best = min(best, trial, key=lambda one: one.number)

    def _extend_front(self, trial: Trial) -> None:
        front = front_of(self._search, [*(one.trial for one in self._own_front), trial])
        if any(one.trial is trial for one in front) or len(self._early) < FIRST_RESULTS:
            self._own_front, self._front_is_old = front, True
            if (volume := self._renewed_volume()) is not None and (not self._course or self._course[-1][1] < volume):
                self._course.append((trial.told or 0, volume))

    def _renewed_volume(self) -> float | None:
        search = self._search
        reference = reference_of(search, self._early)
        if reference is None:
            return None
        figures = [one.figures for one in self._own_front]
        self._volume = hypervolume_of(search.objectives, figures, reference), reference
        return self._volume[0]

    @property
    def progress(self) -> SearchProgress:
        """The present progress."""
        best, confirmed = self._best, None
        if self._confirming and not self._several:
            again = {trial.confirms for trial in self._confirming if trial.confirms is not None}
            confirmed_trials = [self._confirmed[number] for number in again]
            standing = best_confirmed_first(self._search, confirmed_trials + self._confirming)
            confirmed = standing if standing is not None and standing.confirmed else None
            if confirmed is not None and (confirmed.trial.level or 0) < self._level:
                confirmed = None
        if self._several and self._front_is_old:
            self._renewed_volume()
            front = self._own_front
            if self._confirming:
                front = front_of(self._search, self._over)
            self._front, self._front_is_old = tuple(one.trial.number for one in front), False
        return SearchProgress(
            **self._counts,
            told=self._told,
            generations=self._generations,
            failures_in_a_row=self._failures_in_a_row,
            last_failure=None if self._last_failure is None else self._last_failure.number,
            first_value=self._first,
            best=None if best is None else best.number,
            best_value=None if best is None else best.value,
            best_std=None if best is None else best.std,
            best_told=None if best is None else best.told,
            ties=self._ties,
            confirmed=None if confirmed is None else confirmed.trial.number,
            confirmed_value=None if confirmed is None else confirmed.value,
            confirmed_runs=0 if confirmed is None else confirmed.runs,
            confirmed_told=None if confirmed is None else confirmed.trial.told,
            job_seconds=self._spent.seconds,
            metered_seconds=self._spent.metered,
            joules=self._spent.joules,
            front=self._front,
            hypervolume=self._volume[0],
            reference=self._volume[1],
            course=tuple(self._course),
        )


def _improvements(steps: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    for told, value in steps:
        if not found or found[-1][1] != value:
            found.append((told, value))
    return found


def _ended_before(trial: Trial, other: Trial | None) -> bool:
    if other is None or trial.ended is None or other.ended is None:
        return False
    return (trial.ended, trial.number) < (other.ended, other.number)
