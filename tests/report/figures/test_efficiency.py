"""How well trainings used their ranks, as reports and pages show it."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.report.summary import RANK_MEASURES, efficiencies
from hpo_pilot.search import Trial
from tests.made import made_fold
from tests.report.figures.made_up import make_trial

METRICS = {
    "ranks": 2.0,
    "pop_parallel_efficiency": 0.6,
    "pop_load_balance": 0.75,
    "pop_communication_efficiency": 0.8,
    "pop_input_fraction": 0.1,
    "images_per_second": 100.0,
    "compute_seconds": 6.0,
}
RANKS = [{"rank": 0, "host": "n1", "compute": 8.0}, {"rank": 1, "host": "n2", "compute": 4.0}]


def measured(number: int, *changes: dict[str, Any], ranks: Any = RANKS) -> Trial:
    """A trial with a fold for each of the changes to its metrics."""
    folds = tuple(
        made_fold(fold=fold, value=0.1, metrics={**METRICS, **change}, metadata={"hpo_pilot_ranks": ranks})
        for fold, change in enumerate(changes)
    )
    return make_trial(number, 0.1, folds=folds)


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
