from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hpo_pilot.search import EarlyStopping
from hpo_pilot.search.sections import early_stopping_mistakes


def test_defaults() -> None:
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
    assert [asha.seconds_between_reports(jobs) for jobs in (1, 100, 1000)] == [2.0, 2.0, 10.0]
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
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
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
    mistakes = early_stopping_mistakes(early, **{"trials_per_job": 1, "folds": 1, "metrics": ["loss"], **rest})
    assert [mistake.message for mistake in mistakes] == [] if message is None else message in mistakes[0].message
    assert early_stopping_mistakes(EarlyStopping(), **{"trials_per_job": 9, "folds": 1, "metrics": []}) == []
