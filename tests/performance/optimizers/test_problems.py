from __future__ import annotations

import random

import pytest

from hpo_pilot.search import Categorical, Integer, Ordinal, Point
from tests.performance.optimizers.problem import Problem
from tests.performance.optimizers.problems import SUITES, problem

NAMES = (*SUITES["table"], *SUITES["dev"][::2])


def sampled(problem: Problem, count: int) -> list[Point]:
    """Points all over the space, and neighbours of the best one: near it a wrong minimum shows first."""
    dice = random.Random(problem.name)
    place = problem.space.encode(problem.best)
    points = [problem.space.decode([dice.random() for _ in place]) for _ in range(count)]
    for _ in range(count):
        width = 10 ** dice.uniform(-6, -0.5)
        moved = [u + dice.gauss(0, width) * (dice.random() < 0.5) for u in place]
        points.append(problem.space.decode(moved))
    return points


@pytest.mark.parametrize("name", NAMES)
def test_the_minimum_is_attained_and_nothing_is_below(name: str) -> None:
    it = problem(name)
    assert it.space.canonical(it.best) == it.best
    best = it.evaluate(it.best, random.Random(1))
    assert best.feasible
    scale = max(1.0, abs(it.minimum))
    assert best.true == pytest.approx(it.minimum, abs=1e-7 * scale)
    for point in sampled(it, 60):
        evaluation = it.evaluate(point, random.Random(1))
        if evaluation.feasible and evaluation.true is not None:
            assert evaluation.true >= it.minimum - 1e-9 * scale, point


@pytest.mark.parametrize("name", [name for name in NAMES if "constrained" in name])
def test_measured_violations_and_the_expressions_draw_the_same_line(name: str) -> None:
    it = problem(name)
    points = sampled(it, 150)
    feasible = [it.evaluate(point, random.Random(1)).feasible for point in points]
    assert feasible == [it.space.is_feasible(point) for point in points]
    assert any(feasible)
    assert not all(feasible)


def test_one_percent_of_the_constrained_box_or_less_is_feasible() -> None:
    it = problem("constrained7")
    dice = random.Random(5)
    points = [it.space.decode([dice.random() for _ in it.space.names]) for _ in range(3000)]
    share = sum(it.evaluate(point, dice).feasible for point in points) / len(points)
    assert 0.0 < share <= 0.01


def test_a_development_problem_is_the_same_each_time_and_others_differ() -> None:
    assert problem("dev:mixed:3").digest == problem.__wrapped__("dev:mixed:3").digest
    assert problem("dev:mixed:3").digest != problem("dev:mixed:4").digest


def test_the_development_suite_has_every_kind_of_dimension() -> None:
    dimensions = [d for name in SUITES["dev"] for d in problem(name).space.dimensions.values()]
    for kind in (Integer, Ordinal, Categorical):
        assert any(isinstance(dimension, kind) for dimension in dimensions)
    assert any(dimension.when for dimension in dimensions)
    assert any(getattr(dimension, "scale", "") == "log" for dimension in dimensions)
    sizes = {len(problem(name).space.names) for name in SUITES["dev"]}
    assert min(sizes) <= 3 and max(sizes) >= 14


def test_noise_disturbs_what_is_told_and_not_the_regret() -> None:
    it = problem("dev:noisy:0")
    dice = random.Random(1)
    found = [it.evaluate(it.best, dice) for _ in range(200)]
    assert {evaluation.true for evaluation in found} == {it.function(it.best)}
    values = [evaluation.value for evaluation in found if evaluation.value is not None]
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert spread == pytest.approx(it.noise, rel=0.2)
