from __future__ import annotations

import math

import pytest

from hpo_pilot.report.summary import best_trial, convergence, ranking, top_trials
from hpo_pilot.search import Search, Trial, TrialState
from tests.report.figures.made_up import make_search, make_trial


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def test_best_is_the_lowest_or_the_highest() -> None:
    trials = [make_trial(1, 0.3), make_trial(2, -0.1), make_trial(3, 0.0), make_trial(4, None)]
    for goal, order in (("minimize", [2, 3, 1]), ("maximize", [1, 3, 2])):
        search = make_search(objective={"goal": goal})
        assert numbers(top_trials(search, trials)) == order
        assert best_trial(search, trials) is trials[order[0] - 1]


def test_no_figure_no_best(search: Search) -> None:
    running = make_trial(2, None, state=TrialState.RUNNING, told=None, error=None)
    stopped = make_trial(3, 0.1, state=TrialState.STOPPED)
    unusable = [make_trial(4, math.nan), make_trial(5, math.inf)]
    trials = [make_trial(1, None), running, stopped, *unusable]
    assert best_trial(search, trials) is None
    assert best_trial(search, []) is None
    assert convergence(search, trials) == []


def test_equal_trials_stand_in_the_order_of_their_numbers(search: Search) -> None:
    assert numbers(top_trials(search, [make_trial(3, 0.5), make_trial(1, 0.5), make_trial(2, 0.5)], 2)) == [1, 2]


def test_confirmations_count_towards_the_trial_that_they_confirm(search: Search) -> None:
    lucky, steady = make_trial(1, 0.10), make_trial(2, 0.12)
    repeats = [make_trial(3, 0.20, confirms=1), make_trial(4, 0.24, confirms=1), make_trial(5, 0.12, confirms=2)]
    failed = make_trial(6, None, confirms=2)
    first, second = ranking(search, [lucky, steady, *repeats, failed])
    assert (first.trial, first.value, first.runs, first.confirmed) == (steady, pytest.approx(0.12), 1, True)
    assert (second.trial, second.value, second.runs, second.confirmed) == (lucky, pytest.approx(0.22), 2, True)


def test_a_lucky_trial_that_nothing_confirmed_does_not_overtake(search: Search) -> None:
    lucky, steady = make_trial(1, 0.10), make_trial(2, 0.12)
    assert best_trial(search, [lucky, steady, make_trial(3, 0.13, confirms=2)]) == steady


def test_a_good_confirmation_does_not_rescue_a_trial_without_a_figure(search: Search) -> None:
    assert best_trial(search, [make_trial(1, None), make_trial(2, 0.1, confirms=1)]) is None


def test_convergence_follows_the_order_of_results() -> None:
    trials = [
        make_trial(1, None, told=1),
        make_trial(2, 0.5, told=3),
        make_trial(3, 0.7, told=2),
        make_trial(4, None, told=4),
        make_trial(5, 0.4, told=5),
        make_trial(6, 0.1, told=6, confirms=5),
        make_trial(7, None, told=None, state=TrialState.RUNNING),
    ]
    assert convergence(make_search(), trials) == [(2, 0.7), (3, 0.5), (4, 0.5), (5, 0.4)]
    maximize = make_search(objective={"goal": "maximize"})
    assert convergence(maximize, trials) == [(2, 0.7), (3, 0.7), (4, 0.7), (5, 0.7)]
