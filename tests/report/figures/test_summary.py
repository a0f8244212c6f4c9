"""What a search has found: the best trials, fronts, convergence, failures, and how well ranks were used."""

from __future__ import annotations

import math

import pytest

from hpo_pilot.report.summary import (
    LOG_LIMIT,
    RANK_MEASURES,
    REASON_LIMIT,
    best_trial,
    convergence,
    efficiencies,
    failure_groups,
    front_of,
    front_volume,
    ranking,
    reference_of,
    top_trials,
)
from hpo_pilot.search import Search, Trial, TrialState
from tests.made import made_fold
from tests.report.figures.made_up import RANKS, ROWS, TWO, draw, make_search, make_trial, measured, several_trials


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


# --- several objectives ---


def test_the_front_is_in_the_order_of_the_first_objective():
    front = front_of(make_search(objective=TWO), several_trials(*ROWS))
    assert [standing.trial.number for standing in front] == [2, 3, 6, 1]
    ranked = [standing.trial.number for standing in ranking(make_search(objective=TWO), several_trials(*ROWS))]
    assert set(ranked[:4]) == {1, 2, 3, 6}
    assert ranked[4:] == [5, 7]
    assert {trial.number for trial in top_trials(make_search(objective=TWO), several_trials(*ROWS), 2)} == {
        1,
        2,
    }  # the ends of the front
    assert front_of(make_search(objective=TWO), []) == []


def test_stopped_and_incomplete_trials_are_not_on_it():
    trials = [
        *several_trials(*ROWS),
        make_trial(8, 0.1, values=(0.1, 99.0), state=TrialState.STOPPED),
        make_trial(9, 0.0),
    ]
    assert [standing.trial.number for standing in front_of(make_search(objective=TWO), trials)] == [2, 3, 6, 1]


def test_confirmed_trials_leave_the_front_only_for_confirmed_ones():
    trials = several_trials((1.0, 5.0), (2.0, 6.0), (1.5, 5.5), (3.0, 1.0))
    again = [make_trial(10, 2.2, values=(2.2, 4.0), confirms=1), make_trial(11, 2.1, values=(2.1, 6.5), confirms=2)]
    front = front_of(make_search(objective=TWO), [*trials, *again])
    # 1 came out as (2.2, 4): worse than 2, which was confirmed as (2.1, 6.5). 3 is behind neither.
    assert [standing.trial.number for standing in front] == [3, 2]
    assert front[1].figures == (2.1, 6.5)
    only_first = front_of(make_search(objective=TWO), [*trials, again[0]])
    assert 1 in [standing.trial.number for standing in only_first], "unconfirmed luck does not push it out"


def test_reference_and_volume_by_hand():
    given = [{**TWO[0], "reference": 4.0}, {**TWO[1], "reference": 0.0}]
    # Slabs: 1 to 2 at 1, 2 to 3 at 5, 3 to 4 at 9.
    assert front_volume(make_search(objective=given), several_trials(*ROWS)) == pytest.approx(1 + 5 + 9)
    assert reference_of(make_search(objective=given), several_trials(*ROWS)) == (4.0, 0.0)
    found = reference_of(make_search(objective=TWO), several_trials((0.0, 10.0), (10.0, 0.0)))
    assert found == pytest.approx((11.0, -1.0))
    assert reference_of(make_search(objective=TWO), several_trials(None)) is None
    assert front_volume(make_search(objective=TWO), several_trials(None)) is None


def test_the_reference_stays_and_far_outliers_do_not_count():
    rows = [(float(n), float(n)) for n in range(10)] + [(1e30, 0.0)] + [(5.0, 5.0)] * 9
    early = reference_of(make_search(objective=TWO), several_trials(*rows))
    assert early == reference_of(make_search(objective=TWO), several_trials(*rows, (99.0, -99.0)))
    assert early is not None
    assert early[0] < 100


def test_the_volume_only_grows_once_the_reference_stands():
    steps = convergence(
        make_search(objective=TWO), several_trials(None, (3.0, 3.0), None, (2.0, 4.0), (9.0, 0.0), (1.0, 2.0))
    )
    assert [place for place, _ in steps] == [2, 3, 4, 5, 6]
    volumes = [volume for _, volume in steps]
    assert volumes == sorted(volumes)
    assert volumes[0] == volumes[1] < volumes[2] == volumes[3] < volumes[4]


