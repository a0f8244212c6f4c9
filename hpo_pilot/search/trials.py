"""Trials and generations, their costs and counts, and the estimated end of a search."""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from hpo_pilot.search.limits import MOST_JOBS_OUT, MOST_RUNS_PER_TASK
from hpo_pilot.search.mistakes import Mistake
from hpo_pilot.search.search import Budget, Folds, Search
from hpo_pilot.search.sections import Resources
from hpo_pilot.search.values import Point

EnergySource = Literal["measured", "estimated", "mixed"]

_SECONDS_PER_HOUR = 3600.0
_KWH = 3.6e6  # joules


@dataclass(frozen=True)
class Spent:
    """What attempts of jobs took, those that were lost or repeated included.

    Attributes:
        seconds: that they ran.
        metered: those of the seconds for which the energy was measured.
        joules: the energy that was measured, in them.
    """

    seconds: float = 0.0
    metered: float = 0.0
    joules: float = 0.0

    def and_one(self, seconds: float | None, joules: float | None) -> Self:
        """With one attempt more; None: not known."""
        ran = seconds or 0.0
        if joules is None:
            return type(self)(self.seconds + ran, self.metered, self.joules)
        return type(self)(self.seconds + ran, self.metered + ran, self.joules + joules)


#: That of a trial before its first attempt has ended.
NOTHING_SPENT = Spent()


@dataclass(frozen=True)
class Cost:
    """What that comes to.

    Attributes:
        job_seconds: run time of all jobs.
        gpu_hours: that times the GPUs of a job.
        core_hours: that times the CPU cores of a job.
        energy_kwh: in kWh; None: neither measured nor to be estimated.
        energy_source: where that comes from; mixed: only part of it was measured, the rest is estimated.
    """

    job_seconds: float
    gpu_hours: float
    core_hours: float
    energy_kwh: float | None
    energy_source: EnergySource | None


#: The cost of nothing.
NO_COST = Cost(0.0, 0.0, 0.0, None, None)


@dataclass(frozen=True)
class Price:
    """What a second of one of a search's jobs takes.

    Attributes:
        gpus: of the whole job.
        cores: of the whole job.
        watts: estimated; None: nobody knows.
    """

    gpus: int
    cores: int
    watts: float | None = None

    def cost(self, spent: Spent) -> Cost:
        """The cost of jobs that took so much."""
        hours = spent.seconds / _SECONDS_PER_HOUR
        energy, source = self._energy(spent)
        return Cost(spent.seconds, hours * self.gpus, hours * self.cores, energy, source)

    def _energy(self, spent: Spent) -> tuple[float | None, EnergySource | None]:
        # Sums in another order may differ in the last digits.
        unmetered = max(0.0, spent.seconds - spent.metered)
        if unmetered <= 1e-9 * spent.seconds:
            return (spent.joules / _KWH, "measured") if spent.metered else (0.0, None)
        if self.watts is None:
            return None, None
        joules = spent.joules + self.watts * unmetered
        return joules / _KWH, "mixed" if spent.metered else "estimated"


def measured_joules(metrics: Mapping[str, Any]) -> float | None:
    """The energy of an attempt, by its metrics, where the payload runner or the payload itself measured it."""
    joules = metrics.get("energy_joules")
    if isinstance(joules, bool) or not isinstance(joules, int | float):
        return None
    return float(joules) if 0 <= joules < math.inf else None


def seconds_allowed(budget: Budget, resources: Resources) -> float:
    """The run time in seconds of all jobs together that the budget's GPU-hours and core-hours allow; infinity: any.

    GPU-hours are no limit for jobs without GPUs.
    """
    return min(hours_allowed(budget, resources).values(), default=math.inf)


def hours_allowed(budget: Budget, resources: Resources) -> dict[str, float]:
    """The same for each limit that there is, in seconds: `gpu_hours` and `core_hours`."""
    limits = {"gpu_hours": (budget.gpu_hours, resources.gpus), "core_hours": (budget.core_hours, resources.all_cores)}
    return {
        name: _SECONDS_PER_HOUR * hours / each for name, (hours, each) in limits.items() if hours is not None and each
    }


