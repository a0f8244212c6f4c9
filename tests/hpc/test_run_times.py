"""The run time that the scheduler assumes for the next job of a search."""

from __future__ import annotations

import random

import pytest

from hpo_pilot.hpc.scheduler import RunTimes


def test_too_few_measurements_say_nothing() -> None:
    times = RunTimes(0.5, 3)
    for end in (10.0, 20.0):
        times.started(0.0)
        times.ended(0.0, end, finished=True)
    assert times.quantile(20.0) is None
    times.started(0.0)
    times.ended(0.0, 30.0, finished=True)
    assert times.quantile(30.0) == pytest.approx(20.0, rel=0.05)


def test_jobs_that_still_run_count_as_longer() -> None:
    """Of a hundred that start together, the first twenty to end are the shortest: no quantile of all is known."""
    times = RunTimes(0.75)
    for _ in range(100):
        times.started(0.0)
    for number in range(1, 101):
        now = 60.0 * number
        times.ended(0.0, now, finished=True)
        known = times.quantile(now)
        assert (known is None) == (number < 25) or number in range(25, 30)
        # Before most have ended it is an estimate, and longer than all that was measured.
        assert known is None or known > now or number > 70
    assert known == pytest.approx(4500.0, rel=0.06)


def test_the_first_run_time_counts() -> None:
    """The next job is longer than the only one in half of all cases, than the longest of three in a quarter."""
    times, found = RunTimes(0.75), []
    for number in range(3):
        times.started(1000.0 * number)
        times.ended(1000.0 * number, 1000.0 * number + 600.0, finished=True)
        found.append(times.quantile(1000.0 * number + 600.0))
    assert found == pytest.approx([900.0, 700.0, 600.0], rel=0.05)


def test_failures_are_no_measurements() -> None:
    times = RunTimes(0.5, 10)
    for number in range(200):
        times.started(float(number))
        times.ended(float(number), number + (1.0 if number % 2 else 1000.0), finished=number % 2 == 0)
    assert times.quantile(1200.0) == pytest.approx(1000.0, rel=0.05)


def test_the_quantile_of_log_normal_run_times_in_a_steady_stream() -> None:
    dice = random.Random(3)
    times = RunTimes(0.75, 20)
    now, running = 0.0, sorted((dice.lognormvariate(7.0, 0.7), 0.0) for _ in range(200))
    for _ in running:
        times.started(0.0)
    for _ in range(3000):
        now, start = running.pop(0)
        times.ended(start, now, finished=True)
        times.started(now)
        running.append((now + dice.lognormvariate(7.0, 0.7), now))
        running.sort()
    assert times.quantile(now) == pytest.approx(1758.0, rel=0.1)  # exp(7 + 0.7 x 0.6745)


def test_staging_is_no_measurement() -> None:
    """The first job copies for ten minutes what the others find: their run time is what is left of it."""
    times = RunTimes(0.5, 2)
    for staging in (600.0, 0.0):
        times.started(0.0)
        times.ended(0.0, 100.0 + staging, finished=True, staging=staging)
    assert times.quantile(700.0) == pytest.approx(100.0, rel=0.05)
