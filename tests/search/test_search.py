"""A search as a value: defaults, short forms, what does not fit, and the way through JSON."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from hpo_pilot.search import Objective, Search
from hpo_pilot.search.mistakes import mistakes_of
from hpo_pilot.search.sections import costs

DATA: dict[str, Any] = {
    "search": "digits-mlp",
    "space": {
        "learning_rate": {"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"},
        "flag": {"type": "categorical", "choices": [1, True, "1", 1.0, None]},
        "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"flag": [True, "1"]}},
    },
    "start": [{"learning_rate": 0.001, "flag": 1.0}, {"learning_rate": 0.001, "flag": 1}],
    "payload": {"command": "python train.py"},
}


TWO = [{"metric": "loss"}, {"metric": "speed", "goal": "maximize", "reference": 3}]


def refused(**changes: Any) -> str:
    data = {**DATA, **changes}
    with pytest.raises(ValidationError) as caught:
        Search.model_validate(data)
    return "; ".join(str(mistake) for mistake in mistakes_of(caught.value, data, Search))


def test_defaults() -> None:
    search = Search.model_validate(DATA)
    assert search.name == "digits-mlp"
    assert search.objective.sign == 1
    assert (search.optimizer.name, search.optimizer.settings) == ("auto", {})
    assert search.folds.needed == 1
    assert search.resources.gpus == 0
    assert search.budget.queued == "auto"


@pytest.mark.parametrize(
    ("resources", "ranks"),
    [
        ({}, 0),
        ({"gpus_per_node": 4}, 0),
        ({"nodes": 2}, 1),
        ({"nodes": 2, "gpus_per_node": 6}, 6),
        ({"nodes": 2, "gpus_per_node": 6, "ranks_per_node": 3}, 3),
        ({"ranks_per_node": 1}, 1),
        ({"ranks_per_node": 4}, 4),
    ],
)
def test_ranks_on_a_node(resources: dict[str, int], ranks: int) -> None:
    assert Search.model_validate({**DATA, "resources": resources}).resources.ranks == ranks


def test_short_forms() -> None:
    search = Search.model_validate({**DATA, "optimizer": "random", "folds": 5})
    assert search.optimizer.name == "random"
    assert search.folds.needed == 5
    assert Search.model_validate({**DATA, "folds": {"k": 5, "require": 3}}).folds.needed == 3
    assert Search.model_validate({**DATA, "optimizer": {"name": "x", "population": 3}}).optimizer.settings == {
        "population": 3
    }


def test_through_json_and_back_every_type_stays() -> None:
    search = Search.model_validate({**DATA, "optimizer": {"name": "evolutionary", "population": 24, "rate": 0.5}})
    again = Search.model_validate(json.loads(json.dumps(search.to_dict())))
    assert again == search
    assert again.to_dict() == search.to_dict()
    choices = again.space.dimensions["flag"].to_unit(True), again.to_dict()["space"]["flag"]["choices"]
    assert [type(c) for c in choices[1]] == [int, bool, str, float, type(None)]
    assert choices[0] == pytest.approx(0.3)
    assert [type(point["flag"]) for point in again.start] == [float, int]


def test_the_space_is_made_once() -> None:
    search = Search.model_validate(DATA)
    assert search.space is search.space
    assert pickle.loads(pickle.dumps(search)) == search  # noqa: S301  our own bytes


def test_several_objectives_are_read_back() -> None:
    known = [{"point": {"learning_rate": 0.01, "flag": 1}, "value": value} for value in ([1, 2], None)]
    search = Search.model_validate({**DATA, "objective": TWO, "known": known})
    assert search.objective == Objective(metric="loss")
    assert search.to_dict()["objective"][1] == {"metric": "speed", "goal": "maximize", "reference": 3.0}
    assert Search.model_validate(search.to_dict()) == search
    assert [one.figures for one in search.known] == [(1.0, 2.0), None]
    assert costs(search.objectives, (1.0, 2.0)) == (1.0, -2.0)
    one = Search.model_validate({**DATA, "objective": [{"metric": "a"}]})
    assert one == Search.model_validate({**DATA, "objective": {"metric": "a"}})
    assert one.to_dict()["objective"] == {"metric": "a", "goal": "minimize"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"folds": True}, "folds: must be a mapping, not true"),
        ({"confirm": {"top": 65}}, "confirm.top: is 65, and the search has 64 trials"),
        ({"start": [{"learning_rate": 1, "flag": 1}]}, "start[0].learning_rate: must be between 0.0001 and 0.1, not 1"),
        ({"seed": 2**32}, "seed: must be below 4294967296, not 4294967296"),
        ({"search": "x" * 51}, "search: must start with a letter"),
        ({"payload": {"command": "x", "outputs": ["../a"]}}, "payload.outputs[0]: must be a path inside the job's"),
        ({"objective": []}, "objective: is empty"),
        ({"objective": TWO, "known": [{"point": {}, "value": 1}]}, "known[0].value: must be a list of 2 numbers"),
        ({"known": [{"point": {}, "value": [1, 2]}]}, "known[0].value: must be one number"),
        ({"warm_start": ["digits-mlp"]}, "warm_start[0]: is this search itself"),
        ({"warm_start": ["old", "old"]}, "warm_start[1]: names 'old' a second time"),
        ({"warm_start": [f"s{n}" for n in range(11)]}, "warm_start: must have at most 10 entries"),
        ({"panda": {"official": True}}, "panda.official: outputs of a working group need one"),
        ({"panda": {"monitor": "https://me:secret@x"}}, "panda.monitor: is not the address of a web page"),
        ({"panda": {"monitor": "javascript:alert(1)"}}, "panda.monitor: is not the address of a web page"),
        ({"budget": {"hours": 0}}, "budget.hours: must be above 0, not 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], text: str) -> None:
    assert text in refused(**changes)
