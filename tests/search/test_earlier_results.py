"""Results of earlier searches in the terms of a new one, and files with them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import as_csv, as_hpogrid_report, as_json
from hpo_pilot.report.trial_documents import trial_document
from hpo_pilot.search import EarlyStop, EarlyStopping, Objective, Search, SearchSpace, Trial, TrialState
from hpo_pilot.search.earlier_results import (
    MOST_RESULTS,
    EarlierSearch,
    EarlierTrial,
    earlier_search,
    fit_earlier_results,
    read_results,
)
from hpo_pilot.search.fidelity import Levels
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.search.trials import Price
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


def test_fitting_results_are_unchanged():
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


def test_results_that_do_not_fit_are_refused():
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


def test_files_and_names_of_searches_are_told_apart():
    files = ["old.csv", "./old", "../r/old.json", "2024"]
    assert [source for source in ("old", "old-2_b", *files) if is_result_file(source)] == files


# --- files with results ---


SEARCH = Search.model_validate(
    {
        "search": "old",
        "objective": {"metric": "accuracy", "goal": "maximize"},
        "space": {
            "rate": {"type": "real", "low": 1e-4, "high": 0.1, "scale": "log"},
            "layers": {"type": "integer", "low": 1, "high": 4},
            "kind": {"type": "categorical", "choices": ["a", "=b", 1, True, None]},
            "momentum": {"type": "real", "low": 0.5, "high": 1.0, "when": {"kind": "=b"}},
        },
        "folds": 2,
        "payload": {"command": "true"},
    }
)
POINTS = [
    {"rate": 0.00123456789, "layers": 2, "kind": "a"},
    {"rate": 0.05, "layers": 1, "kind": "=b", "momentum": 0.75},
    {"rate": 0.1, "layers": 4, "kind": 1},
    {"rate": 0.1, "layers": 3, "kind": True},
]
FOLDS = (made_fold(0, 0.1), made_fold(1, 0.3))
TRIALS = [
    Trial(n, 1, point, TrialState.FINISHED, values=(n / 10,), stds=(0.2,), folds=FOLDS, told=n)
    for n, point in enumerate(POINTS, start=1)
]
FAILED = Trial(5, 1, POINTS[0], TrialState.FAILED, error='exit status 1,\n"why"', told=5)
OTHERS = [
    replace(TRIALS[0], number=6, state=TrialState.STOPPED),
    replace(TRIALS[0], number=7, state=TrialState.RUNNING, values=()),
]
ALL = [*TRIALS, FAILED, *OTHERS]


def read(tmp_path, text, name="old.txt", objectives=SEARCH.objectives):
    path = tmp_path / name
    path.write_text("".join(text))
    return read_results(path, name, SEARCH.space, objectives)


def exact(point):
    return {name: (type(value), value) for name, value in point.items()}


def _as_documents(_search, trials):
    return json.dumps([trial_document(trial, Price(0, 1)) for trial in trials])


@pytest.mark.parametrize("form", [as_json, as_csv, _as_documents])
def test_what_export_writes_is_read_back(tmp_path, form):
    found = read(tmp_path, form(SEARCH, [*ALL, replace(TRIALS[0], number=8, confirms=1)]))
    assert [exact(trial.point) for trial in found.trials] == [exact(t.point) for t in [*TRIALS, FAILED]]
    assert [trial.values for trial in found.trials] == [(t.value,) for t in TRIALS] + [None]
    assert found.trials[0].errors == (pytest.approx(0.2 / 2**0.5),)
    assert found.objectives == (SEARCH.objectives if form is as_json else ())


@pytest.mark.parametrize("form", [as_json, as_csv, _as_documents])
def test_of_levels_the_highest_with_enough_results_is_read(tmp_path, form):
    search = SEARCH.model_copy(update={"fidelity": {"epochs": Levels(low=1, high=3)}})
    low = [replace(TRIALS[0], number=n, told=n, level=1, values=(float(n),)) for n in range(1, 13)]
    high = [replace(t, number=20 + t.number, level=3, continues=t.number, values=(0.5,)) for t in low]
    for told, value in ((high[:9], None), (high[:10], (0.5,))):
        found = read(tmp_path, form(search, [*low, *told]))
        assert [trial.values for trial in found.trials] == [value or t.values for t in (told if value else low)]
        assert earlier_search("old", LOSS, [*low, *told]).trials[0].values == found.trials[0].values


@pytest.mark.parametrize("form", [as_json, as_csv, _as_documents])
def test_stopped_trials_come_with_what_they_would_have_come_to(tmp_path, form):
    stop = EarlyStop(4, "accuracy 0.01 is 3rd of 3", 10, 0.01, (0.7,))
    diverged = replace(stop, value=None, projected=None)
    stopped = [
        replace(TRIALS[0], number=6 + n, state=TrialState.STOPPED, values=(), stds=(), stop=each)
        for n, each in enumerate((stop, diverged))
    ]
    search = SEARCH.model_copy(update={"early_stopping": EarlyStopping(method="asha")})
    found = read(tmp_path, form(search, [*ALL, *stopped]))
    assert [trial.stopped for trial in found.trials] == [False] * 5 + [True] * 2
    assert [(trial.values, trial.errors) for trial in found.trials[5:]] == [((0.7,), ()), (None, ())]


FRONT = SEARCH.model_copy(
    update={"objectives": (Objective(metric="loss"), Objective(metric="negative_loss", goal="maximize"))}
)


@pytest.mark.parametrize("form", [as_json, as_csv])
def test_of_several_objectives_each_is_found_by_its_name(tmp_path, form):
    folds = (made_fold(0, values=(0.1, 8.0)), made_fold(1, values=(0.3, 10.0)))
    whole = replace(TRIALS[0], values=(0.2, 9.0), stds=(0.1, 1.0), folds=folds)
    stop = EarlyStop(4, "loss 0.9 is 3rd of 3", 10, 0.9, (0.7, 5.0))
    stopped = replace(TRIALS[1], state=TrialState.STOPPED, values=(), stds=(), folds=(), stop=stop)
    search = FRONT.model_copy(update={"early_stopping": EarlyStopping(method="asha", metric="loss")})
    text = form(search, [whole, FAILED, stopped])
    found = read(tmp_path, text, objectives=search.objectives)
    assert [result[1:] for result in fit_earlier_results(found, SEARCH.space, search.objectives).results] == [
        ((0.2, -9.0), (pytest.approx(0.1 / 2**0.5), pytest.approx(1 / 2**0.5)), False),
        (None, None, False),
        ((0.7, -5.0), None, True),
    ]


def test_a_search_with_fewer_or_other_objectives_takes_the_columns_that_it_has_names_for(tmp_path):
    text = "x,value_loss,value_negative_loss,std_negative_loss,rate\n1,0.2,9.0,,0.01\n2,0.1,,,0.02\n"
    [first, second] = read(tmp_path, text, objectives=FRONT.objectives[1:]).trials
    assert (first.values, second.values) == ((9.0,), None)
    with pytest.raises(InputError, match="no column 'value_accuracy': it has value_loss and value_negative_loss"):
        read(tmp_path, text)
    one = read(tmp_path, "value,rate\n0.5,0.01\n")
    with pytest.raises(InputError, match=r"1 figure of merit per result without names.*'loss' and 'negative_loss'"):
        fit_earlier_results(one, SEARCH.space, FRONT.objectives)


def test_a_parameter_may_have_the_name_of_another_column(tmp_path):
    names = ["value", "std", "state", "error", "fold_0", "point.value", "free"]
    space = {name: {"type": "real", "low": 0.0, "high": 1.0} for name in names}
    search = Search.model_validate({"search": "s", "space": space, "payload": {"command": "true"}})
    point = {name: place / 10 for place, name in enumerate(names)}
    trial = Trial(1, 1, point, TrialState.FINISHED, values=(7.0,), folds=(made_fold(0, 7.0),), told=1)
    text = "".join(as_csv(search, [trial]))
    assert text.startswith("number,generation,state,value,std,point.value,point.std,point.state,point.error,")
    (tmp_path / "new.csv").write_text(text)
    [trial] = read_results(tmp_path / "new.csv", "new.csv", search.space, search.objectives).trials
    assert (dict(trial.point), trial.values) == (point, (7.0,))
    (tmp_path / "before.csv").write_text("state,value,free,free\nfinished,1,2,3\n")
    with pytest.raises(InputError, match="two columns 'free': rename one"):
        read_results(tmp_path / "before.csv", "before.csv", search.space, search.objectives)


def test_hpogrid_results_are_read(tmp_path):
    found = read(tmp_path, as_hpogrid_report(SEARCH, ALL))
    assert [exact(trial.point) for trial in found.trials] == [exact(t.point) for t in TRIALS]
    assert [trial.values for trial in found.trials] == [(t.value,) for t in TRIALS]
    assert (found.objectives[0].metric, found.objectives[0].goal) == ("accuracy", "maximize")


def test_points_of_phpo_are_read(tmp_path):
    found = read(tmp_path, json.dumps({"points": [[POINTS[0], 0.0], [POINTS[1], None]], "opt_space": None}))
    assert [(trial.point, trial.values) for trial in found.trials] == [(POINTS[0], (0.0,))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column 'value'"),
        ("{", "is not JSON"),
        ("[]", "has no results"),
        ('{"trials": 3}', "has no results"),
        ("[" * 100_000, "is not JSON"),
        ("number,value\n", "has no results"),
        ("a;b\n1;2\n", "has no column 'value'"),
        ('{"search": {"objective": {"metric": 3}}, "trials": []}', "search.objective is wrong"),
    ],
)
def test_what_is_no_result_file_is_said(tmp_path, text, said):
    with pytest.raises(InputError, match=f"^old.txt: .*{said}"):
        read(tmp_path, text)


def test_cells_that_are_no_numbers_give_no_results(tmp_path):
    text = "value,std,rate,layers,kind\nnan,x,0.1,2,a\n0.5,,fast,2.5,zz\n0.25,0.1,0.1,3\n"
    found = read(tmp_path, text)
    assert [trial.values for trial in found.trials] == [None, (0.5,), (0.25,)]
    assert all(trial.errors == (None,) for trial in found.trials)
    assert found.trials[1].point == {"rate": "fast", "layers": 2.5, "kind": "zz"}


def test_an_empty_cell_is_null_where_that_is_a_choice(tmp_path):
    space = {"schedule": {"type": "categorical", "choices": [None, "cosine"]}}
    search = Search.model_validate({"search": "s", "space": space, "payload": {"command": "true"}})
    trials = [Trial(1, 1, {"schedule": None}, TrialState.FINISHED, values=(7.0,), told=1)]
    (tmp_path / "old.csv").write_text("".join(as_csv(search, trials)))
    found = read_results(tmp_path / "old.csv", "old.csv", search.space, search.objectives)
    assert [trial.point for trial in found.trials] == [{"schedule": None}]


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_results(tmp_path, "old", SEARCH.space, SEARCH.objectives)
    with pytest.raises(InputError, match="there is no such file"):
        read_results(tmp_path / "gone.json", "gone.json", SEARCH.space, SEARCH.objectives)
    (tmp_path / "latin").write_bytes(b"value\n\xff\n")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_results(tmp_path / "latin", "latin", SEARCH.space, SEARCH.objectives)


def test_a_parameter_may_be_called_confirms(tmp_path):
    space = {"confirms": {"type": "integer", "low": 0, "high": 9}}
    search = Search.model_validate({"search": "s", "space": space, "payload": {"command": "true"}})
    path = tmp_path / "old.csv"
    for text in (
        as_csv(search, [Trial(1, 1, {"confirms": 4}, TrialState.FINISHED, values=(7.0,), told=1)]),
        "confirms,value\n4,7.0\n",
        "point.confirms,confirms,value\n4,,7.0\n3,1,6.0\n",
    ):
        path.write_text("".join(text))
        (trial,) = read_results(path, "old.csv", search.space, search.objectives).trials
        assert (trial.point, trial.values) == ({"confirms": 4}, (7.0,))
