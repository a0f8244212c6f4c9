"""What `hpo_pilot.optimizers.base.Optimizer` promises, run against every optimizer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.optimizers import base, create_optimizer, optimizer_class
from hpo_pilot.optimizers.base import Result
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.measured_limits import MeasuredLimit, measured_limit
from hpo_pilot.testing.optimizers import (
    MIXED,
    OPTIMIZER_CHECKS,
    SIX_CELLS,
    MakeOptimizer,
    check_points,
    some_points,
    space_of,
    value_of,
)

from .optimizers_here import NEEDED, make, names_here

pytestmark = pytest.mark.parametrize("name", names_here())


SPACE = space_of(MIXED)


@pytest.mark.parametrize("check", OPTIMIZER_CHECKS)
def test_the_contract_of_plug_ins(name: str, check: Callable[[MakeOptimizer], None]) -> None:
    check(partial(make, name))


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


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, list[dict[str, Any]]]:
    """What every optimizer proposes after the history of `told_of_mixed`, in another process."""
    code = (
        "import json, sys\n"
        "from hpo_pilot.optimizers import create_optimizer\n"
        "from hpo_pilot.search import SearchSpace\n"
        "names, needed, dimensions, told, pending = json.load(sys.stdin)\n"
        "answers = {}\n"
        "for name in reversed(names):\n"
        "    space = SearchSpace.from_dict(dimensions)\n"
        "    o = create_optimizer(name, space, seed=3, trials=60, settings=needed.get(name))\n"
        "    o.tell(told)\n"
        "    answers[name] = o.ask(4, pending)\n"
        "print(json.dumps(answers))"
    )
    text = json.dumps([names_here(), NEEDED, MIXED, *told_of_mixed()])
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    answers: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return answers


def told_of_mixed() -> tuple[list[tuple[dict[str, Any], float]], list[dict[str, Any]]]:
    points = some_points(18)
    return [(point, value_of(point)) for point in points[:15]], points[15:]


def test_same_points_in_another_process(name: str, elsewhere: dict[str, list[dict[str, Any]]]) -> None:
    told, pending = told_of_mixed()
    optimizer = make(name, SPACE)
    optimizer.tell(told)
    assert elsewhere[name] == optimizer.ask(4, pending)


def test_seeds_differ(name: str) -> None:
    if name == "grid":
        pytest.skip("the grid has no seed")
    assert make(name, SPACE, seed=1).ask(3) != make(name, SPACE, seed=2).ask(3)


def test_ten_thousand_identical_points(name: str) -> None:
    """They are one point with one mean: they neither slow an ask down nor outweigh the others."""
    if name == "optuna":
        pytest.skip("it keeps every trial: slow, and no worse")
    optimizer = make(name, SPACE, trials=10_010)
    point, *others = some_points(12)
    optimizer.tell([(point, 1.0 + 1e-5 * repeat) for repeat in range(10_000)])
    check_points(SPACE, optimizer.ask(5, []), [point])
    optimizer.tell([(other, value_of(other)) for other in others])
    optimizer.tell([(point, None)])
    check_points(SPACE, optimizer.ask(5, []), [point, *others])


def test_invalid_told_results_are_refused(name: str) -> None:
    """They would cost the result without a word; nothing of that call is taken."""
    optimizer = make(name, SPACE)
    good, other = some_points(2)
    slips: list[tuple[dict[str, Any], Any, str]] = [
        ({"foo": 7}, 0.1, "'foo' is not a parameter of the space"),
        ({"layer": 7}, 0.1, "'layer' is not a parameter of the space: did you mean layers"),
        ({"width": ...}, 0.1, "the point has no width"),
        ({"solver": "sgd", "momentum": ...}, 0.1, "the point has no momentum"),
        ({"lr": "fast"}, 0.1, "lr must be a number, not 'fast'"),
        ({"width": None}, None, "width must be a number"),
        ({"dropout": True}, 0.1, "dropout must be a number, not true"),
        ({}, [1.0, 2.0], "2 values for 1 objective"),
        *(
            ({}, value, "a value must be a number, or None")
            for value in (True, "0.5", "", b"", {}, 1j, object, ["nan"])
        ),
        ({}, (), "0 values for 1 objective"),
    ]
    for change, value, says in slips:
        wrong = {k: v for k, v in {**other, **change}.items() if v is not ...}
        with pytest.raises(InputError, match=f"result 1 of those told: {says}"):
            optimizer.tell([(good, 0.1), (wrong, value)])
        optimizer.tell_earlier(says, [(wrong, value), (good, 0.1)])  # which had its own names
    with pytest.raises(InputError, match="result 0 of those told: a standard error must be a number, or None"):
        optimizer.tell([(good, 0.1, "0.1")])
    assert optimizer.history == []


def test_every_value_of_a_log_integer_is_reached(name: str) -> None:
    optimizer = make(name, space_of({"n": {"type": "integer", "low": 1, "high": 40, "scale": "log"}}))
    seen: list[int] = []
    for _ in range(4):
        asked = optimizer.ask(10, [])
        seen += [point["n"] for point in asked]
        optimizer.tell([(point, float(point["n"])) for point in asked])
    assert sorted(seen) == list(range(1, 41))


@pytest.mark.parametrize("limit", [0.14, 0.02])  # 1% and 0.02% of the box
def test_few_points_are_feasible(name: str, limit: float) -> None:
    if name == "grid" and limit < 0.1:
        pytest.skip("a regular grid has hardly a point there")
    unit = {"type": "real", "low": 0.0, "high": 1.0}
    space = space_of({"x": unit, "y": unit}, f"x + y <= {limit}")
    run_search(name, space, batches=3 if limit > 0.1 else 2)


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
    count = 4 if name == "optuna" else 64  # which takes its time for each
    asked = optimizer.ask(count, [])
    assert len(asked) == count
    check_points(space, asked, points)


def test_old_results_are_forgotten_but_never_proposed_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in (("_MOST", 24), ("_NEWEST", 12), ("_BEST", 4)):
        monkeypatch.setattr(base, limit, value)
    points = make("random", SPACE, seed=9).ask(60)
    told = [(point, None if place % 10 == 5 else value_of(point)) for place, point in enumerate(points)]
    at_once, one_by_one = make(name, SPACE, trials=90), make(name, SPACE, trials=90)
    at_once.tell(told)
    for one in told:
        one_by_one.tell([one])
    assert len(at_once.history) <= 24
    assert min(value for _, value in told[:48] if value is not None) in [seen.value for seen in at_once.history]
    asked = at_once.ask(6, [])
    check_points(SPACE, asked, points)
    assert asked == one_by_one.ask(6, [])


@pytest.mark.parametrize(
    ("count", "objectives", "limits"),
    [(18, 1, []), (60, 1, []), (60, 2, []), (60, 1, [measured_limit("size", "<= 0.5")])],
)
def test_stored_results_are_as_told_ones_and_only_those_kept_are_read_whole(
    name: str, count: int, objectives: int, limits: list[MeasuredLimit], monkeypatch: pytest.MonkeyPatch
) -> None:
    if objectives > 1 and not optimizer_class(name).several_objectives:
        pytest.skip("it has one objective")
    for limit, value in (("_MOST", 24), ("_NEWEST", 12), ("_BEST", 4)):
        monkeypatch.setattr(base, limit, value)
    points = make("random", SPACE, seed=9).ask(count + 14)
    known, later = points[:6], points[-8:]

    def values_of(point: Point) -> float | tuple[float, float]:
        return (value_of(point), -point["lr"]) if objectives > 1 else value_of(point)

    errors = 0.1 if objectives == 1 else (0.1, 0.1)
    told = [
        Result(
            point, None if place % 10 == 5 else values_of(point), errors, place % 10 == 3, {"size": place % 7 / 7}, 9.0
        )
        for place, point in enumerate(points[6:-8])
    ]
    brief = [(one.point, None) if one.stopped and not limits else replace(one, errors=None) for one in told]
    read: list[int] = []

    def whole(places: list[int]) -> list[Result]:
        read.extend(places)
        return [told[place] for place in places]

    told_all, stored = (make(name, SPACE, trials=90, objectives=objectives, limits=limits) for _ in range(2))
    for optimizer in (told_all, stored):
        optimizer.tell([(point, values_of(point)) for point in known])
    told_all.tell(told)
    stored.tell_stored(brief, whole)
    assert len(read) == (count if count == 18 else sum(seen.seconds == 9.0 for seen in told_all.history))
    for optimizer in (told_all, stored):
        optimizer.tell([(point, values_of(point)) for point in later])
    assert (stored.history, stored.forgotten) == (told_all.history, told_all.forgotten)
    assert stored.ask(6, []) == told_all.ask(6, [])


def test_one_by_one_with_nothing_but_an_earlier_search(name: str) -> None:
    """A search of one slot, or of few trials: no start point may come before the first choice; nor does a failure."""
    earlier = [(point, value_of(point)) for point in make("random", SPACE, seed=5).ask(30)]
    optimizer = make(name, SPACE, trials=3)
    optimizer.tell_earlier("old", earlier)
    out: list[Point] = []
    for _ in range(3):
        asked = optimizer.ask(1, out)
        check_points(SPACE, asked, out)
        out += asked
    optimizer.tell([(point, None) for point in out])
    check_points(SPACE, optimizer.ask(2, []), out)
