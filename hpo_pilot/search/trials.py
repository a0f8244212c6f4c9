"""Trials and generations, their costs and counts."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from hpo_pilot.jobs import Attempt
from hpo_pilot.jobs.results import figure_of
from hpo_pilot.search.values import Point

if TYPE_CHECKING:
    from hpo_pilot.search.fidelity import Levels
    from hpo_pilot.search.search import Budget
    from hpo_pilot.search.sections import Resources

EnergySource = Literal["measured", "estimated", "mixed"]

_SECONDS_PER_HOUR = 3600.0
_KWH = 3.6e6  # joules


@dataclass(frozen=True)
class Spent:
    """Run time and measured energy of attempts of jobs, including lost and repeated attempts.

    Attributes:
        seconds: run time.
        metered: part of the run time with measured energy, in seconds.
        joules: measured energy.
    """

    seconds: float = 0.0
    metered: float = 0.0
    joules: float = 0.0

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> Self:
        """Returns the sums over attempts; an attempt without a run time or energy adds nothing to that sum."""
        seconds = metered = joules = 0.0
        for attempt in attempts:
            ran = attempt.seconds or 0.0
            seconds += ran
            if attempt.joules is not None:
                metered, joules = metered + ran, joules + attempt.joules
        return cls(seconds, metered, joules)

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.metered + other.metered, self.joules + other.joules)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.seconds - other.seconds, self.metered - other.metered, self.joules - other.joules)


@dataclass(frozen=True)
class Cost:
    """The cost of jobs.

    Attributes:
        job_seconds: run time of all jobs.
        gpu_hours: run time in hours, times the GPUs of a job.
        core_hours: run time in hours, times the CPU cores of a job.
        energy_kwh: energy in kWh; None: not measured, and no estimate.
        energy_source: source of the energy; mixed: part of it is measured, the rest is estimated.
        carbon: emissions of the site's electricity, in kg CO2e per kWh; None: not known.
    """

    job_seconds: float
    gpu_hours: float
    core_hours: float
    energy_kwh: float | None
    energy_source: EnergySource | None
    carbon: float | None = None

    @property
    def co2_kg(self) -> float | None:
        """Emissions of the energy, in kg CO2e; None: not known."""
        return None if self.carbon is None or self.energy_kwh is None else self.carbon * self.energy_kwh


#: The cost of nothing.
NO_COST = Cost(0.0, 0.0, 0.0, None, None)


@dataclass(frozen=True)
class Price:
    """The cost of one second of a job.

    Attributes:
        gpus: GPUs of the whole job.
        cores: CPU cores of the whole job.
        watts: estimated power of the whole job; None: not known.
        carbon: as in `Cost`.
    """

    gpus: float
    cores: int
    watts: float | None = None
    carbon: float | None = None

    def cost(self, spent: Spent) -> Cost:
        """Returns the cost of the attempts in `spent`."""
        hours = spent.seconds / _SECONDS_PER_HOUR
        energy, source = self._energy(spent)
        return Cost(spent.seconds, hours * self.gpus, hours * self.cores, energy, source, self.carbon)

    def _energy(self, spent: Spent) -> tuple[float | None, EnergySource | None]:
        # Sums in a different order may differ in the last digits.
        unmetered = max(0.0, spent.seconds - spent.metered)
        if unmetered <= 1e-9 * spent.seconds:
            return (spent.joules / _KWH, "measured") if spent.metered else (0.0, None)
        if self.watts is None:
            return None, None
        joules = spent.joules + self.watts * unmetered
        return joules / _KWH, "mixed" if spent.metered else "estimated"


def measured_joules(metrics: Mapping[str, Any]) -> float | None:
    """Returns the energy of an attempt as measured by the payload runner or the payload; None: not measured."""
    joules = figure_of(metrics, "energy_joules")
    return joules if joules is not None and joules >= 0 else None


def seconds_allowed(budget: Budget, resources: Resources) -> float:
    """Returns the total run time of all jobs, in seconds, that GPU-hours and core-hours allow; infinity: no limit.

    GPU-hours do not limit jobs without GPUs.
    """
    return min(hours_allowed(budget, resources).values(), default=math.inf)


def hours_allowed(budget: Budget, resources: Resources) -> dict[str, float]:
    """Returns the allowed run time, in seconds, for each given limit (`gpu_hours`, `core_hours`) by its name."""
    limits = {"gpu_hours": (budget.gpu_hours, resources.gpus), "core_hours": (budget.core_hours, resources.all_cores)}
    return {
        name: _SECONDS_PER_HOUR * hours / each for name, (hours, each) in limits.items() if hours is not None and each
    }


class TrialState(StrEnum):
    """State of a trial."""

    PENDING = "pending"  #: its jobs may be submitted, waiting, or lost and submitted again
    RUNNING = "running"  #: at least one of its jobs has started
    FINISHED = "finished"  #: enough folds gave a figure of merit
    INFEASIBLE = "infeasible"  #: finished, but beyond a limit on a measured figure, or not known to be within it
    FAILED = "failed"  #: it will give no figure of merit; `Trial.error` says why
    STOPPED = "stopped"  #: ended on purpose before its end (stop, early stopping); not a failure

    @property
    def is_over(self) -> bool:
        """True if the trial has ended."""
        return self in ENDED_TRIALS


ENDED_TRIALS = (TrialState.FINISHED, TrialState.INFEASIBLE, TrialState.FAILED, TrialState.STOPPED)


@dataclass(frozen=True)
class Fold:
    """One fold of a trial.

    Attributes:
        number: number of the fold, from 0.
        attempts: its attempts, oldest first; at least one.
        earlier: number of attempts before these that were not read: a JSON document has only the one that counts.
    """

    number: int
    attempts: tuple[Attempt, ...]
    earlier: int = 0

    @property
    def result(self) -> Attempt:
        """The attempt that counts: the first with figures of merit, else the last that has begun."""
        if len(self.attempts) == 1:
            return self.attempts[0]
        begun = self._begun
        return next((attempt for attempt in begun if attempt.values), begun[-1])

    @property
    def attempt(self) -> int:
        """Number of `result` among the attempts that have begun, from 1."""
        if len(self.attempts) == 1:
            return self.earlier + 1
        return self.earlier + self._begun.index(self.result) + 1

    @property
    def _begun(self) -> tuple[Attempt, ...]:
        return tuple(attempt for attempt in self.attempts if attempt.has_begun) or self.attempts

    @property
    def values(self) -> tuple[float, ...]:
        """One figure of merit for each objective, as reported; empty if there is none."""
        return self.result.values

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Further figures that the runner measured or the payload reported."""
        return self.result.metrics or {}

    @property
    def value(self) -> float | None:
        """The figure of merit of the first objective; None if there is none."""
        return self.result.value


