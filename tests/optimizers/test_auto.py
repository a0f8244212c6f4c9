from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hpo_pilot.optimizers import auto, create_optimizer
from hpo_pilot.optimizers.base import Optimizer, Result
from hpo_pilot.optimizers.phase import ALONE, auto_rules
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.measured_limits import MeasuredLimit
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


LINE = SearchSpace.from_dict({"x": REAL})


def at(*places: float) -> list[Point]:
    return [{"x": place} for place in places]


def beside(optimizer: Optimizer, count: int = 3, pending: Sequence[Point] = ()) -> list[Any]:
    return [round(point["x"], 6) for point in optimizer.ask(count, pending)]  # type: ignore[arg-type]


def best_first(space: SearchSpace = LINE, *more: tuple[Any, ...], skip: int = 0, **options: Any) -> Optimizer:
    """The best points are 0.11, 0.12, …, 0.19 in this order; without the first `skip`."""
    made = create_optimizer("auto", space, seed=4, trials=60, **options)
    made.tell([*more, *((point, point["x"]) for point in at(*(0.11 + 0.01 * n for n in range(skip, 9))))])
    return made


def test_one_point_is_beside_each_of_the_best_ones_and_none_is_asked_again() -> None:
    assert beside(best_first()) == [0.113, 0.123, 0.133]
    first, second, third = beside(best_first(), pending=at(0.113))
    assert (first, second) == (0.123, 0.133) and third != 0.143
    told = [({"x": 0.113}, None), ({"x": 0.123}, 0.9)]  # before their bases
    assert beside(best_first(LINE, *told)) == [0.133, 0.143, 0.153]
    failed = best_first()
    failed.tell([(point, None) for point in at(0.113, 0.113, 0.123)])
    assert beside(failed, 1) == [0.133]


def test_points_that_are_not_good_have_none_beside_them() -> None:
    stopped, beyond = best_first(skip=1), best_first(skip=1, limits=(MeasuredLimit("memory", 1, 5.0),))
    stopped.tell([({"x": 0.11}, 0.0, None, True)])
    assert beside(stopped) == [0.123, 0.133, 0.143]
    beyond.tell([Result({"x": 0.11}, 0.0, measured={"memory": 9.0})])
    assert 0.113 not in beside(beyond)
    narrow = SearchSpace(dimensions=LINE.dimensions, constraints=("x <= 0.112 or x >= 0.115",))
    assert beside(best_first(narrow)) == [0.123, 0.133, 0.143]
    outside = best_first(LINE, ({"x": -0.5}, -9.0))
    assert beside(outside) == [0.113, 0.123, 0.133]


def test_a_space_that_has_no_more_points() -> None:
    plane = SearchSpace.from_dict({"x": REAL, "y": REAL})
    space = SearchSpace(dimensions=plane.dimensions, constraints=("abs(x - y) <= 1e-13",))
    made = create_optimizer("auto", space, seed=4, trials=60)
    made.tell([({"x": n / 9, "y": n / 9}, n) for n in range(10)])
    assert len(made.ask(8, [])) >= 3


@pytest.mark.parametrize(("between", "is_heavy"), [((0, 0, 0), False), ((1, 0, 0), False), ((0, 1, 1), True)])
def test_noise_is_heavy_from_three_of_sixteen_values_between_pairs_on(between: tuple[int, ...], is_heavy: bool) -> None:
    history = [0.11 + 0.01 * n for n in range(8)]
    made = create_optimizer("auto", LINE, seed=4, trials=60)
    made.tell([(point, point["x"]) for point in at(*history)])
    pairs = [({"x": x + 0.003}, x + (0.01005 if n else 1e-4)) for x, n in zip(history, between, strict=False)]

    def asks_cma() -> bool:
        evolution = create_optimizer("cma", LINE, seed=4, trials=60)
        evolution.follow(made)
        return made.ask(4, []) == evolution.ask(4, [])

    made.tell([*pairs[:2], (pairs[2][0], None), pairs[2]])
    assert not asks_cma(), "too few results to tell"
    made.tell([(point, point["x"]) for point in at(0.6, 0.7, 0.8, 0.9)])
    assert asks_cma() == is_heavy


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
    late = f"from {ALONE:,} results on every other point by"
    assert auto_rules(5, 1, None, has_levels=False).endswith(f"heavy noise; {late} cma")
    assert auto_rules(5, 1, 47, has_levels=False).endswith(f"ties; {late} cma")
    assert auto_rules(5, 2, 48, has_levels=False) == f"bayesian; {late} evolutionary (NSGA-II)"
    assert "more than 50 dimensions" in auto_rules(51, 1, 48, has_levels=False)
    assert auto_rules(5, 1, 48, has_levels=True) == "bayesian"
