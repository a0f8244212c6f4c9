from __future__ import annotations

import json

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.search import Objective, SearchSpace, Trial, TrialState
from hpo_pilot.search.earlier_results import (
    MOST_RESULTS,
    EarlierSearch,
    EarlierTrial,
    earlier_search,
    fit_earlier_results,
)
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.search.trials import EarlyStop
from tests.made import made_fold

LOSS = (Objective(metric="loss"),)
ACCURACY = (Objective(metric="accuracy", goal="maximize"),)
SPACE = SearchSpace.from_dict(
    {
        "rate": {"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"},
        "layers": {"type": "integer", "low": 1, "high": 4},
        "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
        "momentum": {"type": "real", "low": 0.5, "high": 1.0, "when": {"solver": "sgd"}},
    }
)
GOOD = {"rate": 0.01, "layers": 2, "solver": "adam"}


def earlier(*points, objectives=LOSS):
    trials = (p if isinstance(p, EarlierTrial) else EarlierTrial(p, (1.0 + i,), (0.1,)) for i, p in enumerate(points))
    return EarlierSearch("old", objectives, tuple(trials))


def test_only_results_of_the_search_itself_are_taken_in_their_order():
    folds = (made_fold(0, 1.0), made_fold(1, 2.0), made_fold(2, error="lost"))
    trials = [
        Trial(1, 1, {"x": 1}, TrialState.FINISHED, values=(1.5,), stds=(0.5,), folds=folds, told=3),
        Trial(2, 1, {"x": 2}, TrialState.FAILED, error="why", told=1),
        Trial(3, 1, {"x": 3}, TrialState.STOPPED, values=(9.0,)),
        Trial(4, 1, {"x": 4}, TrialState.RUNNING),
        Trial(5, 1, {"x": 5}, TrialState.FINISHED, values=(0.5,), told=2),
        Trial(6, 2, {"x": 5}, TrialState.FINISHED, values=(0.6,), confirms=5),
        Trial(7, 2, {"x": 7}, TrialState.STOPPED, told=4, stop=EarlyStop(1, "slow", 3, 0.9, (0.7,))),
    ]
    found = earlier_search("old", LOSS, trials)
    assert [(t.point["x"], t.values) for t in found.trials] == [(2, None), (5, (0.5,)), (1, (1.5,)), (7, (0.7,))]
    assert [t.stopped for t in found.trials] == [False, False, False, True]
    assert found.trials[2].errors == (pytest.approx(0.5 / 2**0.5),)  # of two good folds
    assert found.trials[1].errors == ()


def test_what_fits_is_taken_as_it_is():
    other = {**GOOD, "solver": "sgd", "momentum": 0.9}
    failed = EarlierTrial(GOOD, None)
    found = fit_earlier_results(earlier(GOOD, other, failed), SPACE, LOSS)
    assert found.results[:2] == ((GOOD, (1.0,), (0.1,), False), (other, (2.0,), (0.1,), False))
    assert found.results[2:] == ((GOOD, None, None, False),)
    assert found.notes == ()
    assert str(found) == "starts from 3 results of old"
    assert json.loads(json.dumps(found.results))


def test_a_single_figure_of_another_name_is_turned_by_its_own_goal():
    found = fit_earlier_results(earlier(GOOD, objectives=ACCURACY), SPACE, LOSS)
    assert found.results[0][1] == (-1.0,)
    assert "'accuracy' (to maximize), used as 'loss'" in found.notes[0]


def test_several_figures_are_found_by_their_names():
    trial = EarlierTrial(GOOD, (0.3, 0.9), (0.1, None))
    both = EarlierSearch("old", (*LOSS, *ACCURACY), (trial,))
    assert fit_earlier_results(both, SPACE, ACCURACY).results[0][1:3] == ((-0.9,), None)
    assert fit_earlier_results(both, SPACE, (*ACCURACY, *LOSS)).results[0][1] == (-0.9, 0.3)
    with pytest.raises(InputError, match="no figure of merit 'time': it has 'loss' and 'accuracy'"):
        fit_earlier_results(both, SPACE, (Objective(metric="time"),))
    with pytest.raises(InputError, match="no figure of merit 'accuracy'"):
        fit_earlier_results(earlier(GOOD), SPACE, (*LOSS, *ACCURACY))
    with pytest.raises(InputError, match="'old' has the goal to minimize 'loss', and this search to maximize it"):
        fit_earlier_results(earlier(GOOD), SPACE, (Objective(metric="loss", goal="maximize"),))


