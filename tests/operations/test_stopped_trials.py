"""Trials that were stopped early: their last value is shown as what it is, and never as a figure of merit."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from hpo_pilot.cli.inspection import _state
from hpo_pilot.report.exports import as_csv
from hpo_pilot.report.trial_documents import trial_document
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.search.ranking import convergence, ranked_by_folds
from hpo_pilot.search.trials import Price
from tests.made import made_fold
from tests.report.figures.made_up import make_search

STOP = EarlyStop(4, "loss 0.83 is 3rd of 3 at step 9, where 1 goes on (asha)", 10, 0.01, (0.7,))
LOST = made_fold(0, error="pilot error 1144: killed by the server (tobekilled)", seconds=3.0)
EARLY = Trial(2, 1, {"x": 0.2}, TrialState.STOPPED, error="stopped early", told=2, stop=STOP, folds=(LOST,))
TRIALS = [
    Trial(1, 1, {"x": 0.1}, TrialState.FINISHED, values=(0.5,), told=1),
    EARLY,
    Trial(3, 1, {"x": 0.3}, TrialState.STOPPED, error="stopped on request", stop=STOP),
    Trial(4, 1, {"x": 0.4}, TrialState.FINISHED, values=(0.6,), told=3, stop=STOP),
]
SPACE = {"space": {"x": {"type": "real", "low": 0.0, "high": 1.0}}, "constraints": []}


@pytest.mark.parametrize(
    ("trial", "stopped", "words"),
    [
        pytest.param(TRIALS[0], None, "finished", id="finished"),
        pytest.param(
            EARLY, {"step": 10, "value": 0.01, "projected": 0.7}, "stopped at step 10 with 0.01", id="stopped early"
        ),
        pytest.param(TRIALS[2], None, "stopped", id="stopped with its search"),
        pytest.param(TRIALS[3], None, "finished", id="finished before it was stopped"),
        pytest.param(
            replace(EARLY, stop=replace(STOP, value=None, projected=None)),
            {"step": 10, "value": None, "projected": None},
            "stopped at step 10 with no number",
            id="diverged",
        ),
        pytest.param(
            replace(EARLY, stop=replace(STOP, projected=(0.7, 3.0))),
            {"step": 10, "value": 0.01, "projected": [0.7, 3.0]},
            "stopped at step 10 with 0.01",
            id="several objectives",
        ),
    ],
)
def test_documents(trial: Trial, stopped: dict | None, words: str) -> None:
    document = trial_document(trial, Price(0, 1))
    assert document["stopped"] == stopped
    assert _state(document, 6) == words
    assert (document["value"] is None) is (trial.state is TrialState.STOPPED)


def test_they_are_never_the_best_and_count_where_they_have_a_place() -> None:
    search = make_search(**SPACE)
    assert ranked_by_folds(search, TRIALS)[0] == TRIALS[0]
    assert convergence(search, TRIALS) == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert ranked_by_folds(search, TRIALS[1:3]) == []
    assert [trial.counts for trial in TRIALS] == [True, True, False, True]
    assert [trial.stopped_early for trial in TRIALS] == [False, True, False, False]
    assert not replace(TRIALS[0], confirms=2).counts


def test_the_table() -> None:
    rows = list(csv.DictReader("".join(as_csv(make_search(**SPACE, early_stopping="asha"), TRIALS)).splitlines()))
    keys = ("state", "value", "stopped_step", "stopped_value", "projected")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("finished", "0.5", "", "", ""),
        ("stopped", "", "10", "0.01", "0.7"),
        ("stopped", "", "", "", ""),
        ("finished", "0.6", "", "", ""),
    ]
    assert "stopped_step" not in next(as_csv(make_search(**SPACE), TRIALS))
