"""The ranking of trials: both meanings of best, fronts, reference points, hypervolumes and convergence."""

from __future__ import annotations

import math

import pytest

from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.ranking import (
    best_confirmed_first,
    best_remarks,
    convergence,
    front_of,
    ranked_by_folds,
    ranking,
    reference_of,
)
from tests.made import made_search
from tests.report.figures.made_up import ROWS, TWO, draw, make_search, make_trial, several_trials


@pytest.fixture
def search() -> Search:
    return make_search()


def numbers(trials: list[Trial]) -> list[int]:
    return [trial.number for trial in trials]


def test_best_is_the_lowest_or_the_highest() -> None:
    trials = [make_trial(1, 0.3), make_trial(2, -0.1), make_trial(3, 0.0), make_trial(4, None)]
    for goal, order in (("minimize", [2, 3, 1]), ("maximize", [1, 3, 2])):
        search = make_search(objective={"goal": goal})
        assert numbers(ranked_by_folds(search, trials)) == order


def test_without_a_figure_there_is_no_best(search: Search) -> None:
    running = make_trial(2, None, state=TrialState.RUNNING, told=None, error=None)
    stopped = make_trial(3, 0.1, state=TrialState.STOPPED)
    unusable = [make_trial(4, math.nan), make_trial(5, math.inf)]
    trials = [make_trial(1, None), running, stopped, *unusable]
    assert ranked_by_folds(search, trials) == []
    assert best_confirmed_first(search, []) is None
    assert convergence(search, trials) == []


def test_equal_trials_are_ordered_by_number(search: Search) -> None:
    assert numbers(ranked_by_folds(search, [make_trial(3, 0.5), make_trial(1, 0.5), make_trial(2, 0.5)])) == [1, 2, 3]


def test_confirmations_count_towards_the_trial_that_they_confirm(search: Search) -> None:
    lucky, steady = make_trial(1, 0.10), make_trial(2, 0.12)
    repeats = [make_trial(3, 0.20, confirms=1), make_trial(4, 0.24, confirms=1), make_trial(5, 0.12, confirms=2)]
    failed = make_trial(6, None, confirms=2)
    first, second = ranking(search, [lucky, steady, *repeats, failed])
    assert (first.trial, first.value, first.runs, first.confirmed) == (steady, pytest.approx(0.12), 1, True)
    assert (second.trial, second.value, second.runs, second.confirmed) == (lucky, pytest.approx(0.22), 2, True)
    huge = [make_trial(7, 1.7e308, confirms=1), make_trial(8, 1.7e308, confirms=1)]
    assert ranking(search, [lucky, *huge])[0].value == pytest.approx(1.7e308)


def test_a_lucky_trial_that_nothing_confirmed_does_not_overtake(search: Search) -> None:
    lucky, steady = make_trial(1, 0.10), make_trial(2, 0.12)
    trials = [lucky, steady, make_trial(3, 0.13, confirms=2)]
    best = best_confirmed_first(search, trials)
    assert best is not None and best.trial == steady
    assert ranked_by_folds(search, trials)[0] == lucky


def test_a_good_confirmation_does_not_rescue_a_trial_without_a_figure(search: Search) -> None:
    assert best_confirmed_first(search, [make_trial(1, None), make_trial(2, 0.1, confirms=1)]) is None


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


# --- several objectives ---


def two() -> Search:
    return make_search(objective=TWO)


def test_the_front_is_in_the_order_of_the_first_objective():
    front = front_of(two(), several_trials(*ROWS))
    assert [standing.trial.number for standing in front] == [2, 3, 6, 1]
    ranked = [standing.trial.number for standing in ranking(two(), several_trials(*ROWS))]
    assert set(ranked[:4]) == {1, 2, 3, 6}
    assert ranked[4:] == [5, 7]
    assert {trial.number for trial in ranked_by_folds(two(), several_trials(*ROWS))[:2]} == {
        1,
        2,
    }  # the ends of the front
    assert front_of(two(), []) == []


def test_stopped_and_incomplete_trials_are_not_on_it():
    trials = [
        *several_trials(*ROWS),
        make_trial(8, 0.1, values=(0.1, 99.0), state=TrialState.STOPPED),
        make_trial(9, 0.0),
    ]
    assert [standing.trial.number for standing in front_of(two(), trials)] == [2, 3, 6, 1]