@dataclass(frozen=True)
class EarlyStop:
    """The decision to stop a trial early, and the trial's last value.

    Attributes:
        look: number of the comparison of intermediate values that decided it.
        reason: reason in words.
        step: step of the decision or, after the trial has stopped, the last reported step.
        value: value at that step, the mean of the folds as reported. It is not a figure of merit. None: not a finite
            number, because the training diverged.
        projected: estimated final value for each objective, as reported; None while the trial runs, and if there is no
            estimate.
    """

    look: int
    reason: str
    step: int
    value: float | None
    projected: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One hyper-parameter point and its figures of merit.

    Attributes:
        number: number in the search, from 1.
        generation: number of its generation, from 1.
        values: for each objective the mean of the folds' figures of merit, as reported (not sign-flipped); empty: none.
        stds: for each objective the standard deviation of the folds (sample, n - 1); empty for fewer than two folds.
        folds: its folds with their attempts; empty where they were not read (`Store.trials(folds=False)`).
        good: number of its good folds if the folds were not read; None: it was not read either.
        confirms: for a confirmation run, the number of the trial that it repeats; else None.
        retries: for a retry that a user requested, the number of the failed trial; else None.
        level: the level that it is trained to, as 9 epochs; None: the search has no levels.
        continues: number of the trial of the level below that its training goes on from; None: it starts anew.
        from_start: whether a job of it found no checkpoint of that trial, and trained from the start.
        promoted: number of the last trial that goes on from it, when it was read from the store; None: there is none.
        told: position in the order of results, from 1; None while it runs.
        stop: the decision to stop it early; None for other trials.
    """

    number: int
    generation: int
    point: Point
    state: TrialState = TrialState.PENDING
    _: KW_ONLY
    values: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    folds: tuple[Fold, ...] = ()
    error: str | None = None
    seed: int = 0
    confirms: int | None = None
    retries: int | None = None
    level: float | None = None
    continues: int | None = None
    from_start: bool = False
    promoted: int | None = None
    told: int | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    stop: EarlyStop | None = None
    good: int | None = None

    @property
    def value(self) -> float | None:
        """The value of the first objective; None if there is none."""
        return self.values[0] if self.values else None

    @property
    def std(self) -> float | None:
        """The standard deviation of the first objective; None if there is none."""
        return self.stds[0] if self.stds else None

    @property
    def good_folds(self) -> int:
        """Number of folds in the mean."""
        return sum(bool(fold.values) for fold in self.folds) if self.folds else self.good or 0

    @property
    def without_folds(self) -> Trial:
        """The trial without its folds."""
        return replace(self, good=self.good_folds, folds=())

    def mean_metric(self, name: str) -> float | None:
        """Returns the mean of a metric over the folds that have it as a finite number; None: none has."""
        figures = [figure for fold in self.folds if (figure := figure_of(fold.metrics, name)) is not None]
        return statistics.fmean(figures) if figures else None

    @property
    def spent(self) -> Spent:
        """Time and energy of all ended attempts of its jobs."""
        return Spent.of(attempt for fold in self.folds for attempt in fold.attempts)

    @property
    def standard_errors(self) -> tuple[float, ...]:
        """The standard errors of `values`, which folds give; empty: not known."""
        good = self.good_folds
        return tuple(std / good**0.5 for std in self.stds) if good > 1 else ()

    @property
    def fold_seconds(self) -> float | None:
        """Mean run time of its folds, in seconds; None: not measured.

        Only results of first attempts count: a later one may have gone on from a checkpoint.
        """
        attempts = (attempt for fold in self.folds for attempt in fold.attempts)
        measured = [one.seconds for one in attempts if one.is_final and one.attempt == 1 and one.seconds]
        return statistics.fmean(measured) if measured else None

    def shown_state(self, levels: Levels | None) -> str:
        """Returns the state that users see: `paused` if it finished below the highest level and was not promoted."""
        if levels is None or self.state is not TrialState.FINISHED or self.confirms is not None:
            return self.state.value
        return "paused" if (self.level or 0) < levels.high and self.promoted is None else self.state.value

    @property
    def counts(self) -> bool:
        """True if it counts against the budget: neither a repetition nor a later level, nor stopped with its search."""
        return self.trains_point and self.continues is None

    @property
    def trains_point(self) -> bool:
        """True if it trains a point of the search: neither a confirmation run, nor stopped together with its search."""
        return self.confirms is None and not self.ended_with_search

    @property
    def ended_with_search(self) -> bool:
        """True if it was stopped together with its search."""
        return self.state is TrialState.STOPPED and self.told is None

    @property
    def stopped_early(self) -> bool:
        """True if a rule stopped it: this is a result. A trial stopped together with its search is not."""
        return self.state is TrialState.STOPPED and self.told is not None

    @property
    def is_result(self) -> bool:
        """True if it finished, failed or was stopped early; False if it was stopped together with its search."""
        return self.state.is_over and not self.ended_with_search


@dataclass(frozen=True)
class Generation:
    """Trials asked for together.

    Attributes:
        number: number in the search, from 1.
        history: number of results told to the optimizer before it was asked.
        pending: numbers of the trials that were not over then.
        trials: numbers of its own trials.
        asked: number of points requested from the optimizer; None: it was not asked (start points, confirmation runs).
        budget: `budget.trials` of the search then; None: not recorded.
    """

    number: int
    history: int
    pending: tuple[int, ...]
    trials: tuple[int, ...]
    asked: int | None = None
    budget: int | None = None


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns mean and sample standard deviation of the folds' figures; None as the deviation of a single figure.

    Both are finite for all finite figures, also near the largest float.
    """
    n = len(values)
    if n == 1:
        return values[0], None
    scale = max(1.0, max(map(abs, values)) / 1e150)
    scaled = [value / scale for value in values]
    largest = sys.float_info.max
    return statistics.fmean(scaled) * scale, min(statistics.stdev(scaled) * scale, largest)


