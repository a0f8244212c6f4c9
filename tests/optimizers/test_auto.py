from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import auto, create_optimizer
from hpo_pilot.optimizers.phase import ALONE, auto_rules
from hpo_pilot.search import Point, SearchSpace
from tests.optimizers.runs import REAL, run

SPACE = SearchSpace.from_dict({"x": REAL, "n": {"type": "integer", "low": 1, "high": 9}})


def cost(point: Point) -> float:
    return (point["x"] - 0.3) ** 2 + point["n"] / 10  # type: ignore[operator]


def told(name: str, count: int, space: SearchSpace = SPACE) -> list[tuple[Point, float]]:
    return [(point, cost(point)) for point in create_optimizer(name, space, seed=9).ask(count, [])]


def test_it_is_bayesian_at_first() -> None:
    ours, model = (create_optimizer(name, SPACE, seed=4, trials=40) for name in ("auto", "bayesian"))
    for _ in range(3):
        points = ours.ask(8, [])
        assert points == model.ask(8, [])
        for optimizer in (ours, model):
            optimizer.tell([(point, cost(point)) for point in points])


@pytest.mark.parametrize("objectives", [1, 2])
def test_later_an_evolution_has_every_other_point(monkeypatch: pytest.MonkeyPatch, objectives: int) -> None:
    monkeypatch.setattr(auto, "ALONE", 20)
    results = [(p, v if objectives == 1 else (v, -v)) for p, v in told("random", 20)]
    names = ("auto", "bayesian", "cma" if objectives == 1 else "evolutionary")
    ours, model, evolution = (create_optimizer(name, SPACE, seed=4, objectives=objectives) for name in names)
    for optimizer in (ours, model, evolution):
        optimizer.tell(results)
    first = model.ask(2, [])
    assert ours.ask(4, []) == [*first, *evolution.ask(2, first)]
    # One by one they take turns: 20 are known, then 21.
    assert ours.ask(1, []) == model.ask(1, [])
    assert ours.ask(1, first[:1]) == evolution.ask(1, first[:1])


@pytest.mark.parametrize(
    ("values", "on_steps"),
    [
        ([0.3, 0.2] * 8 + [0.9], True),
        ([0.1 * place for place in range(13)] + [0.05] * 4, False),
        ([0.1 * place for place in range(12)] + [0.05] * 4, True),
        ([1e4] * 12 + [0.1, 0.2, 0.3, 0.4], False),  # a penalty, or a clipped loss
        ([0.3, 0.2] * 3 + [0.9], False),  # too few to tell
        ([0.3, 0.2, None] * 6 + [0.9], True),
    ],
)
def test_where_values_are_steps_cma_has_every_fourth_point(values: list[float | None], on_steps: bool) -> None:
    points = create_optimizer("random", SPACE, seed=9).ask(len(values), [])
    ours, model, evolution = (create_optimizer(name, SPACE, seed=4, trials=40) for name in ("auto", "bayesian", "cma"))
    for optimizer in (ours, model, evolution):
        optimizer.tell(list(zip(points, values, strict=True)))
    first = model.ask(3, [])
    last = evolution.ask(1, first) if on_steps else model.ask(4, [])[3:]
    assert ours.ask(4, []) == [*first, *last]


def test_a_repeated_point_is_no_step() -> None:
    ours, model = (create_optimizer(name, SPACE, seed=4, trials=40) for name in ("auto", "bayesian"))
    results = told("random", 16)
    for optimizer in (ours, model):
        optimizer.tell([*results, *results[:8] * 4])
    assert ours.ask(4, []) == model.ask(4, [])


CONTINUOUS = SearchSpace.from_dict({"x": REAL, "rate": {"type": "real", "low": 1e-4, "high": 1.0, "scale": "log"}})


def rate_cost(point: Point) -> float:
    """Lowest in `CONTINUOUS` at the highest rate."""
    return (point["x"] - 0.3) ** 2 - math.log10(point["rate"])  # type: ignore[operator, arg-type]


