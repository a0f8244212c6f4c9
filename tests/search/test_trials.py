"""Trials: the attempt that counts, cost and gain."""

from __future__ import annotations

import math

import pytest

from hpo_pilot.jobs import Attempt, JobState
from hpo_pilot.search import Budget, Fold, Folds, Resources, Trial, TrialState
from hpo_pilot.search.search import budget_mistakes
from hpo_pilot.search.trials import Price, Spent, gain_of, measured_joules, seconds_allowed, volume_gain
from tests.made import made_attempt


def attempt(state: JobState, *values: float, seconds: float | None = 1.0, attempt: int = 1) -> Attempt:
    return made_attempt(1, 1, 0, attempt, state, values=values, seconds=seconds)


LOST, GOOD, BAD = attempt(JobState.FAILED), attempt(JobState.FINISHED, 0.5, attempt=2), attempt(JobState.FINISHED)
NOT_BEGUN = attempt(JobState.NOT_RUN, seconds=None)


@pytest.mark.parametrize(
    ("attempts", "result", "number"),
    [
        ((LOST, GOOD), GOOD, 2),
        ((GOOD, LOST), GOOD, 1),
        ((LOST, BAD), BAD, 2),
        ((NOT_BEGUN, GOOD), GOOD, 1),
        ((NOT_BEGUN,), NOT_BEGUN, 1),
    ],
)
def test_the_first_attempt_with_figures_counts_else_the_last_that_has_begun(attempts, result, number):
    fold = Fold(0, attempts)
    assert (fold.result, fold.attempt, fold.values) == (result, number, result.values)


def test_a_trial_sums_its_attempts_and_counts_its_good_folds():
    folds = (Fold(0, (LOST, GOOD)), Fold(1, (BAD,)))
    trial = Trial(1, 1, {}, TrialState.FINISHED, values=(0.5, 3.0), folds=folds)
    assert (trial.value, trial.std, trial.good_folds, trial.spent.seconds) == (0.5, None, 1, 3.0)


# --- cost and gain ---


BOTH = Resources(nodes=2, gpus_per_node=4, cores=16, minutes=30)


def test_hours_of_all_cores_and_gpus():
    cost = Price(BOTH.gpus, BOTH.all_cores).cost(Spent(1800.0))
    assert (cost.gpu_hours, cost.core_hours, cost.energy_kwh, cost.energy_source) == (4.0, 16.0, None, None)


@pytest.mark.parametrize(
    ("attempts", "watts", "energy", "source"),
    [
        ([(3600, None), (1800, None)], 1000.0, 1.5, "estimated"),
        ([(3600, 7.2e6)], 1000.0, 2.0, "measured"),
        ([(3600, 7.2e6)], None, 2.0, "measured"),
        ([(3600, 7.2e6), (1800, None)], 1000.0, 2.5, "mixed"),  # a lost attempt tells nothing
        ([(3600, 7.2e6), (1800, None)], None, None, None),
        ([(0.1, 3.6e5), (0.2, 3.6e5), (0.3, 3.6e5)], 1e6, 0.3, "measured"),
        ([(None, None)], 1000.0, 0.0, None),
    ],
)
def test_energy(attempts, watts, energy, source):
    state = JobState.FINISHED
    spent = (Attempt(trial=1, fold=0, state=state, seconds=seconds, joules=joules) for seconds, joules in attempts)
    cost = Price(0, 1, watts, 0.25).cost(Spent.of(spent))
    assert cost.co2_kg == (None if energy is None else pytest.approx(energy / 4))
    assert (cost.energy_kwh, cost.energy_source) == (pytest.approx(energy) if energy is not None else None, source)


@pytest.mark.parametrize("value", [None, "5", True, -1.0, math.inf, math.nan])
def test_what_is_no_energy(value):
    assert measured_joules({"energy_joules": value}) is None
    assert measured_joules({"energy_joules": 7}) == 7.0


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({}, math.inf),
        ({"gpu_hours": 8.0}, 3600.0),
        ({"core_hours": 8.0}, 900.0),
        ({"gpu_hours": 1, "core_hours": 8}, 450.0),
    ],
)
def test_seconds_that_a_budget_allows(limits, allowed):
    assert seconds_allowed(Budget(**limits), BOTH) == allowed
    assert seconds_allowed(Budget(gpu_hours=1.0), Resources()) == math.inf


def test_a_budget_without_room_for_one_trial():
    (mistake,) = budget_mistakes(Budget(gpu_hours=11.9, core_hours=48.0), BOTH, Folds(k=3))
    assert mistake.path == ("gpu_hours",) and "may take 12 GPU-hours" in mistake.message
    assert not list(budget_mistakes(Budget(gpu_hours=12.0), BOTH, Folds(k=3)))
    together = BOTH.model_copy(update={"trials_per_job": 10})
    assert not list(budget_mistakes(Budget(gpu_hours=1.2), together, Folds(k=3)))


def test_gain():
    cost = Price(2, 4).cost(Spent(1800.0))
    lower = gain_of(0.5, 0.2, 1, cost)
    assert (lower.gain, lower.per_gpu_hour, lower.per_core_hour) == pytest.approx((0.3, 0.3, 0.15))
    assert gain_of(0.5, 0.9, -1, cost).gain == pytest.approx(0.4)
    assert volume_gain(3.0, Price(0, 0).cost(Spent(9.0))).per_gpu_hour is None


# --- when a search will be over ---
