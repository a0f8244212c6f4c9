"""Learning curves: which are drawn, and what of them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from hpo_pilot.report.figure import FigureData
from hpo_pilot.report.result_figures import CURVE_LIMIT, PLACE_LIMIT, _thinned, drawn_trials
from hpo_pilot.report.trial_documents import mean_curve
from hpo_pilot.search import Search, Trial, TrialState
from tests.report.figures.made_up import STOP, TWO, draw, make_search, make_trial, make_trials, trace


@pytest.fixture
def few() -> list[Trial]:
    stopped = make_trial(3, None, state=TrialState.STOPPED, stop=STOP)
    return [make_trial(1, 0.2), make_trial(2, 0.1), stopped, make_trial(4, 0.3)]


def test_curves_end_where_trials_were_stopped(search: Search, few: list[Trial]) -> None:
    reports = {
        1: {0: [(1, 0.5), (2, 0.4), (4, 0.2)]},
        2: {0: [(1, 0.4), (2, 0.1)]},
        3: {0: [(1, 0.9), (2, 1.0), (3, inf)]},
        4: {0: [(1, 0.3)]},
    }
    figure = draw("curves", search, few, reports=reports)[0]
    for name, x, y in (
        ("trial", [1, 2, 4], [0.5, 0.4, 0.2]),
        ("best", [1, 2], [0.4, 0.1]),
        ("stopped early", [1, 2, 3], [0.9, 1.0, None]),
        ("stopped here", [2], [1.0]),
    ):
        assert (trace(figure, name)["x"], trace(figure, name)["y"]) == (x, y), name
    assert figure.description == "loss over the steps of 3 trials; 1 stopped early."
    assert figure.note.startswith("Shows 3 of 4 trials; means over the folds; 1 trial ended with no number")


def test_curves_of_one_trace_are_apart(search: Search, few: list[Trial]) -> None:
    figure = draw("curves", search, few, reports={number: {0: [(1, 0.5), (2, 0.4)]} for number in (1, 2, 4)})[0]
    assert trace(figure, "trial")["x"] == [1, 2, None, 1, 2]


def test_there_is_none_where_nothing_was_reported(search: Search, few: list[Trial]) -> None:
    assert draw("curves", search, few) == []
    assert draw("curves", search, few, reports={1: {0: [(1, 0.5)], 1: [(1, 0.5)]}}) == []
    assert draw("curves", search, []) == []


def test_a_curve_has_means_over_folds_where_most_have_come() -> None:
    assert mean_curve([[(1, 1.0), (2, 2.0), (3, 9.0)], [(1, 3.0), (2, 4.0)]]) == [(1, 2.0), (2, 3.0)]
    assert mean_curve([]) == []
    long = _thinned([(step, float(step)) for step in range(1000)])
    assert len(long) == PLACE_LIMIT and (long[0], long[-1]) == ((0, 0.0), (999, 999.0))


def test_steps_over_decades_are_logarithmic(search: Search, few: list[Trial]) -> None:
    figure = draw("curves", search, few, reports={1: {0: [(1, 0.5), (1000, 0.4)]}})[0]
    assert figure.spec["layout"]["xaxis"]["type"] == "log"
    from_nothing = draw("curves", search, few, reports={1: {0: [(0, 0.5), (1000, 0.4)]}})[0]
    assert "type" not in from_nothing.spec["layout"]["xaxis"]


def test_of_many_trials_the_best_are_drawn_and_some_others(search: Search) -> None:
    trials = make_trials(search, 500)
    drawn = drawn_trials(FigureData(search, trials))
    assert len(drawn) == CURVE_LIMIT and drawn == sorted(drawn)
    best = sorted((trial for trial in trials if trial.value is not None), key=lambda trial: trial.value or 0.0)
    assert {trial.number for trial in best[: CURVE_LIMIT // 4]} <= set(drawn)
    with_run = [*trials[:50], replace(trials[0], number=51, confirms=1)]
    assert drawn_trials(FigureData(search, with_run)) == list(range(1, 51))


def test_with_several_objectives_it_is_the_one_that_decides() -> None:
    search = make_search(objective=TWO, early_stopping={"method": "asha", "metric": "speed"})
    trials = [make_trial(number, 0.1 * number, values=(0.1 * number, float(number))) for number in (1, 2)]
    reports = {number: {0: [(1, 1.0), (2, float(number))]} for number in (1, 2)}
    (figure,) = draw("curves", search, trials, reports=reports)
    assert figure.description.startswith("speed over")
    assert trace(figure, "best")["text"] == ["trial 2"] * 2
