"""A search as a value: defaults, short forms, what does not fit, and the way through JSON."""

from __future__ import annotations

import json
import pickle
import re
from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from hpo_pilot.errors import SearchFileError
from hpo_pilot.search import EarlyStopping, Objective, Search
from hpo_pilot.search.mistakes import mistakes_of
from hpo_pilot.search.ranking import costs
from hpo_pilot.search.sections import early_stopping_mistakes
from hpo_pilot.steering.search_file import parse_search

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


@pytest.mark.parametrize(
    ("written", "share"), [(1, 1), (0.5, 2), (0.33, 3), (0.17, 6), (0.14, 7), (0.13, 8), (0.125, 8)]
)
def test_a_share_of_a_gpu(written: float, share: int) -> None:
    search = Search.model_validate({**DATA, "resources": {"gpus_per_node": written}})
    assert search.resources.gpus == pytest.approx(1 / share)
    assert search.job_needs.gpus_per_node == Fraction(1, share)
    assert Search.model_validate(search.to_dict()) == search


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
        ({"start": [{"learning_rate": 1, "flag": 1}]}, "start[0].learning_rate: must be between 0.0001 and 0.1, not 1"),
        ({"seed": 2**32}, "seed: must be below 4294967296, not 4294967296"),
        ({"search": "x" * 51}, "search: must start with a letter"),
        ({"payload": {"command": "x", "outputs": ["../a"]}}, "payload.outputs[0]: must be a path inside the job's"),
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


# --- early stopping ---


def test_defaults_of_early_stopping() -> None:
    none, asha, median = (EarlyStopping.model_validate(method) for method in ("none", "asha", "median"))
    assert (none.is_on, asha.is_on, median.is_on) == (False, True, True)
    assert (asha.reduction, asha.first_rung, asha.trials_needed, median.trials_needed) == (3, 1, 3, 5)
    assert EarlyStopping(method="asha", max_steps=100).first_rung == 11
    assert EarlyStopping(method="asha", max_steps=5).first_rung == 1
    assert EarlyStopping(method="asha", max_steps=100, min_steps=9, eta=4).first_rung == 9
    assert [asha.folds_needed(k) for k in (1, 2, 3, 5)] == [1, 1, 2, 3]
    assert EarlyStopping(method="asha", folds=5).folds_needed(3) == 3


def test_reports_are_as_often_as_jobs_are_few() -> None:
    asha = EarlyStopping(method="asha")
    assert [asha.seconds_between_reports(jobs) for jobs in (1, 100, 1000)] == [0.5, 1.0, 10.0]
    assert EarlyStopping(method="asha", report_seconds=0.5).seconds_between_reports(1000) == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "asha", "warmup_steps": 1}, "is not a setting of method asha"),
        ({"eta": 3}, "eta: needs method asha — add method: asha"),
        ({"warmup_steps": 3}, "warmup_steps: needs method median — add method: median"),
        ({"metric": "loss"}, "has settings and no method"),
        ({"method": "median", "eta": 3}, "is not a setting of method median — leave it out, or use method: asha"),
        ({"method": "asha", "eta": 1}, "greater than or equal to 2"),
        ({"method": "asha", "min_steps": 9, "max_steps": 9}, "a whole training has 9 steps"),
    ],
)
def test_wrong_settings_of_early_stopping(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EarlyStopping.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "rest", "message"),
    [
        ({}, {"trials_per_job": 2}, "needs jobs of one trial each, and resources.trials_per_job is 2"),
        ({"folds": 3}, {"folds": 2}, "is 3, and a trial has 2"),
        ({}, {"metrics": ["loss", "size"]}, "must name the figure that decides"),
        ({"metric": "auc"}, {"metrics": ["loss", "size"]}, "is 'auc', which is not an objective of this search"),
        ({"metric": "size"}, {"metrics": ["loss", "size"]}, None),
        ({"metric": "size"}, {"metrics": []}, None),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], rest: dict[str, Any], message: str | None) -> None:
    early = EarlyStopping(method="asha", **settings)
    mistakes = list(early_stopping_mistakes(early, **{"trials_per_job": 1, "folds": 1, "metrics": ["loss"], **rest}))
    assert [mistake.message for mistake in mistakes] == [] if message is None else message in mistakes[0].message
    assert list(early_stopping_mistakes(EarlyStopping(), **{"trials_per_job": 9, "folds": 1, "metrics": []})) == []


