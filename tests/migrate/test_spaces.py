"""Parameters of hpogrid, iDDS (nevergrad) and scikit-optimize become those of a search file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.spaces import ForeignSpace, read_space
from hpo_pilot.search import SearchSpace

Space = Callable[[Any], ForeignSpace]


def hpogrid(method: str, **dimension: Any) -> dict[str, Any]:
    return {"method": method, "dimension": dimension}


#: hpogrid's method and arguments -> the dimension, or what stands in every point.
HPOGRID = [
    (hpogrid("uniform", low=-1, high=2.5), {"type": "real", "low": -1, "high": 2.5}),
    (hpogrid("uniformint", low=1, high=5), {"type": "integer", "low": 1, "high": 5}),
    (hpogrid("uniformint", low=3, high=3), 3),
    (hpogrid("uniform", low=3, high=3), 3),
    (hpogrid("loguniform", low=1e-5, high=0.01, base=10), {"type": "real", "low": 1e-5, "high": 0.01, "scale": "log"}),
    (hpogrid("loguniform", low=1e-5, high=0.01), {"type": "real", "low": 1e-5, "high": 0.01, "scale": "log"}),
    (hpogrid("quniform", low=0, high=1, q=0.25), {"type": "real", "low": 0.0, "high": 1.0, "step": 0.25}),
    (hpogrid("quniform", low=1, high=10, q=3), {"type": "integer", "low": 3, "high": 9, "step": 3}),
    (hpogrid("quniform", low=0.1, high=0.75, q=0.3), {"type": "real", "low": 0.3, "high": 0.6, "step": 0.3}),
    (hpogrid("quniform", low=0, high=0.6, q=0.2), {"type": "real", "low": 0.0, "high": 0.6, "step": 0.2}),  # 2.999…
    (hpogrid("quniform", low=4, high=5, q=4), 4),
    (hpogrid("qloguniform", low=1, high=512, q=1, base=2), {"type": "integer", "low": 1, "high": 512, "scale": "log"}),
    (hpogrid("qloguniform", low=3, high=9, q=4), {"type": "ordinal", "choices": [4, 8]}),
    (hpogrid("normal", mu=1, sigma=0.1), {"type": "real", "low": 0.7, "high": 1.3}),
    (hpogrid("qnormal", mu=10, sigma=2, q=2), {"type": "integer", "low": 4, "high": 16, "step": 2}),
    (hpogrid("lognormal", mu=0, sigma=1, base=10), {"type": "real", "low": 0.001, "high": 1000.0, "scale": "log"}),
    (hpogrid("normal", mu=1.5, sigma=0), 1.5),
    (hpogrid("fixed", value={"layers": [1, 2]}), {"fixed": {"layers": [1, 2]}}),
    (hpogrid("categorical", categories=["relu", "tanh"]), {"type": "categorical", "choices": ["relu", "tanh"]}),
    (hpogrid("categorical", categories=[1, 1, 2]), {"type": "categorical", "choices": [1, 2]}),
    (
        hpogrid("categorical", categories=[1, 1.0, True, None, "1"]),
        {"type": "categorical", "choices": [1, 1.0, True, None, "1"]},
    ),
    (hpogrid("categorical", categories=[7]), 7),
]


@pytest.mark.parametrize(("entry", "expected"), HPOGRID)
def test_every_method_of_hpogrid(space: Space, entry: dict[str, Any], expected: Any) -> None:
    found = space({"x": entry, "other": [0, 1]})
    assert not found.file.problems
    if isinstance(expected, dict) and "type" in expected:
        assert json.dumps(found.dimensions["x"]) == json.dumps(expected)  # 1 and 1.0 are told apart
        SearchSpace.from_dict(found.dimensions)
    else:
        value = expected["fixed"] if isinstance(expected, dict) else expected
        assert found.fixed == {"x": value}


@pytest.mark.parametrize(
    ("method", "dimension", "words"),
    [
        ("normal", {"mu": 0, "sigma": 1}, "no normal prior"),
        ("qlognormal", {"mu": 0, "sigma": 1, "q": 0.5}, "no log-normal prior"),
        ("quniform", {"low": 1, "high": 10, "q": 3}, "go from 3 to 9"),
        ("qloguniform", {"low": 8, "high": 64, "q": 8}, "no step on a logarithmic scale"),
        ("uniformint", {"low": 1, "high": 5}, "includes 5"),
        ("categorical", {"categories": [1, 1, 2]}, "1 is listed more than once"),
        ("categorical", {"categories": [1, 2], "grid_search": 1}, "not every choice is tried"),
    ],
)
def test_what_changes_its_meaning_is_said(space: Space, method: str, dimension: dict[str, Any], words: str) -> None:
    found = space({"x": hpogrid(method, **dimension)})
    assert any(words in str(warning) for warning in found.file.warnings)
    assert all(warning.path.startswith("x") for warning in found.file.warnings)


def test_multiples_on_a_log_scale_stay_few_and_between_the_bounds(space: Space) -> None:
    choices = space({"x": hpogrid("qloguniform", low=5, high=10_000, q=10)}).dimensions["x"]["choices"]
    assert len(choices) <= 64
    assert all(choice % 10 == 0 and 5 <= choice <= 10_000 for choice in choices)
    assert choices[0] == 10
    assert choices[-1] == 10_000
    below = sum(choice < math.sqrt(10 * 10_000) for choice in choices)
    assert 0.25 < below / len(choices) < 0.75  # spread by order of magnitude, as far as multiples allow it


def test_choices_of_any_json_come_back_as_they_were(space: Space) -> None:
    categories = ["small", {"layers": 2, "width": [16, 32]}, [1, [2]], {"layers": 3}]
    found = space({"x": hpogrid("categorical", categories=categories), "lr": [0.0, 1.0]})
    labels = found.dimensions["x"]["choices"]
    assert len({str(label) for label in labels}) == 4
    points = [found.shape.payload_point({"x": label, "lr": 0.5}) for label in labels]
    assert [point["x"] for point in points] == categories
    assert [found.shape.search_point(point)["x"] for point in points] == labels


#: iDDS's kinds -> dimensions.
NEVERGRAD = [
    ({"type": "Choice", "params": {"choices": [1, 4]}}, {"type": "categorical", "choices": [1, 4]}),
    ({"type": "Choice", "params": {"choices": 3}}, {"type": "categorical", "choices": [0, 1, 2]}),
    ({"type": "TransitionChoice", "params": {"choices": ["a", "b"]}}, {"type": "ordinal", "choices": ["a", "b"]}),
    (
        {"type": "TransitionChoice", "params": {"choices": [2, 4, 6]}},
        {"type": "integer", "low": 2, "high": 6, "step": 2},
    ),
    ({"type": "Scalar", "bounds": [0, 5]}, {"type": "real", "low": 0, "high": 5}),
    ({"type": "Scalar", "params": {"lower": -1, "upper": 1}}, {"type": "real", "low": -1, "high": 1}),
    ({"type": "Scalar"}, {"type": "real", "low": -3, "high": 3}),
    ({"type": "Log", "params": {"lower": 0.01, "upper": 1}}, {"type": "real", "low": 0.01, "high": 1, "scale": "log"}),
]


@pytest.mark.parametrize(("entry", "expected"), NEVERGRAD)
def test_every_kind_of_idds(space: Space, entry: dict[str, Any], expected: dict[str, Any]) -> None:
    found = space({"x": entry})
    assert not found.file.problems
    assert found.dimensions == {"x": expected}


def test_an_array_is_several_parameters_and_one_list_for_the_payload(space: Space) -> None:
    found = space(
        {
            "w": {"type": "Array", "params": {"shape": [2, 2]}, "bounds": [0, [1, 2, 3, 4]]},
            "c": {"type": "Choice", "params": {"choices": ["a", "b"], "repetitions": 2}},
            "w_1_1": {"type": "Scalar", "bounds": [0, 1]},
        }
    )
    assert not found.file.problems
    assert [d["high"] for n, d in found.dimensions.items() if n.startswith("w")] == [1, 2, 3, 4, 1]
    point = {name: index for index, name in enumerate(found.dimensions)}
    payload = found.shape.payload_point(point)
    assert payload == {"w": [[0, 1], [2, 3]], "c": [4, 5], "w_1_1": 6}
    assert found.shape.search_point(payload) == point


SKOPT = [
    ([1, 4], {"type": "real", "low": 1, "high": 4}),
    ([1e-4, 1, "log-uniform"], {"type": "real", "low": 1e-4, "high": 1, "scale": "log"}),
    ([1e-4, 1, "log-uniform", 10], {"type": "real", "low": 1e-4, "high": 1, "scale": "log"}),
    (["a", "b"], {"type": "categorical", "choices": ["a", "b"]}),
    ([1, 2, 3], {"type": "categorical", "choices": [1, 2, 3]}),
    (
        {"type": "Integer", "low": 1, "high": 9, "prior": "log-uniform"},
        {"type": "integer", "low": 1, "high": 9, "scale": "log"},
    ),
    ({"type": "Real", "low": 0, "high": 1, "name": "x"}, {"type": "real", "low": 0, "high": 1}),
    ({"type": "Categorical", "categories": ["a", "b"]}, {"type": "categorical", "choices": ["a", "b"]}),
    ({"type": "ordinal", "choices": [1, 2]}, {"type": "ordinal", "choices": [1, 2]}),
]


@pytest.mark.parametrize(("entry", "expected"), SKOPT)
def test_scikit_optimize_and_plain_bounds(space: Space, entry: Any, expected: dict[str, Any]) -> None:
    found = space({"x": entry})
    assert not found.file.problems
    assert found.dimensions == {"x": expected}


WRONG = [
    (hpogrid("uniform", low=2, high=1), "x.dimension.low", "must be below high"),
    (hpogrid("uniform", low="1e-5", high=1), "x.dimension.low", "remove the quotes"),
    (hpogrid("uniform", low=True, high=1), "x.dimension.low", "must be a number"),
    (hpogrid("uniform", low=0), "x.dimension.high", "is missing"),
    (hpogrid("uniform", low=0, hihg=1), "x.dimension.hihg", "did you mean high?"),
    (hpogrid("uniformint", low=1.5, high=3), "x.dimension.low", "must be a whole number"),
    (hpogrid("loguniform", low=0, high=1), "x.dimension.low", "above 0"),
    (hpogrid("loguniform", low=0.1, high=1, base=1), "x.dimension.base", "not the base of any logarithm"),
    (hpogrid("quniform", low=4, high=5, q=3), "x.dimension.q", "no multiple of 3"),
    (hpogrid("quniform", low=4, high=5, q=0), "x.dimension.q", "above 0"),
    (hpogrid("normal", mu=0, sigma=-1), "x.dimension.sigma", "0 or more"),
    (hpogrid("lognormal", mu=0, sigma=1000), "x.dimension", "beyond the largest"),
    (hpogrid("categorical", categories=[]), "x.dimension.categories", "is empty"),
    (hpogrid("categorical", categories="a,b"), "x.dimension.categories", "must be a list"),
    (hpogrid("unifrom", low=0, high=1), "x.method", "did you mean uniform?"),
    ({"methd": "uniform", "dimension": {}}, "x.methd", "did you mean method?"),
    ({"method": "uniform", "dimension": [1, 2]}, "x.dimension", "must be a mapping"),
    ({"type": "Scaler", "bounds": [0, 1]}, "x.type", "did you mean Scalar?"),
    *(({"type": kind, "params": {"lower": 0, "upper": 1}}, "x.type", "") for kind in ({}, [], ["Scalar"], None, 3)),
    ({"type": "Scalar", "bounds": [0]}, "x.bounds", "two numbers"),
    ({"type": "Scalar", "bounds": [1, 0]}, "x.low", "must be below high"),
    ({"type": "Scalar", "params": {"lower": 3}}, "x", "one bound only"),
    ({"type": "Log", "params": {}}, "x", "needs its bounds"),
    ({"type": "Array", "params": {}}, "x.params", "no shape"),
    ({"type": "Array", "params": {"shape": [2]}, "bounds": [[0, 0, 0], 1]}, "x.bounds[0]", "one number, or 2"),
    ({"type": "Choice", "params": {"choice": [1]}}, "x.params.choice", "did you mean choices?"),
    ({"type": "real", "low": 0, "hihg": 1}, "x.hihg", "did you mean high?"),
    ({"type": "Integer", "low": 0.5, "high": 2}, "x", "whole bounds"),
    (5, "x", "must be a mapping"),
    ({"foo": 1}, "x", "has neither"),
]


@pytest.mark.parametrize(("entry", "path", "words"), WRONG)
def test_what_is_wrong_is_told_with_its_place(space: Space, entry: Any, path: str, words: str) -> None:
    found = space({"x": entry, "fine": [0, 1]})
    assert any(problem.path == path and words in str(problem) for problem in found.file.problems), found.file.problems


def test_a_space_without_a_choice_is_refused(space: Space) -> None:
    assert "no parameter with more than one value" in str(space({"x": hpogrid("fixed", value=1)}).file.problems[0])
    assert "nothing to search" in str(space({}).file.problems[0])


def test_json_is_read_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / "space.json"
    path.write_text(
        '{\n\t"lr": {"method": "uniform",\n\t\t"dimension": {"low": 1e-5, "high": NaN}},\n'
        '\t"\\ud83d\\ude00": [0, 1],\n}\n'
    )
    file = ForeignFile.read(path)
    read_space(file, (), file.value)
    (problem,) = file.problems
    assert (problem.line, problem.column) == (3, 38)
    assert "must be a finite number" in problem.message
    assert "\N{GRINNING FACE}" in file.value
