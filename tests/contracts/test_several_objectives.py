"""What `hpo_pilot.optimizers.base.Optimizer` promises of several objectives, run against all that take them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hpo_pilot.errors import ExhaustedError, InputError
from hpo_pilot.optimizers import create_optimizer, optimizer_class
from hpo_pilot.optimizers.base import Optimizer
from hpo_pilot.search import Point, SearchSpace, point_key

from .optimizers_here import NEEDED, names_here

MIXED = {
    "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log"},
    "momentum": {"type": "real", "low": 0.0, "high": 1.0, "when": {"solver": "sgd"}},
    "layers": {"type": "integer", "low": 1, "high": 5},
    "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
    "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
}
PLANE = {name: {"type": "real", "low": 0.0, "high": 1.0} for name in ("x", "y", "z")}


def able(name: str) -> bool:
    try:
        return optimizer_class(name).several_objectives
    except InputError:  # an extra that is not installed
        return False


ABLE = [name for name in names_here() if able(name)]


def make(name: str, space: SearchSpace, objectives: int = 2, seed: int = 3) -> Optimizer:
    settings = {"points_per_dimension": 4} if name == "grid" else NEEDED.get(name)
    return create_optimizer(name, space, seed=seed, settings=settings, trials=60, objectives=objectives)


def costs(point: Point) -> tuple[float, float]:
    """Two that pull apart: size against loss."""
    loss = (math.log10(point["lr"]) + 3) ** 2 + 1 / point["width"] + (point.get("momentum", 0.9) - 0.9) ** 2
    return loss, float(point["layers"] * point["width"])


def test_those_that_can_are_known() -> None:
    assert {"random", "grid", "bayesian", "evolutionary"} <= set(ABLE)


@pytest.mark.parametrize("name", [name for name in ("cma",) if name not in ABLE])
def test_those_that_cannot_say_so(name: str) -> None:
    everyone = "auto, random, grid, bayesian, evolutionary and optuna"
    with pytest.raises(InputError, match=f"one objective, not 2; several take {everyone}"):
        make(name, SearchSpace.from_dict(PLANE))


@pytest.mark.parametrize("name", ABLE)
def test_points_are_new_and_follow_from_the_history(name: str) -> None:
    space = SearchSpace.from_dict(MIXED, ["layers * width <= 1024"])
    optimizer, told = make(name, space), []
    for batch in range(5):
        points = optimizer.ask(4, [])
        assert len({point_key(point) for point in [*points, *(p for p, _ in told)]}) == 4 + len(told)
        assert all(space.is_feasible(space.canonical(point)) for point in points)
        results: list[Any] = [
            (point, None if batch == 2 and i == 0 else costs(point)) for i, point in enumerate(points)
        ]
        optimizer.tell(results)
        told += results
    pending = optimizer.ask(3, [])
    following = optimizer.ask(3, pending)
    assert not {point_key(point) for point in following} & {point_key(point) for point in pending}

    again = make(name, space)
    for number, result in enumerate(told):  # told one by one, and asked in between
        again.tell([result])
        if number % 5 == 0:
            again.ask(1 + number % 3, [])
    assert again.ask(3, [*reversed(pending)]) == following


@pytest.mark.parametrize("name", ABLE)
@pytest.mark.parametrize("objectives", [2, 3, 5])
def test_extreme_values_do_not_raise(name: str, objectives: int) -> None:
    space = SearchSpace.from_dict(PLANE)
    optimizer = make(name, space, objectives)
    odd = [1e300, -1e300, 1.7e308, -1.7e308, 5e-324, 0.0, 1.0, math.nan, math.inf, None]
    points = make("random", space, seed=9).ask(30)
    optimizer.tell((p, [odd[(i * 5 + j) % len(odd)] for j in range(objectives)]) for i, p in enumerate(points))
    optimizer.tell((p, math.nan) for p in points[:2])  # failed; a number would be one too few
    for count, value in ((1, 0.5), (objectives + 1, [0.5] * (objectives + 1))):
        with pytest.raises(InputError, match=f"{count} values? for {objectives} objectives"):
            optimizer.tell([(points[0], value)])
    asked = optimizer.ask(4, [])
    assert len({point_key(point) for point in [*asked, *points]}) == 34


@pytest.mark.parametrize("name", ABLE)
def test_equal_values_are_survived(name: str) -> None:
    space = SearchSpace.from_dict(PLANE)
    optimizer = make(name, space)
    for point in make("random", space, seed=9).ask(25):
        optimizer.tell([(point, (1.0, 2.0)), (point, (1.0, 2.0))])
    assert len(optimizer.ask(8, [])) == 8


@pytest.mark.parametrize("name", ABLE)
def test_a_space_of_six_cells_is_exhausted(name: str) -> None:
    cells = {"a": {"type": "integer", "low": 1, "high": 3}, "b": {"type": "categorical", "choices": ["x", "y"]}}
    optimizer = make(name, SearchSpace.from_dict(cells))
    seen = set()
    for _ in range(3):
        for point in optimizer.ask(2):
            seen.add(point_key(point))
            optimizer.tell([(point, (point["a"], -point["a"]))])
    assert len(seen) == 6
    with pytest.raises(ExhaustedError):
        optimizer.ask(1)


@pytest.mark.parametrize("name", ["bayesian", "evolutionary"])
def test_a_region_that_fails_is_left(name: str) -> None:
    space = SearchSpace.from_dict(PLANE)
    optimizer = make(name, space)
    for _ in range(4):
        points = optimizer.ask(8, [])
        optimizer.tell(
            (p, None) if p["x"] < 0.5 else (p, ((p["x"] - 0.5) ** 2 + p["y"], (p["x"] - 0.5) ** 2 + 1 - p["y"]))
            for p in points
        )
    assert sum(point["x"] < 0.5 for point in optimizer.ask(8, [])) <= 4


@pytest.mark.parametrize("name", ["bayesian", "evolutionary"])
def test_what_was_stopped_early_informs_and_does_not_lead(name: str) -> None:
    """Its guess would be a front of its own; the others make up the front all the same."""
    space = SearchSpace.from_dict(PLANE)
    optimizer = make(name, space)
    points = make("random", space, seed=9).ask(24)
    optimizer.tell((p, (p["x"], 1 - p["x"] + p["y"]), None, False) for p in points[:20])
    optimizer.tell((p, (-50.0, -50.0), None, True) for p in points[20:])
    with_guesses = optimizer.ask(4, [])
    assert len(with_guesses) == 4
    if name == "evolutionary":
        keys = {point_key(point) for point in points[20:]}
        assert not keys & optimizer._individuals.keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ABLE)
def test_one_by_one_with_nothing_but_an_earlier_search(name: str) -> None:
    space = SearchSpace.from_dict(PLANE)
    optimizer = make(name, space)
    optimizer.tell_earlier("old", [(point, costs_of_plane(point)) for point in make("random", space, seed=5).ask(20)])
    out: list[Point] = []
    for _ in range(3):
        (asked,) = optimizer.ask(1, out)
        assert point_key(asked) not in {point_key(point) for point in out}
        out.append(asked)
    optimizer.tell([(point, None) for point in out])
    assert len(optimizer.ask(2, [])) == 2


def costs_of_plane(point: Point) -> tuple[float, float]:
    return float(point["x"]), (1.0 - point["x"]) ** 2 + point["y"]
