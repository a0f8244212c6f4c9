"""Run times: what the model of them predicts, and what the optimizer makes of it."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.bayesian import BayesianOptimizer
from hpo_pilot.search import Point, SearchSpace
from tests.optimizers.runs import REAL

SPACE = SearchSpace.from_dict({"x": REAL, "size": REAL})


def by_size(point: Point, dice: random.Random) -> float:
    return 30 * math.exp(3 * point["size"] + 0.1 * dice.gauss(0.0, 1.0))


def by_chance(point: Point, dice: random.Random) -> float:
    return 100 * math.exp(dice.gauss(0.0, 1.0))


def told(settings: dict[str, Any], seconds: Any, *, name: str = "auto", count: int = 16) -> Any:
    """An optimizer with results whose value depends on `x` alone."""
    optimizer = create_optimizer(name, SPACE, seed=3, trials=40, settings=settings)
    dice = random.Random(7)
    points = create_optimizer("random", SPACE, seed=8).ask(count, [])
    optimizer.tell([Result(p, (p["x"] - 0.4) ** 2, seconds=seconds(p, dice)) for p in points])
    return optimizer


@pytest.mark.parametrize(
    ("seconds", "is_telling"),
    [
        (by_size, True),
        (by_chance, False),  # nothing to predict
        (lambda point, dice: 100 * 1.5 ** point["size"], False),  # predicted, but less than a factor of two
        (lambda point, dice: by_size(point, dice) / 1000, False),  # hand-over takes longer than these trainings
    ],
)
def test_run_times_count_where_they_differ_and_are_predicted(seconds: Any, is_telling: bool) -> None:
    points = [told({"acquisition": how} if how else {}, seconds).ask(4, []) for how in (None, "plain", "per_cost")]
    assert points[0] == points[2 if is_telling else 1]
    assert points[1] != points[2]


def test_expected_improvement_per_second_prefers_cheap_points() -> None:
    plain, per_cost = (
        statistics.fmean(p["size"] for p in told({"acquisition": how}, by_size).ask(8, []))
        for how in ("plain", "per_cost")
    )
    assert per_cost < plain - 0.1


def test_run_times_of_lower_levels_are_those_of_whole_trainings() -> None:
    """A job takes a minute to start, and most points are known at the lowest level only."""
    dice, levels = random.Random(7), (1, 3, 9)
    optimizer = BayesianOptimizer(SPACE, seed=3, trials=40, levels=levels)
    points = create_optimizer("random", SPACE, seed=8).ask(24, [])
    for level, part, some in ((1, 1, points), (3, 2, points[:8]), (9, 6, points[:4])):
        seconds = {point["size"]: (60 + by_size(point, dice) * part / 9) * 9 / part for point in some}
        optimizer.tell([Result(p, (p["x"],), seconds=seconds[p["size"]], level=level) for p in some])
    optimizer.ask(1, [])
    times = optimizer._run_times.model()
    assert times is not None
    places = [{"x": 0.5, "size": size} for size in (0.1, 0.5, 0.9)]
    found = times.logs(optimizer._features.features(np.array([SPACE.encode(point) for point in places])))
    assert found == pytest.approx([math.log(90 + 30 * math.exp(3 * point["size"])) for point in places], abs=0.5)


def test_predictions_of_run_times() -> None:
    optimizer = told({}, by_size, name="bayesian", count=40)
    optimizer.ask(1, [])
    model = optimizer._run_times.model()
    assert model.explained > 0.9
    assert 6 < model.factor < 20


@pytest.mark.parametrize("values", [None, (math.nan,)])
def test_run_times_of_failures_do_not_count(values: Any) -> None:
    optimizer = told({}, by_size, name="bayesian", count=7)
    optimizer.tell([Result({"x": 0.5, "size": 0.5}, values, seconds=1e4)])
    optimizer.ask(1, [])
    assert optimizer._run_times.model() is None
