"""Trials that were stopped early: their last value is shown as what it is, and never as a figure of merit."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from hpo_pilot.cli.inspection import _state
from hpo_pilot.report.documents import trial_document
from hpo_pilot.report.exports import exporter
from hpo_pilot.report.summary import best_trial, convergence
from hpo_pilot.search import EarlyStop, Search, Trial, TrialState
from hpo_pilot.search.trials import Price
from tests.made import made_fold

STOP = EarlyStop(4, "loss 0.83 is 3rd of 3 at step 9, where 1 goes on (asha)", 10, 0.01, (0.7,))
FOLD = made_fold(0, error="pilot error 1144: killed by the server (tobekilled)", seconds=3.0)


@pytest.fixture
def search() -> Search:
    document = {"search": "s", "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}, "early_stopping": "asha"}
    return Search.model_validate({**document, "payload": {"command": "true"}})


@pytest.fixture
def trials() -> list[Trial]:
    finished = Trial(1, 1, {"x": 0.1}, TrialState.FINISHED, values=(0.5,), told=1)
    stopped = Trial(2, 1, {"x": 0.2}, TrialState.STOPPED, error="stopped early", told=2, stop=STOP, folds=(FOLD,))
    with_search = Trial(3, 1, {"x": 0.3}, TrialState.STOPPED, error="stopped on request", stop=STOP)
    in_full = Trial(4, 1, {"x": 0.4}, TrialState.FINISHED, values=(0.6,), told=3, stop=STOP)
    return [finished, stopped, with_search, in_full]


def test_documents(trials: list[Trial]) -> None:
    documents = [trial_document(trial, Price(0, 1)) for trial in trials]
    assert [document["stopped"] for document in documents] == [
        None,
        {"step": 10, "value": 0.01, "projected": 0.7},
        None,
        None,
    ]
    assert documents[1]["value"] is None
    assert [_state(document, 6) for document in documents] == [
        "finished",
        "stopped at step 10 with 0.01",
        "stopped",
        "finished",
    ]


def test_one_that_diverged_and_one_of_several_objectives(search: Search, trials: list[Trial]) -> None:
    diverged = replace(trials[1], stop=replace(STOP, value=None, projected=None))
    document = trial_document(diverged, Price(0, 1))
    assert document["stopped"] == {"step": 10, "value": None, "projected": None}
    assert _state(document, 6) == "stopped at step 10 with no number"
    several = trial_document(replace(trials[1], stop=replace(STOP, projected=(0.7, 3.0))), Price(0, 1))
    assert several["stopped"] == {"step": 10, "value": 0.01, "projected": [0.7, 3.0]}


def test_they_are_never_the_best(search: Search, trials: list[Trial]) -> None:
    assert best_trial(search, trials) == trials[0]
    assert convergence(search, trials) == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert best_trial(search, trials[1:3]) is None


def test_the_table(search: Search, trials: list[Trial]) -> None:
    rows = list(csv.DictReader(io.StringIO(exporter("csv")(search, trials))))
    keys = ("state", "value", "stopped_step", "stopped_value", "projected")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("finished", "0.5", "", "", ""),
        ("stopped", "", "10", "0.01", "0.7"),
        ("stopped", "", "", "", ""),
        ("finished", "0.6", "", "", ""),
    ]
    never = search.model_copy(update={"early_stopping": type(search.early_stopping)()})
    assert "stopped_step" not in exporter("csv")(never, trials)


def test_what_counts(trials: list[Trial]) -> None:
    assert [trial.counts for trial in trials] == [True, True, False, True]
    assert [trial.stopped_early for trial in trials] == [False, True, False, False]
    assert not replace(trials[0], confirms=2).counts
