"""The run time that the scheduler assumes for the next job of a search."""

from __future__ import annotations

import random

import pytest

from hpo_pilot.hpc.scheduler import RunTimes


def test_a_quantile_is_known_after_enough_finished_jobs() -> None:
    times = RunTimes(0.5, 3)
    found = []
    for seconds in (30.0, 10.0, 20.0):
        found.append(times.quantile)
        times.add(seconds)
    assert found == [None, None, None]
    assert times.quantile == 20.0


def test_few_run_times_give_the_longest() -> None:
    """The next job is longer than the longest of three in a quarter of all cases."""
    times, found = RunTimes(0.75), []
    for seconds in (600.0, 700.0, 650.0, 10.0, 20.0):
        times.add(seconds)
        found.append(times.quantile)
    assert found == [600.0, 700.0, 700.0, 700.0, 700.0]


def test_the_quantile_of_log_normal_run_times() -> None:
    dice, times = random.Random(3), RunTimes(0.75)
    for _ in range(3000):
        times.add(dice.lognormvariate(7.0, 0.7))
    assert times.quantile == pytest.approx(1758.0, rel=0.05)  # exp(7 + 0.7 x 0.6745)