@pytest.mark.parametrize("sizes", [[8, 8, 8], [1] * 14, [3] * 6, [40, 20]])
def test_three_points_are_beside_the_best_ones(sizes: list[int]) -> None:
    ours = create_optimizer("auto", CONTINUOUS, seed=4, trials=60)
    asked = [point for size in sizes for point, _ in run(ours, rate_cost, 1, size)]
    units = np.array([CONTINUOUS.encode(point) for point in asked])
    apart = np.abs(np.abs(units[:, None] - units) - 0.003).max(axis=2) < 1e-9
    bases, pairs = np.nonzero(np.triu(apart))
    first = next(told for told in itertools.accumulate(sizes) if told >= 8)
    assert sorted(pairs) == [first, first + 1, first + 2]
    assert rate_cost(asked[dict(zip(pairs, bases, strict=True))[first]]) == min(map(rate_cost, asked[:first]))


@pytest.mark.parametrize(
    ("space", "noise", "modelled"), [(CONTINUOUS, 0.0, 4), (SPACE, 0.0, 4), (CONTINUOUS, 5.0, 0), (SPACE, 5.0, 2)]
)
def test_where_noise_is_heavy_cma_has_all_points_or_every_other_one(
    space: SearchSpace, noise: float, modelled: int
) -> None:
    names, dice = ("auto", "auto", "bayesian", "cma"), random.Random(3)
    ours, again, model, evolution = (create_optimizer(name, space, seed=4, trials=60) for name in names)
    results = run(ours, lambda point: (point["x"] - 0.3) ** 2 + noise * dice.random(), 2)  # type: ignore[operator]
    for optimizer in (again, model, evolution):
        optimizer.tell(results)
    first = model.ask(modelled, []) if modelled else []
    last = evolution.ask(4 - modelled, first) if noise else []
    assert ours.ask(4, []) == [*first, *last] == again.ask(4, [])


STEPS = {"type": "real", "low": 0.0, "high": 1.0, "step": 0.1}


@pytest.mark.parametrize(
    ("space", "more"),
    [
        ({"x": STEPS, "n": {"type": "integer", "low": 1, "high": 99}}, {}),
        ({"x": REAL, "y": REAL}, {"trials": 40}),
        ({"x": REAL, "y": REAL}, {"objectives": 2}),
        ({"x": REAL, "y": REAL}, {"levels": (1.0, 3.0)}),
    ],
)
def test_no_points_are_beside_the_best_ones(space: dict[str, Any], more: dict[str, Any]) -> None:
    names = ("auto", "bayesian")
    ours, model = (
        create_optimizer(name, SearchSpace.from_dict(space), seed=4, **{"trials": 60, **more}) for name in names
    )
    points = ours.ask(8, [])
    for optimizer in (ours, model):
        optimizer.tell([(p, (p["x"],) * optimizer.objectives) for p in points])
    assert ours.ask(8, []) == model.ask(8, [])


def test_failed_and_infeasible_points_beside_the_best_ones_do_no_harm() -> None:
    space = SearchSpace(dimensions=CONTINUOUS.dimensions, constraints=("x <= 0.4",))
    ours = create_optimizer("auto", space, seed=4, trials=60)
    points = ours.ask(8)
    ours.tell([(point, -point["x"]) for point in points])
    beside = ours.ask(3)
    assert all(point["x"] <= 0.4 for point in beside)
    ours.tell([(point, None) for point in beside])
    assert len(ours.ask(8)) == 8


def test_an_evolution_that_comes_late_knows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "ALONE", 10)
    results = told("random", 30)
    early, late = (create_optimizer("auto", SPACE, seed=4) for _ in range(2))
    for optimizer in (early, late):
        optimizer.tell_earlier("old", told("random", 5))
    early.tell(results[:15])
    early.ask(4, [])
    early.tell(results[15:])
    late.tell(results)
    assert early.ask(6, []) == late.ask(6, [])


def test_the_rules_in_words() -> None:
    assert auto_rules(5, 1).endswith(f"heavy noise; from {ALONE:,} results on every other point by cma")
    assert "NSGA-II" in auto_rules(5, 2)
    assert "more than 50 dimensions" in auto_rules(51, 1)
