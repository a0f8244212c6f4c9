from __future__ import annotations

import pytest

from hpo_pilot.optimizers import auto, create_optimizer
from hpo_pilot.optimizers.phase import ALONE, auto_rules
from hpo_pilot.search import Point, SearchSpace
from tests.optimizers.runs import REAL

SPACE = SearchSpace.from_dict({"x": REAL, "n": {"type": "integer", "low": 1, "high": 9}})


def cost(point: Point) -> float:
    return (point["x"] - 0.3) ** 2 + point["n"] / 10  # type: ignore[operator]


def told(name: str, count: int, space: SearchSpace = SPACE) -> list[tuple[Point, float]]:
    return [(point, cost(point)) for point in create_optimizer(name, space, seed=9).ask(count, [])]


def test_it_is_bayesian_at_first() -> None:
    ours, model = (create_optimizer(name, SPACE, seed=4, trials=60) for name in ("auto", "bayesian"))
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
        ([0.1 * place for place in range(16)], False),
        ([1e4] * 12 + [0.1, 0.2, 0.3, 0.4], False),  # a penalty, or a clipped loss
        ([0.3, 0.2] * 3 + [0.9], False),  # too few to tell
        ([0.3, 0.2, None] * 6 + [0.9], True),
    ],
)
def test_where_values_are_steps_cma_has_every_fourth_point(values: list[float | None], on_steps: bool) -> None:
    points = create_optimizer("random", SPACE, seed=9).ask(len(values), [])
    ours, model, evolution = (create_optimizer(name, SPACE, seed=4) for name in ("auto", "bayesian", "cma"))
    for optimizer in (ours, model, evolution):
        optimizer.tell(list(zip(points, values, strict=True)))
    first = model.ask(3, [])
    last = evolution.ask(1, first) if on_steps else model.ask(4, [])[3:]
    assert ours.ask(4, []) == [*first, *last]


def test_a_repeated_point_is_no_step() -> None:
    ours, model = (create_optimizer(name, SPACE, seed=4) for name in ("auto", "bayesian"))
    results = told("random", 16)
    for optimizer in (ours, model):
        optimizer.tell([*results, *results[:8] * 4])
    assert ours.ask(4, []) == model.ask(4, [])


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
    assert auto_rules(5, 1).endswith(f"ties; from {ALONE:,} results on every other point by cma")
    assert "NSGA-II" in auto_rules(5, 2)
    assert "more than 50 dimensions" in auto_rules(51, 1)
