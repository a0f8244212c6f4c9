"""Figures of a search with levels: points over the levels, and all other figures of one level."""

from __future__ import annotations

from hpo_pilot.report.figure import FigureData
from tests.report.figures.made_up import draw, make_search, make_trial
from tests.report.figures.test_catalogue import all_of, assert_sound

EPOCHS = {"epochs": {"low": 1, "high": 9}}


def leveled(n=30):
    """Trials at level 1; every third goes on to 3, where its rank is the same."""
    low = [make_trial(number, 0.9 - number / 100, level=1) for number in range(1, n + 1)]
    return low + [make_trial(n + one.number, one.value, level=3, continues=one.number) for one in low[::3]]


def test_points_over_levels_and_what_each_level_says_of_the_highest():
    search = make_search(fidelity=EPOCHS, folds=1)
    (figure,) = draw("levels", search, leveled())
    assert "30 points over epochs" in figure.description
    assert "Epochs 1: 30 trials" in figure.note and "rank correlation with 3: 1" in figure.note
    assert [trace["name"] for trace in figure.spec["data"]] == ["point", "best"]
    assert figure.spec["data"][1]["x"] == [1, 3]


def test_other_figures_show_one_level():
    search = make_search(fidelity=EPOCHS, folds=1)
    trials = leveled()
    drawn = all_of(FigureData(search, trials))
    assert_sound(drawn)
    assert drawn["levels"] and "Only results of epochs 3." in drawn["convergence"][0].note
    assert "Only results of epochs 3." in drawn["distribution"][0].note, "ten results are enough"
    (few,) = draw("distribution", search, trials[:-1])
    assert "Only results of epochs 1." in few.note


def test_without_levels_there_is_no_such_figure():
    search = make_search(folds=1)
    assert draw("levels", search, [make_trial(1, 0.5)]) == [] and "levels" not in all_of(FigureData(search, []))
