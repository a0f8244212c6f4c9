from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report.documents import trial_document
from hpo_pilot.report.exports import as_csv, as_hpogrid_report, as_json
from hpo_pilot.search import EarlyStop, EarlyStopping, Objective, Search, Trial, TrialState
from hpo_pilot.search.earlier_results import fit_earlier_results, read_results
from hpo_pilot.search.trials import Price
from tests.made import made_fold

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
    path.write_text(text)
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
    text = as_csv(search, [Trial(1, 1, point, TrialState.FINISHED, values=(7.0,), folds=(made_fold(0, 7.0),), told=1)])
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


def test_strange_cells_make_no_results_out_of_nothing(tmp_path):
    text = "value,std,rate,layers,kind\nnan,x,0.1,2,a\n0.5,,fast,2.5,zz\n0.25,0.1,0.1,3\n"
    found = read(tmp_path, text)
    assert [trial.values for trial in found.trials] == [None, (0.5,), (0.25,)]
    assert all(trial.errors == (None,) for trial in found.trials)
    assert found.trials[1].point == {"rate": "fast", "layers": 2.5, "kind": "zz"}


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
        path.write_text(text)
        (trial,) = read_results(path, "old.csv", search.space, search.objectives).trials
        assert (trial.point, trial.values) == ({"confirms": 4}, (7.0,))
