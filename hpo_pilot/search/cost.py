"""What jobs cost: time, GPU-hours, core-hours, energy; and how much of it a budget allows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from hpo_pilot.search.limits import MOST_JOBS_OUT, MOST_RUNS_PER_TASK
from hpo_pilot.search.misfit import Misfit
from hpo_pilot.search.resources import Resources
from hpo_pilot.search.search import Budget, Folds

EnergySource = Literal["measured", "estimated", "mixed"]

_HOUR = 3600.0
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
        hours = spent.seconds / _HOUR
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
    return {name: _HOUR * hours / each for name, (hours, each) in limits.items() if hours is not None and each}


def width_misfits(budget: Budget, resources: Resources, folds: Folds) -> list[Misfit]:
    """Counts that are too large together, each within its own maximum; paths are those of a search file."""
    misfits = []
    per_job, k = resources.trials_per_job, folds.k
    queued = 0 if budget.queued == "auto" else budget.queued
    jobs = -(-(budget.parallel + queued) // per_job) * k
    if jobs > MOST_JOBS_OUT:
        what = "budget.parallel" + (" and budget.queued" if queued else "") + (f" with {k} folds" if k > 1 else "")
        message = f"{what} would have {jobs} jobs out at once; at most {MOST_JOBS_OUT} can be"
        hint = f"use {max(1, MOST_JOBS_OUT // k * per_job - queued)} or less" if queued < MOST_JOBS_OUT // k else ""
        misfits.append(Misfit(("budget", "parallel"), message, hint))
    if k * per_job > MOST_RUNS_PER_TASK:
        message = f"{per_job} trials of {k} folds would go out together; at most {MOST_RUNS_PER_TASK} folds can"
        misfits.append(Misfit(("resources", "trials_per_job"), message, f"use {max(1, MOST_RUNS_PER_TASK // k)}"))
    return misfits


def budget_misfits(budget: Budget, resources: Resources, folds: Folds) -> list[Misfit]:
    """Limits that are too low for a single trial, were it to take the minutes asked for; paths start at a limit."""
    misfits = []
    hours = folds.k * resources.minutes / 60 / resources.trials_per_job
    for name, each, unit in (
        ("gpu_hours", resources.gpus, "GPU-hours"),
        ("core_hours", resources.all_cores, "core-hours"),
    ):
        limit = getattr(budget, name)
        if limit is not None and limit < hours * each:
            message = f"one trial may take {hours * each:.4g} {unit}, by resources.minutes: {limit:g} allow none"
            misfits.append(Misfit((name,), message, f"allow {hours * each:.4g} or more, or fewer resources.minutes"))
    return misfits
