"""Failures in groups, and the efficiency of ranks."""

from __future__ import annotations

import pytest

from hpo_pilot.report.summary import LOG_LIMIT, RANK_MEASURES, REASON_LIMIT, efficiencies, failure_groups
from hpo_pilot.search import TrialState
from tests.made import made_fold
from tests.report.figures.made_up import RANKS, make_trial, measured

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
