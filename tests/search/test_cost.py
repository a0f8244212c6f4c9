from __future__ import annotations

import math

import pytest

from hpo_pilot.jobs import Attempt, JobState
from hpo_pilot.search import Budget, Folds, Resources
from hpo_pilot.search.trials import (
    Price,
    Spent,
    budget_mistakes,
    gain_of,
    measured_joules,
    seconds_allowed,
    volume_gain,
)

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
    cost = Price(0, 1, watts).cost(Spent.of(spent))
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
    assert not budget_mistakes(Budget(gpu_hours=12.0), BOTH, Folds(k=3))
    together = BOTH.model_copy(update={"trials_per_job": 10})
    assert not budget_mistakes(Budget(gpu_hours=1.2), together, Folds(k=3))


def test_gain():
    cost = Price(2, 4).cost(Spent(1800.0))
    lower = gain_of(0.5, 0.2, 1, cost)
    assert (lower.gain, lower.per_gpu_hour, lower.per_core_hour) == pytest.approx((0.3, 0.3, 0.15))
    assert gain_of(0.5, 0.9, -1, cost).gain == pytest.approx(0.4)
    assert volume_gain(3.0, Price(0, 0).cost(Spent(9.0))).per_gpu_hour is None