def test_figures_near_the_largest_float_have_a_reference_and_a_volume():
    search = make_search(objective=TWO)
    trials = several_trials(*[(n / 9, (-1e308, 1e308)[n % 2]) for n in range(9)])
    reference = reference_of(search, trials)
    assert all(map(math.isfinite, reference))
    assert reference[1] < -1e308
    assert 0 < front_volume(search, trials) < math.inf
    assert "drawn there" in draw("convergence", search, trials)[0].note


# --- failures ---


def test_reasons_that_differ_in_numbers_are_one() -> None:
    trials = [make_trial(n, None, error=f"exit status 1 after {n}.5 s") for n in (1, 2, 3)]
    trials += [make_trial(4, None, error="no output.json"), make_trial(5, 0.1)]
    first, second = failure_groups(trials)
    assert (first.reason, first.trials, first.lost) == ("exit status 1 after 1.5 s", (1, 2, 3), True)
    assert (second.reason, second.trials) == ("no output.json", (4,))


def test_only_the_first_line_decides() -> None:
    (group,) = failure_groups([make_trial(1, None, error="crashed\nat a"), make_trial(2, None, error="crashed\nat b")])
    assert group.trials == (1, 2)


def test_a_log_is_kept_to_its_end_and_a_reason_to_its_start() -> None:
    fold = made_fold(fold=0, error="crashed", log_tail="x" * 60_000 + "the end")
    (group,) = failure_groups([make_trial(1, None, error="r" * 5000, folds=(fold,))])
    assert group.log_tail is not None
    assert len(group.log_tail) == LOG_LIMIT
    assert group.log_tail.endswith("the end")
    assert len(group.reason) == REASON_LIMIT


def test_a_trial_without_a_reason_of_its_own_gives_its_folds() -> None:
    folds = (made_fold(fold=0, error="killed"), made_fold(fold=1, error="killed"), made_fold(fold=2, value=1.0))
    (group,) = failure_groups([make_trial(1, None, error=None, folds=folds)])
    assert (group.reason, group.folds, group.trials) == ("killed", 2, (1,))
    (nothing,) = failure_groups([make_trial(1, None, error=None)])
    assert nothing.reason == "no reason was recorded"


def test_a_lost_fold_of_a_finished_trial_is_no_lost_trial() -> None:
    folds = (made_fold(fold=0, value=0.1), made_fold(fold=1, error="killed"))
    (group,) = failure_groups([make_trial(1, 0.1, folds=folds)])
    assert (group.lost, group.folds) == (False, 1)


def test_a_stopped_trial_is_no_failure() -> None:
    fold = made_fold(fold=0, error="cancelled")
    assert failure_groups([make_trial(1, None, state=TrialState.STOPPED, error="stopped", folds=(fold,))]) == []


# --- use of the ranks ---


def test_figures_are_means_over_the_folds_that_were_measured():
    trial = measured(3, {}, {"pop_parallel_efficiency": 0.8}, {"pop_parallel_efficiency": None, "ranks": 9.0})
    (found,) = efficiencies([make_trial(1, 0.5), trial])
    figures = dict(zip((measure.name for measure in RANK_MEASURES), found.figures, strict=True))
    assert found.number == 3
    assert figures["pop_parallel_efficiency"] == pytest.approx(0.7)
    assert (figures["ranks"], figures["images_per_second"]) == (2.0, 100.0)
    assert found.slowest == "rank 0 on n1: 33% longer than the mean"


def test_a_training_without_images_or_other_ranks_has_gaps():
    (found,) = efficiencies([measured(1, {"images_per_second": None, "compute_seconds": 8.0}, ranks=RANKS[:1])])
    assert found.figures[-1] is None
    assert found.slowest == ""


@pytest.mark.parametrize("ranks", [None, "x", [], [1], [{"rank": "a"}], [{"rank": 0, "compute": "x"}] * 2])
def test_ranks_that_are_none_leave_it_unknown_which_is_slowest(ranks):
    (found,) = efficiencies([measured(1, {}, ranks=ranks)])
    assert found.slowest == ""


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), "0.5", True, None])
def test_what_is_no_figure_was_not_measured(figure):
    assert efficiencies([measured(1, {"pop_parallel_efficiency": figure})]) == []
