"""One call of a steering container: from a points file to the next points, with nothing kept in between."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.migrate.steer import SteeringCall, next_points, read_points
from hpo_pilot.optimizers import optimizer_names
from hpo_pilot.search import point_key

SPACE = {
    "x": {"method": "uniform", "dimension": {"low": -1, "high": 1}},
    "n": {"method": "uniformint", "dimension": {"low": 0, "high": 4}},
}

Steer = Callable[..., list[Any]]


@pytest.fixture
def steer(tmp_path: Path) -> Steer:
    """Calls with points and space; the rest is of `SteeringCall`."""

    def call(points: Any, opt_space: Any = SPACE, *, count: int = 4, **more: Any) -> list[Any]:
        path = tmp_path / "idds_input.json"
        path.write_text(json.dumps({"points": points, "opt_space": opt_space}))
        return next_points(SteeringCall(count, **{"optimizer": "random", **more}), read_points(path, None))

    return call


@pytest.fixture
def refusal(steer: Steer) -> Callable[..., str]:
    def call(*arguments: Any, **more: Any) -> str:
        with pytest.raises(InputError) as caught:
            steer(*arguments, **more)
        return str(caught.value)

    return call


def test_points_are_what_the_payload_gets(steer: Steer) -> None:
    space = {
        **SPACE,
        "w": {"type": "Array", "params": {"shape": [2]}, "bounds": [0, 1]},
        "net": {"method": "categorical", "dimension": {"categories": [{"layers": 2}, "small"]}},
        "epochs": {"method": "fixed", "dimension": {"value": 5}},
    }
    for point in steer([], space):
        assert set(point) == {"x", "n", "w", "net", "epochs"}
        assert len(point["w"]) == 2
        assert point["net"] in ({"layers": 2}, "small")
        assert point["epochs"] == 5
        assert type(point["n"]) is int
        assert 0 <= point["n"] <= 4


@pytest.mark.parametrize("optimizer", optimizer_names())
def test_the_same_file_gives_the_same_points(steer: Steer, optimizer: str) -> None:
    points = [[{"x": 0.1 * i, "n": i % 4}, (0.1 * i) ** 2] for i in range(6)]
    first = steer(points, optimizer=optimizer)
    assert first == steer(points, optimizer=optimizer)
    assert len({point_key(point) for point in first}) == 4


@pytest.mark.parametrize("optimizer", optimizer_names())
def test_never_a_point_that_is_known_or_out(steer: Steer, optimizer: str) -> None:
    space = {"n": {"method": "uniformint", "dimension": {"low": 0, "high": 5}}, "b": ["u", "v"]}
    points: list[Any] = [[{"n": 0, "b": "u"}, 0.0], [{"n": 1, "b": "u"}, None], [{"n": 2, "b": "v"}, 1.0]]
    seen = {point_key(point) for point, _ in points}
    while new := steer(points, space, optimizer=optimizer, limit=40):
        assert seen.isdisjoint(map(point_key, new))
        seen |= set(map(point_key, new))
        points += [[point, None] for point in new]
    assert len(seen) == 12  # then all are tried, and the list is empty


def test_zero_is_a_result_and_null_is_pending(steer: Steer) -> None:
    space = {"x": SPACE["x"]}
    tried = [x / 10 for x in (-9, -6, -3, 0, 3, 5, 7, 9)]
    points = [[{"x": x}, 100 * (x - 0.5) ** 2] for x in tried]
    assert points[5][1] == 0.0
    told = steer(points, space, optimizer="bayesian", count=1)
    assert 0.4 < told[0]["x"] < 0.6
    pending = [[point, None if loss == 0.0 else loss] for point, loss in points]
    assert steer(pending, space, optimizer="bayesian", count=1) != told


def test_larger_may_be_better(steer: Steer) -> None:
    points = [[{"x": x / 10, "n": 1}, x / 10] for x in range(-9, 10)]
    up = [p["x"] for p in steer(points, optimizer="bayesian", count=2, sign=-1)]
    down = [p["x"] for p in steer(points, optimizer="bayesian", count=2)]
    assert max(up) > 0.5
    assert min(down) < -0.5


@pytest.mark.parametrize(
    ("known", "count", "limit", "expected"),
    [(0, 4, 10, 4), (8, 4, 10, 2), (10, 4, 10, 0), (12, 4, 10, 0), (3, 0, 10, 0), (3, 4, None, 4)],
)
def test_never_more_than_asked_for_or_than_are_left(
    steer: Steer, known: int, count: int, limit: int | None, expected: int
) -> None:
    points = [[{"x": i / 100, "n": 1}, 1.0 if i % 2 else None] for i in range(known)]
    assert len(steer(points, count=count, limit=limit)) == expected


SEGMENTED = [{"model_id": 0, "search_space": SPACE}, {"model_id": 7, "search_space": {"y": [0, 1]}}]


def test_segments_get_points_of_their_own(steer: Steer) -> None:
    points = [[[0, {"x": 0.5, "n": 1}], 0.0], [[0, {"x": 0.6, "n": 1}], None], [[7, {"y": 0.5}], 1.0]]
    new = steer(points, SEGMENTED, count=3, limit=20)
    assert sorted(identity for identity, _ in new) == [0, 7, 7]  # the one with fewer points first
    for identity, point in new:
        assert set(point) == ({"x", "n"} if identity == 0 else {"y"})


def test_a_segment_has_its_share_of_the_limit(steer: Steer) -> None:
    points = [[[0, {"x": i / 10, "n": 1}], 1.0] for i in range(5)]
    assert [identity for identity, _ in steer(points, SEGMENTED, count=20, limit=10)] == [7] * 5
    assert len(steer(points, SEGMENTED, count=3, per_model=True)) == 6
    assert steer(points, SEGMENTED, count=3, limit=10, per_model=True) == steer(points, SEGMENTED, count=3, limit=10)
    assert [len(steer([], SEGMENTED, count=20, limit=limit)) for limit in (0, 9)] == [0, 9]


def test_what_one_segment_cannot_use_goes_to_another(steer: Steer) -> None:
    small = [{"model_id": 0, "search_space": {"b": ["u", "v"]}}, {"model_id": 1, "search_space": SPACE}]
    new = steer([], small, count=10)
    assert [identity for identity, _ in new].count(0) == 2
    assert len(new) == 10


def test_failed_points_and_foreign_ones_stop_nothing(tmp_path: Path, steer: Steer) -> None:
    points = [[{"x": 0.5, "n": 1}, math.nan], [{"x": 0.6, "n": 1}, math.inf], [{"x": 5.0, "n": 9}, 1.0]]
    assert len(steer(points, optimizer="bayesian")) == 4
    assert len(steer([[{"other": 1}, 1.0]], optimizer="bayesian")) == 4
    path = tmp_path / "in.json"
    space = {"w": {"type": "Array", "params": {"shape": [2]}, "bounds": [0, 1]}}
    path.write_text(json.dumps({"points": [[{"w": [1]}, 1.0]], "opt_space": space}))
    (warning,) = read_points(path, None).warnings
    assert "points[0]: is ignored" in warning


def test_the_space_may_be_in_a_file(tmp_path: Path) -> None:
    own = "space: {a: {type: real, low: 0, high: 1}, b: {type: real, low: 0, high: 1}}\nconstraints: ['a < b']\n"
    own += "payload: {command: run, point: {fixed: {e: 1}}}\n"
    for name, text in (
        ("map.json", json.dumps(SPACE)),
        ("request.json", json.dumps({"opt_space": SPACE, "max_points": 5})),
        ("project.yaml", "search_space:\n  x: {method: uniform, dimension: {low: -1, high: 1e0}}\n"),
        ("search.yaml", own),
    ):
        (tmp_path / name).write_text(text)
        for point in next_points(SteeringCall(5, optimizer="random"), read_points(None, tmp_path / name)):
            assert "x" in point or (point["a"] < point["b"] and point["e"] == 1)


@pytest.mark.parametrize(
    ("points", "opt_space", "words"),
    [
        ({}, SPACE, 'must be {"points"'),
        ([5], SPACE, "points[0]: must be [point, loss or null]"),
        ([[{"x": 1}, "good"]], SPACE, "points[0][1]: must be a number or null"),
        ([[{"x": 1}, True]], SPACE, "points[0][1]"),
        ([[{"x": 1}, [0.5]]], SPACE, "points[0][1]"),
        ([[[0, {"x": 1}], 1.0]], SPACE, "points[0][0]: must be a mapping"),
        ([[{"x": 1}, 1.0]], SEGMENTED, "points[0][0]: must be [model_id, point]"),
        ([[[3, {"x": 1}], 1.0]], SEGMENTED, "3 is not the model_id"),
        ([], None, "opt_space is missing"),
        ([], [], "there is no model"),
        ([], [{"model_id": 0}], "search_space: is missing"),
        ([], [SEGMENTED[0], SEGMENTED[0]], "also the model_id of another"),
        ([], {"x": {"method": "unifrom", "dimension": {}}}, "did you mean uniform?"),
    ],
)
def test_a_wrong_file_is_told(refusal: Callable[..., str], points: Any, opt_space: Any, words: str) -> None:
    assert words in refusal(points, opt_space)


def test_a_wrong_call_is_told(tmp_path: Path, refusal: Callable[..., str]) -> None:
    assert "unknown optimizer" in refusal([], optimizer="nevergrad")
    assert "settings" in refusal([], optimizer="evolutionary", settings={"populatoin": 3})
    for text, words in (("", "not JSON"), ("[" * 100_000, "nested too deeply"), ("{", "not JSON"), ("5", "must be")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=words):
            read_points(tmp_path / "bad.json", None)
    with pytest.raises(InputError, match="there is no file"):
        read_points(tmp_path / "nowhere.json", None)
