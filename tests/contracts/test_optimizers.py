"""What `hpo_pilot.optimizers.base.Optimizer` promises, run against every optimizer."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.errors import ExhaustedError, InputError
from hpo_pilot.optimizers import Optimizer, create_optimizer, optimizer_class, optimizer_names
from hpo_pilot.search import SearchSpace, point_key

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

pytestmark = pytest.mark.parametrize("name", optimizer_names())


def space_of(dimensions: dict[str, Any], *constraints: str) -> SearchSpace:
    return SearchSpace.from_dict(dimensions, constraints)


def make(name: str, space: SearchSpace, seed: int = 3, trials: int | None = 60) -> Optimizer:
    # The grid of a finite space is made to hold every point of it, so that it can keep the promises of the others.
    grown = {"points_per_dimension": 1000} if name == "grid" and space.size < 1e5 else {}
    return create_optimizer(name, space, seed=seed, settings=grown, trials=trials)


def value_of(point: dict[str, Any]) -> float:
    """Some value that depends on every name of the point, the same in every process."""
    return zlib.crc32(point_key(point).encode()) / 2**32 + sum(v for v in point.values() if isinstance(v, float))


def check_points(space: SearchSpace, points: list[dict[str, Any]], taken: list[dict[str, Any]]) -> None:
    keys = [point_key(point) for point in points]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & {point_key(point) for point in taken}
    for point in points:
        assert point_key(space.canonical(point)) == point_key(point)
        assert json.loads(json.dumps(point)) == point
        assert all(value is None or type(value) in (int, float, str, bool) for value in point.values())


def run_search(name: str, space: SearchSpace, batches: int, batch: int = 6, seed: int = 3) -> list[dict[str, Any]]:
    optimizer = make(name, space, seed)
    points: list[dict[str, Any]] = []
    for _ in range(batches):
        asked = optimizer.ask(batch, [])
        check_points(space, asked, points)
        assert len(asked) == batch
        points += asked
        optimizer.tell([(point, value_of(point)) for point in asked])
    return points


def test_points_are_distinct_valid_and_native(name: str) -> None:
    run_search(name, space_of(MIXED, "layers * width <= 1024"), batches=5)


def test_pending_points_are_not_proposed(name: str) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    out: list[dict[str, Any]] = []
    for step in range(8):
        asked = optimizer.ask(4, out)
        assert len(asked) == 4
        check_points(space, asked, out)
        out += asked
        optimizer.tell([(out.pop(step % 3), float(step))])


def test_without_pending_it_remembers_what_it_proposed(name: str) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    first, second = optimizer.ask(5), optimizer.ask(5)
    check_points(space, second, first)
    optimizer.tell([(first[0], 1.0)])
    check_points(space, optimizer.ask(5), first + second)


def test_ask_is_pure(name: str) -> None:
    space = space_of(MIXED, "layers * width <= 1024")
    points = run_search(name, space, batches=4)
    told, pending = [(p, value_of(p)) for p in points[:20]], points[20:]

    at_once = make(name, space)
    at_once.tell(told)
    first = at_once.ask(5, pending)
    assert at_once.ask(5, pending) == first

    disturbed = make(name, space)
    for number, trial in enumerate(told):
        disturbed.tell([trial])
        if number % 7 == 0:
            disturbed.ask(1 + number % 3, pending[: number % 4])
    disturbed.ask(9, [])
    assert disturbed.ask(5, pending) == first
    assert disturbed.ask(5, [*reversed(pending), pending[0]]) == first


def test_same_points_in_another_process(name: str) -> None:
    code = (
        "import json, sys\n"
        "from hpo_pilot.optimizers import create_optimizer\n"
        "from hpo_pilot.search import SearchSpace\n"
        "name, dimensions, told, pending = json.load(sys.stdin)\n"
        "o = create_optimizer(name, SearchSpace.from_dict(dimensions), seed=3, trials=60)\n"
        "o.tell(told)\n"
        "print(json.dumps(o.ask(4, pending)))"
    )
    space = space_of(MIXED)
    points = run_search(name, space, batches=3)
    told, pending = [(p, value_of(p)) for p in points[:15]], points[15:]
    optimizer = create_optimizer(name, space, seed=3, trials=60)
    optimizer.tell(told)
    text = json.dumps([name, MIXED, told, pending])
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == optimizer.ask(4, pending)


def test_seeds_differ(name: str) -> None:
    if name == "grid":
        pytest.skip("the grid has no seed")
    space = space_of(MIXED)
    assert make(name, space, seed=1).ask(3) != make(name, space, seed=2).ask(3)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf, True, "0.5", [1.0], 10**400])
def test_failed_trials_are_survived(name: str, bad: Any) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    points = make("random", space, seed=9).ask(24)
    optimizer.tell([(p, bad if i % 2 else value_of(p)) for i, p in enumerate(points)])
    assert [o.value is None for o in optimizer.history] == [i % 2 == 1 for i in range(24)]
    check_points(space, optimizer.ask(6, []), points)


def test_a_history_of_failures_alone(name: str) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    seen: list[dict[str, Any]] = []
    for _ in range(6):
        asked = optimizer.ask(6, [])
        check_points(space, asked, seen)
        seen += asked
        optimizer.tell([(point, None) for point in asked])
    assert len(seen) == 36


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e300, -1e300, 5e-324])
def test_constant_values(name: str, value: float) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    points = make("random", space, seed=9).ask(30)
    optimizer.tell([(point, value) for point in points])
    check_points(space, optimizer.ask(5, []), points)


def test_huge_and_tiny_values_together(name: str) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    points = make("random", space, seed=9).ask(40)
    values = [1e300, -1e300, 1.7e308, -1.7e308, 5e-324, -5e-324, 0.0, 1.0, 0.5, 2.0]
    optimizer.tell([(point, values[i % 10]) for i, point in enumerate(points)])
    check_points(space, optimizer.ask(5, []), points)


def test_the_same_point_told_200_times(name: str) -> None:
    space = space_of(MIXED)
    optimizer = make(name, space)
    point, *others = make("random", space, seed=9).ask(12)
    for repeat in range(200):
        optimizer.tell([(point, 1.0 + 0.001 * repeat)])
    check_points(space, optimizer.ask(5, []), [point])
    optimizer.tell([(other, value_of(other)) for other in others])
    optimizer.tell([(point, None)])
    check_points(space, optimizer.ask(5, []), [point, *others])


def test_points_from_outside_the_space(name: str) -> None:
    """An older search had other bounds, names and choices; nothing of it crashes, nothing of it is proposed."""
    space = space_of(MIXED)
    optimizer = make(name, space)
    good = make("random", space, seed=9).ask(15)
    wrong = [
        {**good[0], "lr": 7.0},
        {**good[1], "lr": -1.0},
        {**good[2], "layers": 99},
        {**good[3], "layers": 2.5},
        {**good[4], "solver": "rmsprop"},
        {**good[5], "unknown": 1},
        {k: v for k, v in good[6].items() if k != "width"},
        {**good[7], "lr": "fast"},
        {**good[8], "width": None},
        {**good[9], "dropout": True},
        {},
    ]
    optimizer.tell([(point, 0.1) for point in wrong])
    optimizer.tell([(point, value_of(point)) for point in good])
    check_points(space, optimizer.ask(6, wrong), good)


def test_told_numbers_of_another_type_are_the_same_point(name: str) -> None:
    space = space_of({"x": {"type": "real", "low": 0, "high": 2, "step": 1}})
    optimizer = make(name, space)
    optimizer.tell([({"x": 1}, 0.5)])
    assert sorted(point["x"] for point in optimizer.ask(3, [{"x": 2}])) == [0.0]


def test_a_space_of_one_point(name: str) -> None:
    space = space_of({"only": {"type": "categorical", "choices": ["this"]}})
    optimizer = make(name, space)
    assert optimizer.ask(3, []) == [{"only": "this"}]
    with pytest.raises(ExhaustedError):
        optimizer.ask(1, [{"only": "this"}])
    optimizer.tell([({"only": "this"}, 1.0)])
    with pytest.raises(ExhaustedError):
        optimizer.ask(1, [])


@pytest.mark.parametrize("batch", [1, 4])
def test_six_cells_each_once(name: str, batch: int) -> None:
    optimizer = make(name, space_of(SIX_CELLS))
    seen: list[dict[str, Any]] = []
    while len(seen) < 6:
        asked = optimizer.ask(batch, [])
        assert len(asked) == min(batch, 6 - len(seen))
        check_points(optimizer.space, asked, seen)
        seen += asked
        optimizer.tell([(point, float(point["a"])) for point in asked])
    with pytest.raises(ExhaustedError, match="told or pending"):
        optimizer.ask(1, [])


def test_every_value_of_a_log_integer_is_reached(name: str) -> None:
    optimizer = make(name, space_of({"n": {"type": "integer", "low": 1, "high": 40, "scale": "log"}}))
    seen: list[int] = []
    for _ in range(4):
        asked = optimizer.ask(10, [])
        seen += [point["n"] for point in asked]
        optimizer.tell([(point, float(point["n"])) for point in asked])
    assert sorted(seen) == list(range(1, 41))


def test_conditional_dimensions(name: str) -> None:
    space = space_of(
        {
            "kind": {"type": "categorical", "choices": ["a", "b"]},
            "depth": {"type": "integer", "low": 1, "high": 3, "when": {"kind": "a"}},
            "rate": {"type": "real", "low": 0.0, "high": 1.0, "step": 0.5, "when": {"depth": [2, 3]}},
        }
    )
    optimizer = make(name, space)
    seen = []
    while True:
        try:
            asked = optimizer.ask(2, [])
        except ExhaustedError:
            break
        seen += asked
        optimizer.tell([(point, value_of(point)) for point in asked])
    assert sorted(map(point_key, seen)) == sorted(map(point_key, space.all_points()))


@pytest.mark.parametrize("limit", [0.14, 0.02])  # 1% and 0.02% of the box
def test_few_points_are_feasible(name: str, limit: float) -> None:
    if name == "grid" and limit < 0.1:
        pytest.skip("a regular grid has hardly a point there")
    unit = {"type": "real", "low": 0.0, "high": 1.0}
    space = space_of({"x": unit, "y": unit}, f"x + y <= {limit}")
    run_search(name, space, batches=3 if limit > 0.1 else 2)


def test_nothing_is_feasible(name: str) -> None:
    space = space_of({**SIX_CELLS}, "a * a == 2")
    with pytest.raises(ExhaustedError):
        make(name, space).ask(1)


def test_ask_for_none_is_an_error_of_the_caller(name: str) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        make(name, space_of(SIX_CELLS)).ask(0)


def test_unknown_settings_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="colour"):
        create_optimizer(name, space_of(SIX_CELLS), settings={"colour": "red"})
    with pytest.raises(ValueError, match="colour"):
        optimizer_class(name).check_settings({"colour": "red"})


def test_a_thousand_told(name: str) -> None:
    space = space_of({k: v for k, v in MIXED.items() if k != "odd"})
    points = make("random", space, seed=9).ask(1000)
    optimizer = make(name, space, trials=2000)
    optimizer.tell([(p, None if i % 10 == 0 else value_of(p)) for i, p in enumerate(points)])
    asked = optimizer.ask(64, [])
    assert len(asked) == 64
    check_points(space, asked, points)


@st.composite
def dimensions(draw: st.DrawFn) -> dict[str, Any]:
    kinds = {
        "real": st.builds(
            lambda low, span, log: {
                "type": "real",
                "low": low,
                "high": low + span,
                "scale": "log" if log else "linear",
            },
            st.floats(1e-3, 10),
            st.floats(1e-2, 100),
            st.booleans(),
        ),
        "integer": st.builds(
            lambda low, span, log: {
                "type": "integer",
                "low": low,
                "high": low + span,
                "scale": "log" if log else "linear",
            },
            st.integers(1, 5),
            st.integers(1, 20),
            st.booleans(),
        ),
        "stepped": st.builds(
            lambda low, step, count: {"type": "real", "low": low, "high": low + step * count, "step": step},
            st.integers(-3, 3),
            st.sampled_from([0.1, 0.25, 1.0]),
            st.integers(1, 6),
        ),
        "choice": st.builds(
            lambda kind, choices: {"type": kind, "choices": choices},
            st.sampled_from(["categorical", "ordinal"]),
            st.lists(
                st.sampled_from([0, 1, 2.5, True, False, "a", "1", None, 1.0]), min_size=1, max_size=4, unique_by=repr
            ),
        ),
    }
    space = {f"p{i}": dict(draw(kinds[draw(st.sampled_from(list(kinds)))])) for i in range(draw(st.integers(1, 4)))}
    parents = [n for n, d in space.items() if "choices" in d]
    for child, dimension in space.items():
        if parents and child > parents[0] and draw(st.booleans()):
            dimension["when"] = {parents[0]: draw(st.sampled_from(space[parents[0]]["choices"]))}
    return space


@settings(max_examples=12, deadline=None)
@given(dimensions=dimensions(), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_random_spaces(name: str, dimensions: dict[str, Any], seed: int, data: st.DataObject) -> None:
    space = space_of(dimensions)
    optimizer, twin = make(name, space, seed), make(name, space, seed)
    seen: list[dict[str, Any]] = []
    value = st.one_of(st.none(), st.floats(), st.floats(-2, 2), st.integers(-2, 2))
    for _ in range(6):
        count = data.draw(st.integers(1, 5))
        try:
            asked = optimizer.ask(count, [])
        except ExhaustedError:
            assert name == "grid" or len(seen) == len(list(space.all_points()))
            with pytest.raises(ExhaustedError):
                twin.ask(1, [])
            return
        assert asked == twin.ask(count, []) == optimizer.ask(count, [])
        check_points(space, asked, seen)
        seen += asked
        told = [(point, data.draw(value)) for point in asked]
        optimizer.tell(told)
        twin.tell(told)
