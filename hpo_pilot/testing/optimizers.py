"""Checks of the contract of `hpo_pilot.optimizers.base.Optimizer`, with one objective."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.base import Optimizer, stream
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.search import Point, SearchSpace, point_key

#: Makes an optimizer from a space, `seed` and `trials`: the class itself, or a function that also gives settings.
MakeOptimizer: TypeAlias = Callable[..., Optimizer]

#: A dimension of every kind.
MIXED = {
    "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log"},
    "momentum": {"type": "real", "low": 0.0, "high": 1.0, "when": {"solver": "sgd"}},
    "dropout": {"type": "real", "low": 0, "high": 0.5, "step": 0.05},
    "layers": {"type": "integer", "low": 1, "high": 5},
    "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
    "even": {"type": "integer", "low": 0, "high": 10, "step": 2},
    "solver": {"type": "categorical", "choices": ["adam", "sgd", "lbfgs"]},
    "odd": {"type": "categorical", "choices": [1, True, "1"]},
    "batch": {"type": "ordinal", "choices": [32, 64, 128]},
}
SIX_CELLS = {"a": {"type": "integer", "low": 1, "high": 3}, "b": {"type": "categorical", "choices": ["x", "y"]}}
_LIMITED = "layers * width <= 1024"
_ONE = {"only": {"type": "categorical", "choices": ["this"]}}
_CONDITIONS = {
    "kind": {"type": "categorical", "choices": ["a", "b"]},
    "depth": {"type": "integer", "low": 1, "high": 3, "when": {"kind": "a"}},
    "rate": {"type": "real", "low": 0.0, "high": 1.0, "step": 0.5, "when": {"depth": [2, 3]}},
}


def check_optimizer(make: MakeOptimizer) -> None:
    """Runs all checks.

    Args:
        make: the class; or a function with its arguments, which gives settings too.

    Raises:
        AssertionError: the optimizer breaks a part of its contract.
    """
    for check in OPTIMIZER_CHECKS:
        check(make)


def space_of(dimensions: dict[str, Any], *constraints: str) -> SearchSpace:
    """Returns the space of these dimensions, as in a search file."""
    return SearchSpace.from_dict(dimensions, constraints)


def some_points(count: int, *constraints: str) -> list[Point]:
    """Returns feasible points of `MIXED`, the same each time."""
    return Proposals(space_of(MIXED, *constraints), count, (), ()).complete(stream(9))


def value_of(point: Point) -> float:
    """Returns a value that depends on every name of the point, the same in every process."""
    return zlib.crc32(point_key(point).encode()) / 2**32 + sum(v for v in point.values() if isinstance(v, float))


def check_points(space: SearchSpace, points: Sequence[Point], taken: Sequence[Point]) -> None:
    """Checks that points are distinct, new, canonical, feasible and JSON values."""
    keys = [point_key(point) for point in points]
    assert len(set(keys)) == len(keys), f"proposed twice in one ask: {points}"
    assert not set(keys) & {point_key(point) for point in taken}, f"proposed although told or pending: {points}"
    for point in points:
        assert space.is_feasible(point), f"breaks a constraint: {point}"
        assert point_key(space.canonical(point)) == point_key(point), f"not canonical: {point}"
        assert json.loads(json.dumps(point)) == point, f"JSON changes it: {point}"
        kinds = {type(value) for value in point.values()}
        assert kinds <= {int, float, str, bool, type(None)}, f"values must be of Python's own types: {point}"


def _asked(optimizer: Optimizer, n: int, pending: Sequence[Point] | None, taken: Sequence[Point]) -> list[Point]:
    """Asks for `n` points, and checks that there are as many and that they are valid."""
    points = optimizer.ask(n, pending)
    assert len(points) == n, f"asked for {n} points, got {len(points)}"
    check_points(optimizer.space, points, taken)
    return points


def _is_exhausted(optimizer: Optimizer, pending: Sequence[Point] = ()) -> None:
    try:
        points = optimizer.ask(1, pending)
    except ExhaustedError:
        return
    raise AssertionError(f"no point is left: ask must raise ExhaustedError, not return {points}")


def told_and_pending_points_are_not_proposed(make: MakeOptimizer) -> None:
    """Neither are points that this object proposed before, where the caller keeps no list of pending points."""
    optimizer, out = make(space_of(MIXED), seed=3, trials=60), list[Point]()
    for step in range(8):
        out += _asked(optimizer, 4, out, out)
        optimizer.tell([(out.pop(step % 3), float(step))])
    optimizer = make(space_of(MIXED), seed=3, trials=60)
    first = _asked(optimizer, 5, None, [])
    second = _asked(optimizer, 5, None, first)
    optimizer.tell([(first[0], 1.0)])
    _asked(optimizer, 5, None, first + second)


def ask_is_pure(make: MakeOptimizer) -> None:
    """The same history and pending points give the same points, whatever was asked before."""
    space = space_of(MIXED, _LIMITED)
    at_once, points = make(space, seed=3, trials=60), list[Point]()
    for _ in range(4):
        asked = _asked(at_once, 6, [], points)
        points += asked
        at_once.tell([(point, value_of(point)) for point in asked])
    told, pending = [(point, value_of(point)) for point in points[:20]], points[20:]
    at_once, disturbed = make(space, seed=3, trials=60), make(space, seed=3, trials=60)
    at_once.tell(told)
    first = at_once.ask(5, pending)
    assert at_once.ask(5, pending) == first, "a second ask gives other points"
    for number, trial in enumerate(told):
        disturbed.tell([trial])
        if number % 7 == 0:
            disturbed.ask(1 + number % 3, pending[: number % 4])
    disturbed.ask(9, [])
    assert disturbed.ask(5, pending) == first, "earlier asks change the points"
    assert disturbed.ask(5, [*reversed(pending), pending[0]]) == first, "the order of pending points changes the points"


def failed_trials_are_taken(make: MakeOptimizer) -> None:
    """None and numbers that are not finite are failures; their points are not proposed, but may be told again."""
    bad = [None, math.nan, math.inf, -math.inf, np.float32("nan"), 10**400] * 2
    points = some_points(24, _LIMITED)
    optimizer, rebuilt = (make(space_of(MIXED, _LIMITED), seed=3, trials=60) for _ in range(2))
    optimizer.tell([(p, bad[i // 2] if i % 2 else value_of(p)) for i, p in enumerate(points)])
    assert [seen.value is None for seen in optimizer.history] == [i % 2 == 1 for i in range(24)], "history is wrong"
    again = points[1::2]
    _asked(optimizer, 4, again, points)
    optimizer.tell([(point, -float(i)) for i, point in enumerate(again)])
    asked = _asked(optimizer, 4, [], points)
    rebuilt.tell([(p, None if i % 2 else value_of(p)) for i, p in enumerate(points)])
    rebuilt.tell([(point, -float(i)) for i, point in enumerate(again)])
    assert rebuilt.ask(4, []) == asked, "the same history gives other points"


def failures_alone_do_not_stop_it(make: MakeOptimizer) -> None:
    """A search whose trials all fail goes on."""
    optimizer, seen = make(space_of(MIXED), seed=3, trials=60), list[Point]()
    for _ in range(6):
        asked = _asked(optimizer, 6, [], seen)
        seen += asked
        optimizer.tell([(point, None) for point in asked])


def extreme_values_are_taken(make: MakeOptimizer) -> None:
    """Equal, huge and tiny values."""
    wide = [1e300, -1e300, 1.7e308, -1.7e308, 5e-324, -5e-324, 0.0, 1.0, 0.5, 2.0]
    points = some_points(40)
    for values in ([0.0], [-3.5], [1e300], [5e-324], wide):
        optimizer = make(space_of(MIXED), seed=3, trials=60)
        optimizer.tell([(point, values[i % len(values)]) for i, point in enumerate(points)])
        _asked(optimizer, 5, [], points)


def points_outside_the_space_are_taken(make: MakeOptimizer) -> None:
    """An older search had other bounds and choices; its points are not proposed. 1 and 1.0 are the same point."""
    optimizer, good = make(space_of(MIXED), seed=3, trials=60), some_points(15)
    changes: list[dict[str, Any]] = [{"lr": 7.0}, {"lr": -1.0}, {"layers": 99}, {"layers": 2.5}]
    changes += [{"solver": "rmsprop"}, {"solver": None}, {"lr": 1e300}]
    wrong = [{**point, **change} for point, change in zip(good, changes, strict=False)]
    optimizer.tell([(point, 0.1) for point in wrong])
    optimizer.tell([(point, value_of(point)) for point in good])
    check_points(optimizer.space, optimizer.ask(6, wrong), good)
    optimizer = make(space_of({"x": {"type": "real", "low": 0, "high": 2, "step": 1}}), seed=3, trials=60)
    optimizer.tell([({"x": 1}, 0.5)])
    assert optimizer.ask(3, [{"x": 2}]) == [{"x": 0.0}], "only x = 0 is left"


def every_point_of_a_small_space_is_found(make: MakeOptimizer) -> None:
    """Also with conditions; then, and where nothing is feasible, it raises ExhaustedError."""
    for dimensions in (_ONE, SIX_CELLS, _CONDITIONS):
        space = space_of(dimensions)
        count = len(list(space.all_points()))
        for batch in (1, 4):
            optimizer, seen = make(space, seed=3, trials=60), list[Point]()
            while len(seen) < count:
                asked = optimizer.ask(batch, [])
                assert len(asked) == min(batch, count - len(seen)), f"{len(asked)} points of {batch}"
                check_points(space, asked, seen)
                seen += asked
                optimizer.tell([(point, value_of(point)) for point in asked])
            _is_exhausted(optimizer)
    _is_exhausted(make(space_of(_ONE), seed=3, trials=60), [{"only": "this"}])
    for constraints in (("a * a == 2",), ("a > 2", "a < 2")):
        _is_exhausted(make(space_of(SIX_CELLS, *constraints), seed=3, trials=60))


def earlier_searches_are_not_told(make: MakeOptimizer) -> None:
    """Their points may be proposed again, may be of another space, and give the same points each time."""
    space = space_of(SIX_CELLS)
    optimizer, twin = make(space, seed=3, trials=60), make(space, seed=3, trials=60)
    everything = [(point, float(point["a"])) for point in space.all_points()]
    strange: list[tuple[Point, float]] = [
        ({"a": 9, "b": "x"}, 0.1),
        ({"c": 1}, 0.2),
        ({}, math.nan),
        ({"a": 1, "b": "z"}, 0.3),
    ]
    for one in (optimizer, twin):
        one.tell_earlier("old", [*everything, *strange])
        one.tell_earlier("older", [(point, None) for point, _ in everything])
    asked = _asked(optimizer, 6, [], [])
    assert twin.ask(6, []) == asked, "the same earlier results give other points"
    assert optimizer.history == [], "earlier results are in the history"


def stopped_trials_are_not_repeated(make: MakeOptimizer) -> None:
    """They are told as stopped, with a projected value."""
    optimizer = make(space_of(SIX_CELLS), seed=3, trials=60)
    for point in optimizer.ask(4, []):
        optimizer.tell([(point, -1.0, None, True)])
    assert all(seen.stopped for seen in optimizer.history), "the history has no stopped trials"
    rest = _asked(optimizer, 2, [], [seen.point for seen in optimizer.history])
    _is_exhausted(optimizer, rest)


OPTIMIZER_CHECKS: tuple[Callable[[MakeOptimizer], None], ...] = (
    told_and_pending_points_are_not_proposed,
    ask_is_pure,
    failed_trials_are_taken,
    failures_alone_do_not_stop_it,
    extreme_values_are_taken,
    points_outside_the_space_are_taken,
    every_point_of_a_small_space_is_found,
    earlier_searches_are_not_told,
    stopped_trials_are_not_repeated,
)
