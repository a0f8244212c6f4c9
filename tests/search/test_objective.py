from __future__ import annotations

import pytest
from pydantic import ValidationError

from hpo_pilot.search import Objective, Search
from hpo_pilot.search.sections import costs

BASE = {"search": "s", "space": {"x": {"type": "real", "low": 0, "high": 1}}, "payload": {"command": "c"}}
TWO = [{"metric": "loss"}, {"metric": "speed", "goal": "maximize", "reference": 3}]


def search_of(**changes):
    return Search.model_validate({**BASE, **changes})


def test_a_list_of_one_is_the_same_as_one():
    assert search_of(objective=[{"metric": "a"}]) == search_of(objective={"metric": "a"})
    assert search_of().to_dict()["objective"] == {"metric": "loss", "goal": "minimize"}


def test_several_are_read_back():
    search = search_of(
        objective=TWO, known=[{"point": {"x": 0.5}, "value": [1, 2]}, {"point": {"x": 0}, "value": None}]
    )
    assert [objective.metric for objective in search.objectives] == ["loss", "speed"]
    assert search.objective == Objective(metric="loss")
    assert search.to_dict()["objective"][1] == {"metric": "speed", "goal": "maximize", "reference": 3.0}
    assert Search.model_validate(search.to_dict()) == search
    assert [known.figures for known in search.known] == [(1.0, 2.0), None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": []}, "objective: is empty"),
        ({"objective": [TWO[0], TWO[0]]}, "objective[1].metric: loss is the metric of objective[0] too"),
        (
            {"objective": TWO, "known": [{"point": {"x": 0.5}, "value": 1}]},
            "known[0].value: must be a list of 2 numbers",
        ),
        ({"known": [{"point": {"x": 0.5}, "value": [1, 2]}]}, "known[0].value: must be one number"),
    ],
)
def test_what_does_not_go_together(changes, message):
    with pytest.raises(ValidationError) as caught:
        search_of(**changes)
    assert message in str(caught.value)


def test_costs_are_lower_where_better():
    assert costs(search_of(objective=TWO).objectives, (1.0, 2.0)) == (1.0, -2.0)
