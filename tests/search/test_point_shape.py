"""A payload that wants lists, constants or nested values gets them; the way back gives the point again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpo_pilot.search import PointShape, SearchSpace

SHAPE = PointShape(
    fixed={"epochs": 5, "tags": ["a"]},
    arrays={"w": [["w1", "w2"], ["w3", "net"]]},
    values={"net": {"large": {"layers": [8, 8]}, "list": [1]}},
)
SPACE = SearchSpace.from_dict(
    {
        **{name: {"type": "real", "low": 0, "high": 1} for name in ("w1", "w2", "w3", "lr")},
        "net": {"type": "categorical", "choices": ["small", "large", "list"]},
    }
)


def test_the_payloads_point() -> None:
    point = {"w1": 0.1, "w2": 0.2, "w3": 0.3, "lr": 0.5, "net": "large"}
    payload = SHAPE.payload_point(point)
    assert payload == {"lr": 0.5, "w": [[0.1, 0.2], [0.3, {"layers": [8, 8]}]], "epochs": 5, "tags": ["a"]}
    payload["tags"].append("changed")
    payload["w"][1][1]["layers"].append(1)
    assert SHAPE.payload_point(point)["tags"] == ["a"]  # what a payload does to its point stays there
    assert SHAPE.payload_point(point)["w"][1][1] == {"layers": [8, 8]}


@given(st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_encoding_and_decoding_give_the_same_value(unit: list[float]) -> None:
    point = SPACE.decode(unit)
    assert SPACE.canonical(SHAPE.search_point(SHAPE.payload_point(point))) == point


def test_a_plain_point_stays_as_it_is() -> None:
    assert PointShape().payload_point({"x": 1}) == PointShape().search_point({"x": 1}) == {"x": 1}


def test_constants_may_be_left_out_but_not_be_others() -> None:
    payload = {"lr": 0.5, "w": [[0, 0], [0, "small"]]}
    assert SHAPE.search_point(payload)["net"] == "small"
    with pytest.raises(ValueError, match="epochs is 5 in every point, not 6"):
        SHAPE.search_point({**payload, "epochs": 6})


@pytest.mark.parametrize("w", [None, 1, [1, 2], [[1, 2], 3], [[1, 2], [3]], [[1, 2, 3], [4, 5]]])
def test_a_list_of_another_shape_is_refused(w: Any) -> None:
    with pytest.raises(ValueError, match="w must be a list"):
        SHAPE.search_point({"lr": 0.5, "w": w})


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"fixed": {"lr": 1}}, "there is a parameter of that name"),
        ({"arrays": {"lr": ["w1"]}}, "there is a parameter of that name"),
        ({"arrays": {"w": ["w1", "w9"]}}, "there is w1, w2"),
        ({"arrays": {"w": ["w1", 2]}}, "not a parameter of the space"),
        ({"values": {"lr": {"x": 1}}}, "not a parameter with choices"),
        ({"values": {"net": {"huge": 1}}}, "not one of the choices"),
        ({"fixed": {"w": 1}, "arrays": {"w": ["w1"]}}, "there is a parameter of that name"),
    ],
)
def test_what_does_not_fit_the_space(shape: dict[str, Any], words: str) -> None:
    assert words in "\n".join(map(str, PointShape.model_validate(shape).mistakes(SPACE.dimensions)))


def test_what_fits() -> None:
    assert not list(SHAPE.mistakes(SPACE.dimensions))
    # A list may bear the name of one of its own members.
    assert not list(PointShape(arrays={"w1": ["w1", "w2"]}).mistakes(SPACE.dimensions))


def test_a_parameter_that_is_not_always_there_cannot_be_in_a_list() -> None:
    parent = {"type": "categorical", "choices": [0, 1]}
    space = SearchSpace.from_dict({"a": parent, "b": {"type": "real", "low": 0, "high": 1, "when": {"a": 1}}})
    assert "not in every point" in str(next(PointShape(arrays={"w": ["a", "b"]}).mistakes(space.dimensions)))
