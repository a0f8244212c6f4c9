"""What `hpo_pilot.optimizers.base.Optimizer` promises, run against every optimizer."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hpo_pilot.errors import ExhaustedError, InputError
from hpo_pilot.optimizers import create_optimizer, optimizer_class
from hpo_pilot.search import Point, SearchSpace, point_key

from .optimizers_here import MIXED, SIX_CELLS, check_points, make, names_here, space_of, value_of

pytestmark = pytest.mark.parametrize("name", names_here())


SPACE = space_of(MIXED)


def some_points(count: int) -> list[Point]:
    """Feasible points of `SPACE`, the same each time."""
    return make("random", SPACE, seed=9).ask(count)


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


def test_pending_points_are_not_proposed(name: str) -> None:
    optimizer = make(name, SPACE)
    out: list[dict[str, Any]] = []
    for step in range(8):
        asked = optimizer.ask(4, out)
        assert len(asked) == 4
        check_points(SPACE, asked, out)
        out += asked
        optimizer.tell([(out.pop(step % 3), float(step))])


def test_without_pending_it_remembers_what_it_proposed(name: str) -> None:
    optimizer = make(name, SPACE)
    first, second = optimizer.ask(5), optimizer.ask(5)
    check_points(SPACE, second, first)
    optimizer.tell([(first[0], 1.0)])
    check_points(SPACE, optimizer.ask(5), first + second)


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


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, list[dict[str, Any]]]:
    """What every optimizer proposes after the history of `told_of_mixed`, in another process."""
    code = (
        "import json, sys\n"
        "from hpo_pilot.optimizers import create_optimizer\n"
        "from hpo_pilot.search import SearchSpace\n"
        "names, dimensions, told, pending = json.load(sys.stdin)\n"
        "answers = {}\n"
        "for name in reversed(names):\n"
        "    o = create_optimizer(name, SearchSpace.from_dict(dimensions), seed=3, trials=60)\n"
        "    o.tell(told)\n"
        "    answers[name] = o.ask(4, pending)\n"
        "print(json.dumps(answers))"
    )
    text = json.dumps([names_here(), MIXED, *told_of_mixed()])
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True)
    answers: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return answers


def told_of_mixed() -> tuple[list[tuple[dict[str, Any], float]], list[dict[str, Any]]]:
    points = some_points(18)
    return [(point, value_of(point)) for point in points[:15]], points[15:]


def test_same_points_in_another_process(name: str, elsewhere: dict[str, list[dict[str, Any]]]) -> None:
    told, pending = told_of_mixed()
    optimizer = create_optimizer(name, SPACE, seed=3, trials=60)
    optimizer.tell(told)
    assert elsewhere[name] == optimizer.ask(4, pending)


def test_seeds_differ(name: str) -> None:
    if name == "grid":
        pytest.skip("the grid has no seed")
    assert make(name, SPACE, seed=1).ask(3) != make(name, SPACE, seed=2).ask(3)


def test_failed_trials_do_not_raise(name: str) -> None:
    """A number that is not finite says that the trial failed, as None does."""
    optimizer = make(name, SPACE)
    points = some_points(24)
    bad = [None, math.nan, math.inf, -math.inf, np.float32("nan"), 10**400] * 2
    optimizer.tell([(p, bad[i // 2] if i % 2 else value_of(p)) for i, p in enumerate(points)])
    assert [o.value is None for o in optimizer.history] == [i % 2 == 1 for i in range(24)]
    check_points(SPACE, optimizer.ask(6, []), points)


def test_a_point_that_failed_may_be_tried_again(name: str) -> None:
    """As `retry` does: failed, out again, finished with the best value of all; and so for half of the points."""
    space = space_of(MIXED, "layers * width <= 1024")
    points = make("random", space, seed=9).ask(16)
    optimizer = make(name, space)
    optimizer.tell([(point, None if i % 2 else value_of(point)) for i, point in enumerate(points)])
    again = points[1::2]
    check_points(space, optimizer.ask(4, again), points)
    optimizer.tell([(point, -float(i)) for i, point in enumerate(again)])
    asked = optimizer.ask(4, [])
    assert len(asked) == 4
    check_points(space, asked, points)
    rebuilt = make(name, space)
    rebuilt.tell([(point, None if i % 2 else value_of(point)) for i, point in enumerate(points)])
    rebuilt.tell([(point, -float(i)) for i, point in enumerate(again)])
    assert rebuilt.ask(4, []) == asked


def test_a_history_of_failures_alone(name: str) -> None:
    optimizer = make(name, SPACE)
    seen: list[dict[str, Any]] = []
    for _ in range(6):
        asked = optimizer.ask(6, [])
        check_points(SPACE, asked, seen)
        seen += asked
        optimizer.tell([(point, None) for point in asked])
    assert len(seen) == 36


@pytest.mark.parametrize(
    "values",
    [[0.0], [-3.5], [1e300], [5e-324], [1e300, -1e300, 1.7e308, -1.7e308, 5e-324, -5e-324, 0.0, 1.0, 0.5, 2.0]],
)
def test_equal_huge_and_tiny_values(name: str, values: list[float]) -> None:
    optimizer = make(name, SPACE)
    points = some_points(40)
    optimizer.tell([(point, values[i % len(values)]) for i, point in enumerate(points)])
    check_points(SPACE, optimizer.ask(5, []), points)


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


def test_points_from_outside_the_space(name: str) -> None:
    """An older search had other bounds and choices; nothing of it crashes, nothing of it is proposed."""
    optimizer = make(name, SPACE)
    good = some_points(15)
    wrong = [
        {**good[0], "lr": 7.0},
        {**good[1], "lr": -1.0},
        {**good[2], "layers": 99},
        {**good[3], "layers": 2.5},
        {**good[4], "solver": "rmsprop"},
        {**good[5], "solver": None},
        {**good[6], "lr": 1e300},
    ]
    optimizer.tell([(point, 0.1) for point in wrong])
    optimizer.tell([(point, value_of(point)) for point in good])
    check_points(SPACE, optimizer.ask(6, wrong), good)


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


@pytest.mark.parametrize("constraints", [("a * a == 2",), ("a > 2", "a < 2")])
def test_nothing_is_feasible(name: str, constraints: tuple[str, ...]) -> None:
    """`validate` refuses such a space, and says which constraints exclude each other (tests/search/test_space.py)."""
    with pytest.raises(ExhaustedError):
        make(name, space_of(SIX_CELLS, *constraints)).ask(1)


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


def test_what_earlier_searches_found_is_not_told(name: str) -> None:
    """It may be proposed again, it may be of another space, and the same of it gives the same points."""
    space = space_of(SIX_CELLS)
    optimizer, twin = make(name, space), make(name, space)
    everything = [(point, float(point["a"])) for point in space.all_points()]
    strange = [({"a": 9, "b": "x"}, 0.1), ({"c": 1}, 0.2), ({}, math.nan), ({"a": 1, "b": "z"}, 0.3)]
    for one in (optimizer, twin):
        one.tell_earlier("old", [*everything, *strange])
        one.tell_earlier("older", [(point, None) for point, _ in everything])
    asked = optimizer.ask(6, [])
    assert sorted(map(point_key, asked)) == sorted(map(point_key, space.all_points()))
    assert twin.ask(6, []) == asked
    assert optimizer.history == []


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


def test_stopped_trials_inform_and_are_never_repeated(name: str) -> None:
    space = space_of(SIX_CELLS)
    optimizer = make(name, space)
    for point in optimizer.ask(4, []):
        optimizer.tell([(point, -1.0, None, True)])
    assert all(observation.stopped for observation in optimizer.history)
    check_points(space, optimizer.ask(2, []), [observation.point for observation in optimizer.history])
    with pytest.raises(ExhaustedError):
        optimizer.ask(1, optimizer.ask(2, []))