# --- segments: one search each, with its own inputs and, if need be, its own space ---


TEXT = """\
search: tagger
space: {x: {type: real, low: 0, high: 1}}
known: [{point: {x: 0.5}, value: 0.0}]
payload: {command: run %SEGMENT_NAME, inputs: [all]}
segments: SEGMENTS
"""


def parsed(segments: str) -> Search:
    return parse_search(TEXT.replace("SEGMENTS", segments), "search.yaml")


def test_names_alone() -> None:
    family = parsed("[arm, 'left leg']").by_segment()
    assert [search.name for search in family.values()] == ["tagger-arm", "tagger-left-leg"]
    assert [search.segment for search in family.values()] == ["arm", "left leg"]
    assert all(search.payload.inputs == ("all",) for search in family.values())
    assert all(len(search.known) == 1 for search in family.values())


def test_inputs_and_space_of_their_own() -> None:
    family = parsed("{arm: {inputs: [f1]}, leg: {space: {x: {type: real, low: 0, high: 2}}}, body: {}}").by_segment()
    assert family["arm"].payload.inputs == ("f1",)
    assert family["leg"].payload.inputs == ("all",)
    assert family["leg"].to_dict()["space"]["x"]["high"] == 2
    assert family["body"].to_dict()["space"]["x"]["high"] == 1
    assert Search.model_validate(family["arm"].to_dict()) == family["arm"]
    assert (parsed("null").by_segment(), parsed("null").segment) == ({}, None)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("segments", "[]", "segments"),
        ("segments", "5", "segments: must be a mapping"),
        ("segments", "{arm: {input: [f]}}", "segments.arm.input: is not a key"),
        ("segments", "['a b', a-b]", "would have the name of that of 'a b'"),
        ("segments", f"[{'a' * 60}]", "longer than 50 characters"),
        ("segments", "{arm: {space: {y: {type: real, low: 0, high: 1}}}}", "does not fit known[0].point"),
        ("segments", "{arm: {space: {}}}", "is empty"),
        ("known", "[{point: {x: 2}, value: null}]", "known[0].point.x: must be between 0 and 1"),
        ("known", "[{point: {x: 0.5}, value: good}]", "known[0].value"),
        ("known", "[{point: {x: 0.5}}]", "known[0].value: is missing"),
    ],
)
def test_wrong_segments_and_known_results(key: str, value: str, words: str) -> None:
    text = re.sub(f"(?m)^{key}: .*", lambda _: f"{key}: {value}", TEXT.replace("SEGMENTS", "null"))
    with pytest.raises(SearchFileError) as caught:
        parse_search(text, "search.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize("function", ["train:objective", "package.train:Model.fit", "objective.pkl"])
def test_a_function_becomes_the_command_that_calls_it(function: str) -> None:
    search = Search.model_validate({**DATA, "payload": {"function": function}})
    assert search.payload.command == f"python3 hpo_pilot_function.py {function}"
    assert Search.model_validate(search.to_dict()) == search


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"function": "train.py"}, "payload.function: must name a module and a function, not 'train.py'"),
        ({"function": "train:objective; rm"}, "payload.function: must name a module and a function"),
        ({"function": "train:f", "command": "python train.py"}, "payload.function: a payload has either a function"),
        ({}, "payload.command: is missing"),
    ],
)
def test_wrong_functions(payload: dict[str, str], message: str) -> None:
    assert message in refused(payload=payload)