def test_a_file_that_does_not_name_its_figure_has_ours():
    found = fit_earlier_results(EarlierSearch("old.csv", (), (EarlierTrial(GOOD, (0.9,)),)), SPACE, ACCURACY)
    assert found.results[0][1:3] == ((-0.9,), None)
    taken = "it does not name its figures of merit or their goals: they are used as 'accuracy' (to maximize)"
    assert found.notes == (taken,)
    with pytest.raises(InputError, match=r"'old.csv' has no parameter of this space \(rate, layers, "):
        fit_earlier_results(EarlierSearch("old.csv", (), (EarlierTrial({}, (0.9,)),)), SPACE, ACCURACY)


def test_parameters_of_theirs_alone_are_left_aside():
    found = fit_earlier_results(earlier({**GOOD, "batch": 32}), SPACE, LOSS)
    assert found.results[0][0] == GOOD
    assert "batch is not used" in found.notes[0]


def test_parameters_of_ours_alone_are_anything():
    """Each result gets another value, so that they say nothing of the parameter; the same ones each time."""
    points = [{"rate": 0.001 * n, "layers": 1} for n in range(1, 81)]
    found = fit_earlier_results(earlier(*points), SPACE, LOSS)
    got = [point for point, *_ in found.results]
    assert [(p["rate"], p["layers"]) for p in got] == [(p["rate"], p["layers"]) for p in points]
    assert 20 < sum(p["solver"] == "sgd" for p in got) < 60
    assert all(("momentum" in p) == (p["solver"] == "sgd") for p in got)
    assert len({p["momentum"] for p in got if "momentum" in p}) > 20
    assert found == fit_earlier_results(earlier(*points), SPACE, LOSS)
    assert "results without solver and momentum get random values for it" in found.notes


def test_numbers_beyond_the_bounds_stay_and_what_has_no_place_goes():
    far = {**GOOD, "rate": 7.0, "layers": 99}
    wrong = [{**GOOD, "solver": "rmsprop"}, {**GOOD, "rate": "fast"}, {**GOOD, "rate": -1.0}, {**GOOD, "layers": True}]
    found = fit_earlier_results(earlier(far, *wrong, GOOD), SPACE, LOSS)
    assert [point for point, *_ in found.results] == [far, GOOD]
    assert "4 of its 6 results do not fit this space (solver must be 'adam' or 'sgd', not 'rmsprop')" in found.notes


def test_where_there_is_nothing_to_learn_it_says_so():
    with pytest.raises(InputError, match="'old' has no results yet"):
        fit_earlier_results(earlier(EarlierTrial(GOOD, None)), SPACE, LOSS)
    with pytest.raises(InputError, match="no parameter of this space: it has depth, this one rate, layers"):
        fit_earlier_results(earlier({"depth": 3}), SPACE, LOSS)
    with pytest.raises(InputError, match="none of the 1 results of 'old' fits this space: solver must be"):
        fit_earlier_results(earlier({**GOOD, "solver": "rmsprop"}), SPACE, LOSS)


def test_of_very_many_results_the_last_are_taken():
    many = tuple(EarlierTrial({"rate": 0.01}, (float(n),)) for n in range(MOST_RESULTS + 5))
    found = fit_earlier_results(
        EarlierSearch("old", LOSS, many), SearchSpace(dimensions={"rate": SPACE.dimensions["rate"]}), LOSS
    )
    assert len(found.results) == MOST_RESULTS
    assert found.results[0][1] == (5.0,)
    assert found.notes == (f"only the last {MOST_RESULTS} of its {MOST_RESULTS + 5} results are used",)


def test_a_result_file_is_told_from_a_name():
    files = ["old.csv", "./old", "../r/old.json", "2024"]
    assert [source for source in ("old", "old-2_b", *files) if is_result_file(source)] == files