def width_mistakes(budget: Budget, resources: Resources, folds: Folds) -> list[Mistake]:
    """Counts that are too large together, each within its own maximum; paths are those of a search file."""
    mistakes = []
    per_job, k = resources.trials_per_job, folds.k
    queued = 0 if budget.queued == "auto" else budget.queued
    jobs = -(-(budget.parallel + queued) // per_job) * k
    if jobs > MOST_JOBS_OUT:
        what = "budget.parallel" + (" and budget.queued" if queued else "") + (f" with {k} folds" if k > 1 else "")
        message = f"{what} would have {jobs} jobs out at once; at most {MOST_JOBS_OUT} can be"
        hint = f"use {max(1, MOST_JOBS_OUT // k * per_job - queued)} or less" if queued < MOST_JOBS_OUT // k else ""
        mistakes.append(Mistake(("budget", "parallel"), message, hint))
    if k * per_job > MOST_RUNS_PER_TASK:
        message = f"{per_job} trials of {k} folds would go out together; at most {MOST_RUNS_PER_TASK} folds can"
        mistakes.append(Mistake(("resources", "trials_per_job"), message, f"use {max(1, MOST_RUNS_PER_TASK // k)}"))
    return mistakes


def budget_mistakes(budget: Budget, resources: Resources, folds: Folds) -> list[Mistake]:
    """Limits that are too low for a single trial, were it to take the minutes asked for; paths start at a limit."""
    mistakes = []
    hours = folds.k * resources.minutes / 60 / resources.trials_per_job
    for name, each, unit in (
        ("gpu_hours", resources.gpus, "GPU-hours"),
        ("core_hours", resources.all_cores, "core-hours"),
    ):
        limit = getattr(budget, name)
        if limit is not None and limit < hours * each:
            message = f"one trial may take {hours * each:.4g} {unit}, by resources.minutes: {limit:g} allow none"
            mistakes.append(Mistake((name,), message, f"allow {hours * each:.4g} or more, or fewer resources.minutes"))
    return mistakes


class TrialState(StrEnum):
    """The life of a trial."""

    PENDING = "pending"  #: asked for; its jobs may be submitted, waiting or lost and on their way again
    RUNNING = "running"  #: at least one of its jobs has started
    FINISHED = "finished"  #: enough folds gave a figure of merit
    FAILED = "failed"  #: it will give no figure of merit; `Trial.error` says why
    STOPPED = "stopped"  #: ended on purpose before its end (stop, early stopping); not a failure

    @property
    def is_over(self) -> bool:
        """True where nothing more will come."""
        return self in (TrialState.FINISHED, TrialState.FAILED, TrialState.STOPPED)


@dataclass(frozen=True)
class FoldResult:
    """The last word on one fold of a trial.

    Attributes:
        fold: counted from 0.
        value: the figure of merit as the payload reported it; None where there is none. Of several the first.
        values: of several objectives, the figure of each; else None.
        error: why there is no value; None where there is one.
        log_tail: the end of the payload's log, for failed folds (at most 64 kB).
        attempt: how many times the fold was started, from 1.
        seconds: the payload's run time.
        metadata: what the payload itself put into its metadata (`payload.file_names.metadata`).
    """

    fold: int
    value: float | None = None
    error: str | None = None
    log_tail: str | None = None
    attempt: int = 1
    seconds: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    panda_id: int | None = None
    node: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    values: tuple[float, ...] | None = None

    @property
    def figures(self) -> tuple[float, ...] | None:
        """One figure of merit for each objective; None where there is none."""
        return (self.value,) if self.values is None and self.value is not None else self.values


@dataclass(frozen=True)
class EarlyStop:
    """Why a trial was told to stop before its end, and how far it came.

    Attributes:
        look: which look at the values of the search's trials decided it.
        reason: in words.
        step: where it was judged or, once it has stopped, the last step that it reported.
        value: its value there, the mean of its folds, as reported: never to be taken for a figure of merit. None: it
            is no finite number, for the training diverged.
        projected: what it would probably have come to, for each objective, as reported; None while it runs, and where
            that is nothing.
    """

    look: int
    reason: str
    step: int
    value: float | None
    projected: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Trial:
    """One hyper-parameter point and its figure of merit.

    Attributes:
        number: counted from 1 within the search.
        generation: the generation it was asked for in, counted from 1.
        value: mean of the folds' figures of merit, as reported (not sign-flipped). Of several the first.
        std: standard deviation of the folds (sample, n - 1); None for fewer than two. Of several the first.
        values: of several objectives, the value of each; else None.
        stds: of several objectives, the standard deviation of each; else None.
        confirms: for a confirmation run, the number of the trial that it repeats; else None.
        retries: the number of the failed trial whose point it tries again because a user asked; else None.
        told: its place in the order of results, from 1; None while it runs.
        stop: of a trial that was told to stop early; None for all others.
        spent: what all attempts of all its jobs took that are over.
    """

    number: int
    generation: int
    point: Point
    state: TrialState = TrialState.PENDING
    value: float | None = None
    std: float | None = None
    folds: tuple[FoldResult, ...] = ()
    error: str | None = None
    seed: int = 0
    confirms: int | None = None
    told: int | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None
    values: tuple[float, ...] | None = None
    stds: tuple[float, ...] | None = None
    stop: EarlyStop | None = None
    spent: Spent = NOTHING_SPENT
    retries: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it takes a place in the budget: no confirmation run, and not stopped together with its search."""
        return self.confirms is None and (self.state is not TrialState.STOPPED or self.stopped_early)

    @property
    def stopped_early(self) -> bool:
        """Whether a rule ended it. One that was stopped with its search counts for nothing; this one is a result."""
        return self.state is TrialState.STOPPED and self.told is not None

    @property
    def is_result(self) -> bool:
        """Whether it is over by itself: finished, failed or stopped early, and not stopped together with its search."""
        return self.state.is_over and (self.state is not TrialState.STOPPED or self.stopped_early)

    @property
    def figures(self) -> tuple[float, ...] | None:
        """One figure of merit for each objective; None where there is none."""
        return (self.value,) if self.values is None and self.value is not None else self.values

    @property
    def spreads(self) -> tuple[float, ...] | None:
        """The standard deviation of each of `figures`; None where there is none."""
        return (self.std,) if self.stds is None and self.std is not None else self.stds


@dataclass(frozen=True)
class Generation:
    """Trials asked for together.

    Attributes:
        number: counted from 1 within the search.
        history: how many results had been told when it was asked for (its cut of the history).
        pending: the numbers of the trials that were out then.
        trials: the numbers of its own trials.
        asked: how many points the optimizer was asked for; None: it was not asked (start points, confirmation runs).
        budget: the trials of the search's budget then; None: not recorded.
    """

    number: int
    history: int
    pending: tuple[int, ...]
    trials: tuple[int, ...]
    asked: int | None = None
    budget: int | None = None


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation of the folds' figures; no deviation for a single one.

    Both are finite for any finite figures, those near the largest float included.
    """
    n = len(values)
    if n == 1:
        return values[0], None
    scale = max(1.0, max(map(abs, values)) / 1e150)
    scaled = [value / scale for value in values]
    largest = sys.float_info.max
    return statistics.fmean(scaled) * scale, min(statistics.stdev(scaled) * scale, largest)


def means_and_stds(folds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """The same of figures of several objectives: one tuple a fold; means and deviations, one for each objective."""
    pairs = [mean_and_std(figures) for figures in zip(*folds, strict=True)]
    stds = tuple(std for _, std in pairs if std is not None)
    return tuple(mean for mean, _ in pairs), stds or None


@dataclass(frozen=True)
class Gain:
    """What a search gained.

    Attributes:
        first: its first figure of merit, in the order of results; of several objectives None.
        best: its best one; of several objectives None.
        gain: by how much the best is better than the first; of several objectives the hypervolume of the front.
        per_gpu_hour: that, by the GPU-hours of all jobs; None: there were none.
        per_core_hour: that, by their core-hours; None: there were none.
    """

    first: float | None
    best: float | None
    gain: float
    per_gpu_hour: float | None
    per_core_hour: float | None


def gain_of(first: float, best: float, sign: int, cost: Cost) -> Gain:
    """The gain of a search with one objective; `sign`: +1 where smaller is better, -1 where larger is."""
    gain = sign * (first - best)
    return Gain(first, best, gain, *_per_hour(gain, cost))


def volume_gain(volume: float, cost: Cost) -> Gain:
    """The gain of a search with several objectives: the volume that its front dominates."""
    return Gain(None, None, volume, *_per_hour(volume, cost))


def _per_hour(gain: float, cost: Cost) -> tuple[float | None, float | None]:
    gpu_hours, core_hours = cost.gpu_hours, cost.core_hours
    return gain / gpu_hours if gpu_hours > 0 else None, gain / core_hours if core_hours > 0 else None


@dataclass(frozen=True)
class TrialCounts:
    """The counters of a search.

    Attributes:
        over: trials that finished, failed or were stopped early. Confirmation runs count; trials that were stopped
            together with their search do not.
        planned: how many there will be, as far as one can tell; of a search that is over, as many as are over.
        failed: trials that failed, those included that were tried again: the repetition is a trial of its own.
        confirmations: how many of those that are over are confirmation runs, which come on top of the budget.
    """

    over: int
    planned: int
    failed: int
    confirmations: int


def trial_counts(search: Search, *, is_over: bool, over: int, failed: int, confirmations: int) -> TrialCounts:
    """The counters of a search, `planned` filled in.

    Args:
        search: the search.
        is_over: whether it has ended.
        over: as in `Extent`.
        failed: as in `Extent`.
        confirmations: as in `Extent`.
    """
    planned = over
    if not is_over:
        confirming = search.confirm.top * search.confirm.repeats if len(search.objectives) == 1 else 0
        planned = max(search.budget.trials + confirming, over)
    return TrialCounts(over, planned, failed, confirmations)


def trial_counts_of(search: Search, trials: Iterable[Trial], *, is_over: bool) -> TrialCounts:
    """The counters of a search, from all its trials; folds are not needed."""
    over = [trial for trial in trials if trial.is_result]
    failed = sum(trial.state is TrialState.FAILED for trial in over)
    confirmations = sum(trial.confirms is not None for trial in over)
    return trial_counts(search, is_over=is_over, over=len(over), failed=failed, confirmations=confirmations)


#: By how many of the last results the pace is judged, at least; of a wide search by two rounds of its slots.
_RESULTS = 10
_ROUNDS = 2

#: A time without results that is longer than so many trials: nothing ran, as in a pause, and it says nothing of the
#: pace. The time since the last result counts all the same: who waits wants to see that it drags on.
_IDLE = 3.0

#: Fewer results say nothing of the pace; then it is judged by how long they took.
_LEAST = 3

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


@dataclass(frozen=True)
class Span:
    """From when to when a trial was out, in seconds since the epoch."""

    begun: float
    ended: float


@dataclass(frozen=True)
class Estimate:
    """When a search will probably be over.

    Attributes:
        seconds: from now.
        basis: by what that is judged, in words.
        limit: what of the budget ends it then: `trials`, `hours`, `gpu_hours` or `core_hours`.
    """

    seconds: float
    basis: str
    limit: str = "trials"

    @property
    def text(self) -> str:
        """The time in words."""
        return duration_text(self.seconds)


def spans_of(trials: Iterable[Trial], limit: int) -> list[Span]:
    """The spans of the last trials that are over by themselves, in the order in which they ended; at most so many."""
    ended = [
        (trial.ended, trial)
        for trial in trials
        if trial.ended is not None and (trial.state is not TrialState.STOPPED or trial.stopped_early)
    ]
    last = heapq.nlargest(limit, ended, key=lambda each: (each[0], each[1].number))
    return [
        Span((trial.started or trial.submitted or end).timestamp(), end.timestamp()) for end, trial in reversed(last)
    ]


def window(search: Search) -> int:
    """How many of the last results `estimate` looks at; more make no difference."""
    return max(_RESULTS, _ROUNDS * search.budget.parallel)


def estimate(
    search: Search,
    spans: Sequence[Span],
    *,
    over: int,
    confirmed: int = 0,
    out: Sequence[float] = (),
    job_seconds: float,
    clock: float | None,
    now: float,
) -> Estimate | None:
    """When a running search will probably be over; None while nobody can tell, for it has no result.

    By the pace of the last results, or while they are few by how long they took; sooner where the hours or GPU-hours
    of its budget are spent before its trials.

    Args:
        search: the search.
        spans: of its last trials, in the order in which they ended; at least `window` of them, if there are so many.
        over: how many trials of the budget are over.
        confirmed: how many confirmation runs are over.
        out: when those trials began that run, in seconds since the epoch.
        job_seconds: what all its jobs ran so far.
        clock: when its hours began, in seconds since the epoch.
        now: seconds since the epoch.
    """
    if not spans:
        return None
    budget, spans = search.budget, spans[-window(search) :]
    left: float = max(0, budget.trials - over) + max(0, search.confirm.top * search.confirm.repeats - confirmed)
    each = statistics.fmean(max(0.0, span.ended - span.begun) for span in spans)
    limit = "trials"
    for name, allowed in hours_allowed(budget, search.resources).items():
        # So many trials more, if they cost what the others did.
        affordable = max(0.0, (allowed - job_seconds) * max(1, over + confirmed) / job_seconds) if job_seconds else left
        if affordable < left:
            left, limit = affordable, name
    seconds, basis = _rest(left, spans, each, budget.parallel, now)
    if limit != "trials":
        unit = limit.replace("_", "-").replace("gpu", "GPU")
        basis = f"its {unit} last for about {left:.0f} more trials, {basis}"
    seconds = max(seconds, each - (now - max(out)) if out else 0.0)  # what began last has its time before it
    if budget.hours is not None and clock is not None:
        until = max(0.0, clock + budget.hours * _HOUR - now) + each
        if until < seconds:
            seconds, basis, limit = until, f"its {budget.hours:g} hours are over then, and what is out ends", "hours"
    return Estimate(max(0.0, seconds), basis, limit)


def _rest(left: float, spans: Sequence[Span], each: float, parallel: int, now: float) -> tuple[float, str]:
    """How many seconds so many trials take, and by what that is judged."""
    ends = [span.ended for span in spans]
    since = max(0.0, now - ends[-1])
    if len(ends) < parallel + _LEAST:
        gap = each / min(parallel, max(1.0, left))
        basis = f"trials take {duration_text(each)}, {parallel} at once"
    else:
        # Trials that began together end together: from one result to the next but `parallel` it is one round.
        longest = max(_IDLE * each, 1.0)
        clock = list(itertools.accumulate((min(b - a, longest) for a, b in itertools.pairwise(ends)), initial=0.0))
        gap = statistics.fmean(b - a for a, b in zip(clock, clock[parallel:], strict=False)) / parallel
        basis = f"at the pace of the last {len(ends)} results"
    due = gap * parallel  # after so long the next round should have come
    return left * gap - min(since, gap) + max(0.0, since - due), basis


def duration_text(seconds: float) -> str:
    """A duration in words, in its two largest units: `2 h 5 min`."""
    whole = max(1, round(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    if whole < 2 * _DAY:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} days" + (f" {hours} h" if hours else "")
