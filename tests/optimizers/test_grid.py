from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.optimizers.grid_random import fitting_grid
from hpo_pilot.search import SearchSpace
from tests.optimizers.runs import REAL


def space_of(dimensions: dict[str, Any], *constraints: str) -> SearchSpace:
    return SearchSpace.from_dict(dimensions, constraints)


def test_the_last_dimension_varies_fastest() -> None:
    space = space_of({"x": REAL, "c": {"type": "categorical", "choices": ["a", "b"]}})
    optimizer = create_optimizer("grid", space, settings={"points_per_dimension": 3})
    expected = [(x, c) for x in (0.0, 0.5, 1.0) for c in ("a", "b")]
    assert [tuple(point.values()) for point in optimizer.ask(4)] == expected[:4]
    assert [tuple(point.values()) for point in optimizer.ask(4)] == expected[4:]
    with pytest.raises(ExhaustedError, match="points_per_dimension"):
        optimizer.ask(1)


def test_told_and_pending_points_are_passed_over_and_come_back_if_lost() -> None:
    optimizer = create_optimizer("grid", space_of({"x": REAL}), settings={"points_per_dimension": 5})
    optimizer.tell([({"x": 0.25}, 1.0), ({"x": 0.3}, 1.0)])
    assert optimizer.ask(2, [{"x": 0.0}]) == [{"x": 0.5}, {"x": 0.75}]
    assert optimizer.ask(9, [{"x": 0.5}]) == [{"x": 0.0}, {"x": 0.75}, {"x": 1.0}]


def test_a_pending_point_does_not_restart_the_grid() -> None:
    space = space_of({"x": REAL, "y": REAL})
    optimizer = create_optimizer("grid", space, settings={"points_per_dimension": 50})
    (straggler,) = optimizer.ask(1, [])
    for _ in range(1000):
        (point,) = optimizer.ask(1, [straggler])
        optimizer.tell([(point, 0.0)])
    assert len(optimizer._open) <= 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(("dims", "trials", "points"), [(1, 64, 64), (2, 64, 8), (3, 64, 4), (2, 80, 8), (10, 64, 2)])
def test_the_grid_is_about_as_large_as_the_budget(dims: int, trials: int, points: int) -> None:
    assert fitting_grid(space_of({f"x{i}": REAL for i in range(dims)}), trials) == points


def test_constraints_and_conditions_leave_room_for_a_finer_grid() -> None:
    assert fitting_grid(space_of({"x": REAL, "y": REAL}, "x + y <= 1"), 66) == 11  # 11 * 12 / 2 = 66
    kind = {"type": "categorical", "choices": ["a", "b"]}
    space = space_of({"kind": kind, "x": {**REAL, "when": {"kind": "a"}}, "y": {**REAL, "when": {"kind": "b"}}})
    assert fitting_grid(space, 40) == 20
