"""The benchmark of fidelity: trainings, the simulation of workers, and the expected cost."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.performance import fidelity
from tests.performance.fidelity import Course, Job, Policy, expected, left_after, simulate
from tests.performance.learning_curves import load
from tests.performance.learning_curves.curves import NAMES, Developed, MfHartmann, trainings


@pytest.mark.parametrize(
    "name", [*NAMES, *(f"dev:{kind}:0" for kind in Developed.NOISE), "dev:tablespeed:1", "dev:dearslow:0"]
)
def test_every_point_trains_and_takes_time(name: str) -> None:
    it = trainings(name)
    for place in (0.0, 0.3, 0.9):
        point = it.space.decode([place] * len(it.space.names))
        values = [it.value(point, step) for step in range(1, it.steps + 1)]
        assert not any(math.isnan(value) for value in values)
        seconds = [it.seconds(point, step) for step in range(it.steps + 1)]
        assert seconds[0] == 0.0
        assert seconds == sorted(seconds)


def test_a_recorded_point_trains_as_it_was_recorded() -> None:
    table, it = load("digits"), trainings("digits")
    for point, folds in list(zip(table.at, table.points, strict=True))[:20]:
        finals = [fold.final for fold in folds]
        if None not in finals:
            assert it.value(point, it.steps) == pytest.approx(sum(finals) / len(finals))
    middle = [it.space.decode([place] * len(it.space.names)) for place in (0.45, 0.46)]
    means = [[sum(fold.curve[40] for fold in folds) / len(folds) for folds in table.points]] * 2
    assert all(min(of) < it.value(point, 41) < max(of) for point, of in zip(middle, means, strict=True))
    assert it.value(middle[0], 41) != it.value(middle[1], 41)


def test_hartmann_at_full_fidelity_has_its_published_minimum() -> None:
    best = {"x0": 0.114614, "x1": 0.555649, "x2": 0.852547}
    assert MfHartmann(3).value(best, 81) == pytest.approx(-3.86278, abs=1e-4)
    assert MfHartmann(3).value(best, 27) > -3.86
    assert MfHartmann(3).seconds(best, 81) == pytest.approx(1.0)


@pytest.mark.parametrize(("kind", "agrees"), [("same", True), ("speed", False), ("offset", False), ("random", False)])
def test_ranks_of_developed_curves_remain_in_one_kind_only(kind: str, agrees: bool) -> None:
    it = trainings(f"dev:{kind}:0")
    points = [it.space.decode([(place * step) % 1 for step in (0.083, 0.31, 0.57, 0.71)]) for place in range(1, 21)]
    orders = [sorted(range(len(points)), key=lambda n: it.value(points[n], step)) for step in (1, 81)]
    assert (orders[0] == orders[1]) is agrees
    with pytest.raises(ValueError, match="dev:KIND:INSTANCE"):
        trainings(f"dev:{kind}x:0")


def test_the_best_points_are_among_the_dear_or_among_the_cheap_ones() -> None:
    dear, cheap = (trainings(f"dev:{costs}tableoffset:0") for costs in ("dear", "cheap"))
    points = [dear.space.decode([(place * step) % 1 for step in (0.083, 0.31, 0.57, 0.71, 0.4)]) for place in range(60)]
    points.sort(key=lambda point: dear.value(point, 81))
    assert all(dear.value(point, 81) == cheap.value(point, 81) for point in points)
    (best, best_cheap), (all_dear, all_cheap) = (
        [sum(one.seconds(point, 81) for point in some) / len(some) for one in (dear, cheap)]
        for some in (points[:10], points)
    )
    assert best > 1.2 * all_dear and best_cheap < all_cheap / 1.2


class Given(Policy):
    """Jobs as given, one after the other."""

    def __init__(self, jobs: list[Job], workers: int, stops_at: int | None = None) -> None:
        super().__init__(trainings("mfhartmann3"), workers, 0)
        self.given, self.stops_at, self.ended = jobs, stops_at, []
        self.reads_steps = stops_at is not None

    def jobs(self, free: int) -> Sequence[Job]:
        some, self.given = self.given[:free], self.given[free:]
        return some

    def goes_on(self, job: Job, step: int, value: float) -> bool:
        return step != self.stops_at

    def over(self, job: Job, step: int, value: float) -> None:
        self.ended.append((job.trial, step))


POINT = {"x0": 0.5, "x1": 0.5, "x2": 0.5}


@pytest.mark.parametrize(("workers", "rounds"), [(1, 4), (2, 2), (4, 1)])
def test_jobs_run_side_by_side_and_cost_their_epochs(workers: int, rounds: int) -> None:
    course = simulate(Given([Job(number, POINT, 0, 81) for number in range(4)], workers), 1e9)
    assert course.end[0] == 4 * 81
    assert course.end[1] == pytest.approx(rounds * (1.0 + fidelity.START_UP))


def test_a_training_that_goes_on_pays_what_is_new_and_counts_at_the_highest_level_only() -> None:
    policy = Given([Job(1, POINT, 0, 27), Job(1, POINT, 27, 81)], 1)
    course = simulate(policy, 1e9)
    assert policy.ended == [(1, 27), (1, 81)]
    assert course.end == (81, pytest.approx(1.0 + 2 * fidelity.START_UP))
    assert course.points == [(81, course.end[1], policy.problem.value(POINT, 81))]


def test_epochs_of_trainings_in_progress_count() -> None:
    course = simulate(Given([Job(1, POINT, 0, 81), Job(2, POINT, 27, 81)], 2), 1e9)
    assert course.points[0][0] == pytest.approx(54 + 81 * (1.0 - trainings("mfhartmann3").seconds(POINT, 27)))


def test_the_oracle_trains_only_improvements_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = fidelity.Oracle("random", trainings("digits"), 8, 1)
    whole: dict[int, float] = {}
    over = oracle.over
    monkeypatch.setattr(
        oracle, "over", lambda job, *end: (whole.update({job.trial: end[1]} if job.begin else {}), over(job, *end))
    )
    course = simulate(oracle, 12 * 81)
    assert course.points[-1][2] == min(whole.values())
    assert 1 < len(whole) < 15


@pytest.mark.parametrize(("kind", "whole"), [(fidelity.Promoting, 9), (fidelity.Fidelity, 9), (fidelity.Joint, 5)])
def test_each_point_is_trained_from_level_to_level(kind: type[fidelity.Promoting], whole: int) -> None:
    policy = kind("auto", trainings("mfhartmann3"), 8, 1)
    over, done = policy.over, list[Job]()
    policy.over = lambda job, *end: (done.append(job), over(job, *end))  # type: ignore[method-assign]
    simulate(policy, whole * 81)
    assert policy.promotion.levels_agree == (kind is not fidelity.Joint)
    by_point = dict[str, list[tuple[int, int]]]()
    for job in done:
        by_point.setdefault(str(job.point), []).append((job.begin, job.end))
    assert all(steps == [(0, 3), (3, 9), (9, 27), (27, 81)][: len(steps)] for steps in by_point.values())
    assert max(map(len, by_point.values())) == 4


def test_a_stopped_training_frees_its_worker() -> None:
    policy = Given([Job(number, POINT, 0, 81) for number in range(3)], 1, stops_at=9)
    course = simulate(policy, 1e9)
    assert policy.ended == [(0, 9), (1, 9), (2, 9)]
    assert course.end[0] == 27
    assert course.points == []


def test_nothing_is_begun_beyond_the_budget() -> None:
    assert simulate(Given([Job(number, POINT, 0, 81) for number in range(9)], 1), 100).end[0] == 162


def test_a_run_ends_at_its_target() -> None:
    jobs = [Job(number, POINT, 0, 81) for number in range(4)]
    assert simulate(Given(jobs, 1), 1e9, math.inf).end[0] == 81


def test_what_is_left_after_some_epochs() -> None:
    courses = [Course([(10.0, 1.0, 0.8), (30.0, 3.0, 0.3)]), Course([(20.0, 2.0, 0.4)]), Course([(90.0, 9.0, 0.1)])]
    assert left_after(courses, 25.0, 1.0, 0.2) == pytest.approx(0.75)
    assert left_after(courses, 100.0, 1.0, 0.2) == pytest.approx(0.125)
    assert left_after(courses, 25.0, 0.2, 0.2) == 0.0


def test_the_expected_cost_counts_runs_that_do_not_reach_the_target() -> None:
    good, bad = Course([(10, 1.0, 5.0), (20, 2.0, 3.0)], (40, 4.0)), Course([(10, 1.0, 9.0)], (40, 4.0))
    assert expected([good, good], 5.0) == (10, 1.0, 2)
    assert expected([good, bad], 4.0) == (60, 6.0, 1)
    assert expected([bad], 4.0) == (40, 4.0, 0)


@pytest.mark.parametrize("policy", [name for name in fidelity.POLICIES if "auto" not in name and "SMAC" not in name])
def test_every_policy_trains_some_to_the_end_within_the_budget(policy: str) -> None:
    it = trainings("digits")
    try:
        made = fidelity.POLICIES[policy](it, 8, 1)
    except ImportError as error:
        pytest.skip(str(error))
    course = simulate(made, 12 * it.steps)
    assert course.points
    assert 12 * it.steps <= course.end[0] <= 20 * it.steps


def test_stored_runs_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "STORE", tmp_path / "runs.jsonl")
    done: list[Any] = []
    real = simulate
    monkeypatch.setattr(fidelity, "simulate", lambda *of: done.append(of) or real(*of))
    options = argparse.Namespace(problem=["mfhartmann3"], seeds=1, runner=["full, random"], show=False)
    fidelity.measure(quick=True, options=options)
    options.seeds = 2
    fidelity.measure(quick=True, options=options)
    assert len(done) == 2