def test_confirmed_trials_leave_the_front_only_for_confirmed_ones():
    trials = several_trials((1.0, 5.0), (2.0, 6.0), (1.5, 5.5), (3.0, 1.0))
    again = [make_trial(10, 2.2, values=(2.2, 4.0), confirms=1), make_trial(11, 2.1, values=(2.1, 6.5), confirms=2)]
    front = front_of(two(), [*trials, *again])
    # 1 came out as (2.2, 4): worse than 2, which was confirmed as (2.1, 6.5). 3 is behind neither.
    assert [standing.trial.number for standing in front] == [3, 2]
    assert front[1].figures == (2.1, 6.5)
    only_first = front_of(two(), [*trials, again[0]])
    assert 1 in [standing.trial.number for standing in only_first], "unconfirmed luck does not push it out"


def test_reference_and_volume_by_hand():
    given = [{**TWO[0], "reference": 4.0}, {**TWO[1], "reference": 0.0}]
    # Slabs: 1 to 2 at 1, 2 to 3 at 5, 3 to 4 at 9.
    assert convergence(make_search(objective=given), several_trials(*ROWS))[-1][1] == pytest.approx(1 + 5 + 9)
    assert reference_of(make_search(objective=given), several_trials(*ROWS)) == (4.0, 0.0)
    found = reference_of(two(), several_trials((0.0, 10.0), (10.0, 0.0)))
    assert found == pytest.approx((11.0, -1.0))
    assert reference_of(two(), several_trials(None)) is None


def test_the_reference_stays_and_far_outliers_do_not_count():
    rows = [(float(n), float(n)) for n in range(10)] + [(1e30, 0.0)] + [(5.0, 5.0)] * 9
    early = reference_of(two(), several_trials(*rows))
    assert early == reference_of(two(), several_trials(*rows, *[(99.0, -99.0)] * 20))
    assert early is not None
    assert early[0] < 100


def test_the_volume_only_grows_after_the_reference_is_fixed():
    steps = convergence(two(), several_trials(None, (3.0, 3.0), None, (2.0, 4.0), (9.0, 0.0), (1.0, 2.0)))
    assert [place for place, _ in steps] == [2, 3, 4, 5, 6]
    volumes = [volume for _, volume in steps]
    assert volumes == sorted(volumes)
    assert volumes[0] == volumes[1] < volumes[2] == volumes[3] < volumes[4]


def test_figures_near_the_largest_float_have_a_reference_and_a_volume():
    search = two()
    trials = several_trials(*[(n / 9, (-1e308, 1e308)[n % 2]) for n in range(9)])
    reference = reference_of(search, trials)
    assert all(map(math.isfinite, reference))
    assert reference[1] < -1e308
    assert 0 < convergence(search, trials)[-1][1] < math.inf
    assert "drawn there" in draw("convergence", search, trials)[0].note


@pytest.mark.parametrize(
    ("dimension", "value", "remark"),
    [
        ({"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"}, 0.1, "upper bound, 0.1"),
        ({"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"}, 1.0001e-4, "lower bound, 0.0001"),
        ({"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"}, 0.09, ""),
        ({"type": "real", "low": 2, "high": 9, "step": 4}, 6.0, "upper bound, 6"),
        ({"type": "integer", "low": 2, "high": 512, "scale": "log"}, 512, "upper bound, 512"),
        ({"type": "integer", "low": 2, "high": 512, "scale": "log"}, 511, ""),
        ({"type": "integer", "low": 1, "high": 4}, 1, ""),  # a count cannot be less
        ({"type": "real", "low": 0, "high": 1}, 1.0, ""),  # a share cannot be more
        ({"type": "ordinal", "choices": [16, 32]}, 32, ""),
        ({"type": "categorical", "choices": ["a", "b"]}, "b", ""),
    ],
)
def test_the_best_point_at_a_bound_is_remarked(dimension, value, remark):
    search = made_search(space={"p": dimension, "q": {"type": "real", "low": -1, "high": 2}})
    remarks = best_remarks(search, {"p": value, "q": 0.5}, 1)
    assert [(one.startswith("p is at its "), remark in one) for one in remarks] == [(True, True)] * bool(remark)
    assert best_remarks(search, {"q": 0.5}, 3) == ["3 trials have this value"]  # p is inactive