def means_and_stds(folds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns means and standard deviations for each objective; `folds` has one tuple of figures for each fold."""
    pairs = [mean_and_std(figures) for figures in zip(*folds, strict=True)]
    return tuple(mean for mean, _ in pairs), tuple(std for _, std in pairs if std is not None)


@dataclass(frozen=True)
class Gain:
    """The improvement that a search found.

    Attributes:
        first: first figure of merit in the order of results; None for several objectives.
        best: best figure of merit; None for several objectives.
        gain: improvement from first to best; for several objectives the hypervolume of the front.
        per_gpu_hour: gain divided by the GPU-hours of all jobs; None: no GPU-hours.
        per_core_hour: gain divided by the core-hours of all jobs; None: no core-hours.
    """

    first: float | None
    best: float | None
    gain: float
    per_gpu_hour: float | None
    per_core_hour: float | None


def gain_of(first: float, best: float, sign: int, cost: Cost) -> Gain:
    """Returns the gain of a search with one objective; `sign` is +1 to minimize, -1 to maximize."""
    gain = sign * (first - best)
    return Gain(first, best, gain, *_per_hour(gain, cost))


def volume_gain(volume: float, cost: Cost) -> Gain:
    """Returns the gain of a search with several objectives: the volume that its front dominates."""
    return Gain(None, None, volume, *_per_hour(volume, cost))


def _per_hour(gain: float, cost: Cost) -> tuple[float | None, float | None]:
    gpu_hours, core_hours = cost.gpu_hours, cost.core_hours
    return gain / gpu_hours if gpu_hours > 0 else None, gain / core_hours if core_hours > 0 else None


@dataclass(frozen=True)
class TrialCounts:
    """The counters of a search.

    Attributes:
        over: trials that finished, failed or were stopped early, including confirmation runs, without trials stopped
            together with their search.
        planned: expected number of trials, at least `over`; for a search that is over the same as `over`.
        failed: failed trials, including those tried again: the retry is another trial.
        confirmations: confirmation runs in `over`, which do not count against the budget.
    """

    over: int
    planned: int
    failed: int
    confirmations: int


def planned_trials(
    trials: int,
    objectives: int,
    confirmed: int,
    repeats: int,
    levels: Levels | None = None,
    fidelity: float | None = None,
) -> int:
    """Returns the number of trials that a search will have, confirmation runs and promotions included.

    Args:
        trials: trials of its budget.
        objectives: number of objectives.
        confirmed: trials to confirm.
        repeats: confirmation runs of each.
        levels: the levels of the training.
        fidelity: limit of the sum of the levels; None: there is none.
    """
    trials = trials if levels is None else sum(levels.planned(trials, fidelity))
    return trials + (confirmed * repeats if objectives == 1 else 0)
