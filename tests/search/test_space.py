"""Spaces: conditions, constraints, points, units, grids."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.search import SearchSpace, point_key
from hpo_pilot.search.space import feasibility_mistakes

SPACE: dict[str, Any] = {
    "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"solver": "sgd"}},  # before its parent
    "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
    "nesterov": {"type": "categorical", "choices": [True, False], "when": {"solver": "sgd"}},
    "layers": {"type": "integer", "low": 1, "high": 4},
    "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
    "decay": {"type": "real", "low": 0, "high": 1, "when": {"nesterov": True, "layers": [2, 3]}},
}


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace.from_dict(SPACE, ["layers * width <= 1024", "momentum < 0.9"])


def test_decoded_points_are_valid_and_come_back(space: SearchSpace) -> None:
    numbers = random.Random(1)
    seen = set()
    for _ in range(500):
        point = space.decode([numbers.random() for _ in space.names])
        seen.add(tuple(point))
        assert ("momentum" in point) == (point["solver"] == "sgd")
        assert ("decay" in point) == (point.get("nesterov") is True and point["layers"] in (2, 3))
        assert list(point) == [name for name in space.names if name in point]
        assert space.decode(space.encode(point)).keys() == point.keys()
        if space.is_feasible(point):
            assert space.canonical(json.loads(json.dumps(point))) == point
    assert len(seen) == 3


def test_canonical_sorts_and_converts(space: SearchSpace) -> None:
    point = space.canonical({"width": 64.0, "layers": 2, "solver": "adam"})
    assert list(point.items()) == [("solver", "adam"), ("layers", 2), ("width", 64)]
    assert type(point["width"]) is int


@pytest.mark.parametrize(
    ("point", "texts"),
    [
        ({"solver": "adam", "layers": 2}, ["width: is missing"]),
        ({"solver": "adam", "layers": 2, "widht": 3, "width": 4}, ["widht: is not a parameter", "width: must be betw"]),
        (
            {"solver": "adam", "layers": 1, "width": 16, "momentum": 0.6},
            ["momentum: is not active here: it needs solver"],
        ),
        (
            {"solver": "sgt", "layers": 1, "width": 16, "momentum": 0.6},
            ["solver: must be 'adam' or 'sgd'", "mean sgd?"],
        ),
        ({"solver": "adam", "layers": 4, "width": 512}, ["breaks the constraint 'layers * width <= 1024'"]),
        ({"solver": "adam", "layers": "2", "width": 16}, ["write 2 without quotes"]),
    ],
)
def test_wrong_points_are_refused_with_every_reason(
    space: SearchSpace, point: dict[str, Any], texts: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        space.canonical(point)
    for text in texts:
        assert text in str(caught.value)


def test_a_wrong_parent_says_nothing_of_its_children(space: SearchSpace) -> None:
    (mistake,) = space.mistakes({"solver": "sgt", "layers": 1, "width": 16, "momentum": 0.6, "nesterov": 7})
    assert mistake.path == ("solver",)


def test_conditions_tell_1_from_true() -> None:
    space = SearchSpace.from_dict(
        {
            "a": {"type": "categorical", "choices": [1, True, 1.0]},
            "b": {"type": "integer", "low": 0, "high": 9, "when": {"a": True}},
            "c": {"type": "integer", "low": 0, "high": 9, "when": {"a": 1}},
        }
    )
    assert [sorted(space.decode([u, 0.5, 0.5])) for u in (0.1, 0.5, 0.9)] == [["a", "c"], ["a", "b"], ["a"]]


def test_a_condition_on_a_stepped_real_takes_the_integer() -> None:
    space = SearchSpace.from_dict(
        {
            "rate": {"type": "real", "low": 0, "high": 1, "step": 0.5},
            "x": {"type": "integer", "low": 0, "high": 1, "when": {"rate": 1}},
        }
    )
    assert "x" in space.decode([1, 0])
    assert "x" not in space.decode([0, 0])


def test_all_points_of_a_finite_space_once_each() -> None:
    space = SearchSpace.from_dict(
        {
            "child": {"type": "integer", "low": 1, "high": 10, "scale": "log", "when": {"parent": "b"}},
            "parent": {"type": "categorical", "choices": ["a", "b"]},
            "flag": {"type": "categorical", "choices": [1, True]},
        },
        ["child != 3"],
    )
    points = list(space.all_points())
    assert len(points) == len({point_key(point) for point in points}) == 2 * (1 + 9)
    assert space.size == 40


def test_grid_order_and_size() -> None:
    space = SearchSpace.from_dict(
        {"x": {"type": "real", "low": 0, "high": 1}, "y": {"type": "integer", "low": 0, "high": 9}}
    )
    assert [tuple(p.values()) for p in space.grid(2)] == [(0.0, 0), (0.0, 9), (1.0, 0), (1.0, 9)]
    assert space.size == math.inf
    with pytest.raises(ValueError, match="no list of points"):
        list(space.all_points())


def test_from_dict_names_every_mistake_in_plain_words() -> None:
    with pytest.raises(InputError) as caught:
        SearchSpace.from_dict({"lr": {"type": "float", "low": "1e-4"}, "n": {"type": "integer", "low": 4, "high": 1}})
    text = str(caught.value)
    assert "lr.type: must be real, integer, categorical or ordinal, not 'float' — did you mean real?" in text
    assert "n.low: low (4) must be below high (1)" in text
    assert "pydantic" not in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("dimensions", "constraints", "text"),
    [
        ({}, [], "the space is empty"),
        ({" x": {"type": "integer", "low": 0, "high": 1}}, [], "not a usable name"),
        ({"x": {"type": "integer", "low": 0, "high": 1, "when": {"x": 1}}}, [], "depends on itself"),
        ({"x": {"type": "integer", "low": 0, "high": 1, "when": {"y": 1}}}, [], "'y' is not in the space"),
        (
            {"x": {"type": "integer", "low": 0, "high": 1}},
            ["xx < 1"],
            "names xx, which is not in the space — did you mean x",
        ),
        ({"a-b": {"type": "integer", "low": 0, "high": 1}}, ["a-b < 1"], "reads a-b as a subtraction"),
    ],
)
def test_wrong_spaces(dimensions: dict[str, Any], constraints: list[str], text: str) -> None:
    with pytest.raises(InputError) as caught:
        SearchSpace.from_dict(dimensions, constraints)
    assert text in str(caught.value)


def test_circles_are_named_without_their_dependants() -> None:
    def depends(on: str) -> dict[str, Any]:
        return {"type": "integer", "low": 0, "high": 1, "when": {on: 1}}

    with pytest.raises(InputError, match="the conditions of a and b go round in a circle"):
        SearchSpace.from_dict({"a": depends("b"), "b": depends("a"), "c": depends("a"), "d": depends("c")})


def test_conditions_on_continuous_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="x is continuous, so it is never exactly one value"):
        SearchSpace.from_dict(
            {
                "x": {"type": "real", "low": 0, "high": 1},
                "y": {"type": "integer", "low": 0, "high": 1, "when": {"x": 0.5}},
            }
        )


REAL = {"type": "real", "low": 0, "high": 1}


def test_a_thousandth_of_the_space_is_found() -> None:
    space = SearchSpace.from_dict(
        {"x": REAL, "y": REAL, "z": REAL}, ["x < 0.7", "x > 0.6", "y < 0.1", "abs(z - 0.43) < 0.05"]
    )
    assert feasibility_mistakes(space) == []


def test_a_corner_is_found_by_the_grid() -> None:
    assert feasibility_mistakes(SearchSpace.from_dict({"x": REAL, "y": REAL}, ["x == 1", "y == 0"])) == []


def test_a_small_finite_space_is_searched_in_full() -> None:
    number = {"type": "integer", "low": 0, "high": 99}
    assert feasibility_mistakes(SearchSpace.from_dict({"x": number, "y": number}, ["x * 100 + y == 4242"])) == []
    (mistake,) = feasibility_mistakes(SearchSpace.from_dict({"x": number, "y": number}, ["x * 100 + y == 42420"]))
    assert mistake.message == "no feasible point: none of the 10000 points tried satisfies 'x * 100 + y == 42420'"


def test_the_culprit_is_named() -> None:
    space = SearchSpace.from_dict({"x": REAL, "c": {"type": "categorical", "choices": ["a"]}}, ["x > 0", "c < 3"])
    (mistake,) = feasibility_mistakes(space)
    assert mistake.path == ("constraints", 1)
    assert "it fails: '<' not supported between instances of 'str' and 'int'" in mistake.message


def test_two_that_exclude_each_other_are_named() -> None:
    (mistake,) = feasibility_mistakes(SearchSpace.from_dict({"x": REAL}, ["x < 0.4", "x >= 0", "x > 0.6"]))
    assert mistake.path == ("constraints", 2)
    assert "both this and 'x < 0.4'" in mistake.message


def test_three_that_exclude_each_other() -> None:
    space = SearchSpace.from_dict({"x": REAL, "y": REAL, "z": REAL}, ["x < y", "y < z", "z < x"])
    (mistake,) = feasibility_mistakes(space)
    assert mistake.path == ("constraints",)
