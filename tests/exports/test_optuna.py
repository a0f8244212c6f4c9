"""The Optuna export, read back with Optuna itself."""

from __future__ import annotations

import math
import re
import sqlite3
import warnings

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.exports import optuna_study
from hpo_pilot.exports.optuna_trials import distribution_of
from tests.exports.made import curves_of, every_kind, finished, point_of, search_of, subject_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.db"


@pytest.fixture
def export(path):
    """Writes, and reads the study back."""

    def exported(subject, name="digits"):
        optuna_study.write(subject, path)
        return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")

    return exported


def test_trials_as_optuna_knows_them(export):
    study = export(subject_of(search_of(), every_kind(), curves_of([1, 12])))
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(16))
    assert study.direction.name == "MINIMIZE" and study.metric_names == ["loss"]
    states = [TrialState.COMPLETE] * 10 + [TrialState.FAIL, TrialState.PRUNED, TrialState.FAIL]
    assert [trial.state for trial in trials] == [*states, TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE]
    for trial in trials:
        expected = point_of(1 if trial.number == 15 else trial.number + 1)
        assert trial.params == expected
        assert [type(value) for value in trial.params.values()] == [type(value) for value in expected.values()]
        trial._validate()
    first = trials[0]
    assert first.value == 1.5
    assert first.intermediate_values[1] == 1.5 and math.isnan(first.intermediate_values[3])
    assert (
        first.user_attrs["trial"] == 1
        and first.user_attrs["std"] == 0.7
        and first.user_attrs["panda_ids"] == [1000, 1001]
    )
    assert first.user_attrs["accuracy"] == pytest.approx(0.55)
    assert first.datetime_complete.astimezone().timestamp() == pytest.approx(1767605403.5)
    assert trials[10].user_attrs["error"] == "fold 0: exit status 1 \udcff"
    assert trials[11].value == 0.9
    assert study.best_trial.user_attrs["confirms"] == 1
    assert study.user_attrs["definition"] == search_of().to_dict()


def test_the_same_as_through_optuna_s_own_way(export):
    """Whatever was written in bulk, Optuna writes the same of it."""
    ours = export(subject_of(search_of(), every_kind(), curves_of(range(1, 13)))).trials
    theirs = optuna.create_study(storage="sqlite://")
    theirs.add_trials(ours)
    for one, other in zip(ours, theirs.trials, strict=True):
        one._trial_id = other._trial_id = 0
        same = (one.state, one.params, one.distributions, one.user_attrs, one.datetime_start, one.datetime_complete)
        assert same == (
            *(other.state, other.params, other.distributions),
            *(other.user_attrs, other.datetime_start, other.datetime_complete),
        )
        assert repr(one.intermediate_values) == repr(other.intermediate_values) and one.values == other.values


def test_distributions_are_exact():
    space = search_of().to_dict()["space"]
    assert {name: distribution_of(dimension) for name, dimension in space.items()} == {
        "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "dropout": FloatDistribution(0.0, 0.5, step=0.05),
        "layers": IntDistribution(1, 4),
        "width": IntDistribution(16, 512, log=True),
        "value": IntDistribution(0, 9, step=3),
        "solver": CategoricalDistribution(["adam", "sgd"]),
        "batch": CategoricalDistribution([32, 64, 128]),
        "odd": CategoricalDistribution([1, True, "1", None, 1.5]),
        "momentum": FloatDistribution(0.5, 0.99),
    }


@pytest.mark.parametrize(
    ("low", "high", "step", "expected"),
    [
        (0.0, 1.0, 0.3, FloatDistribution(0.0, 0.9, step=0.3)),
        (0.0, 1.0, 1 / 3, FloatDistribution(0.0, 1.0)),  # its last step is 1, and Optuna's 0.9999999999999999
    ],
)
def test_steps_that_do_not_meet_the_end(low, high, step, expected):
    space = search_of(space={"x": {"type": "real", "low": low, "high": high, "step": step}}).space
    dimension = space.dimensions["x"]
    found = distribution_of(dimension.model_dump())
    assert found == expected
    assert all(found._contains(value) for value in dimension.grid(100))


def test_several_objectives(export):
    search = search_of(objective=[{"metric": "loss"}, {"metric": "latency", "goal": "maximize"}])
    study = export(subject_of(search, [finished(number, objectives=2) for number in (1, 2)]))
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert study.metric_names == ["loss", "latency"]
    assert study.trials[0].values == [1.5, 15.0]
    assert study.trials[0].user_attrs["std_latency"] == 7.0
    assert len(study.best_trials) == 2


def test_a_second_export_brings_it_up_to_date(export, path):
    trials = every_kind()
    export(subject_of(search_of(), trials[:3]))
    # Somebody else's study in the same file, and a note of the dashboard's on a trial of ours.
    other = optuna.create_study(study_name="mine", storage=f"sqlite:///{path}")
    other.add_trial(optuna.trial.create_trial(value=1.0))
    ids = {
        trial.number: trial._trial_id
        for trial in optuna.load_study(study_name="digits", storage=f"sqlite:///{path}").trials
    }
    now = export(subject_of(search_of(), trials))
    assert len(now.trials) == 16
    assert {trial.number: trial._trial_id for trial in now.trials[:3]} == ids
    assert optuna.load_study(study_name="mine", storage=f"sqlite:///{path}").trials[0].value == 1.0
    again = export(subject_of(search_of(), trials))
    assert [(trial._trial_id, trial.state, trial.params) for trial in again.trials] == [
        (trial._trial_id, trial.state, trial.params) for trial in now.trials
    ]


def test_nothing_of_others_is_overwritten(export, path):
    path.write_text("notes")
    with pytest.raises(InputError, match="no storage of Optuna"):
        export(subject_of(search_of(), every_kind()))
    assert path.read_text() == "notes"
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE mine (x)").connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="no storage of Optuna"):
        export(subject_of(search_of(), every_kind()))
    assert path.read_bytes() == before
    path.unlink()
    study = optuna.create_study(study_name="digits", storage=f"sqlite:///{path}")
    with pytest.raises(InputError, match="study 'digits' that is no export"):
        export(subject_of(search_of(), every_kind()))
    assert study.trials == []


def test_a_study_that_somebody_went_on_with_is_left_alone(export):
    study = export(subject_of(search_of(), every_kind()[:3]))
    study.add_trial(optuna.trial.create_trial(value=0.001))
    with pytest.raises(InputError, match="not from search 'digits'"):
        export(subject_of(search_of(), every_kind()))
    assert study.best_value == 0.001


def test_a_failure_leaves_what_was_there(export, path, monkeypatch):
    export(subject_of(search_of(), every_kind()[:3]))

    def broken(trial):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(optuna_study, "_details", broken)
    with pytest.raises(OSError, match="No space"):
        optuna_study.write(subject_of(search_of(), every_kind()), path)
    assert len(optuna.load_study(study_name="digits", storage=f"sqlite:///{path}").trials) == 3
    fresh = path.with_name("fresh.db")
    with pytest.raises(OSError, match="No space"):
        optuna_study.write(subject_of(search_of(), every_kind()), fresh)
    assert {entry.name for entry in path.parent.iterdir()} == {path.name}


def test_a_place_that_cannot_be_written_is_said_so(tmp_path):
    with pytest.raises(OSError, match="unable to open database file"):
        optuna_study.write(subject_of(search_of(), every_kind()), tmp_path / "nosuch" / "study.db")


def test_optuna_draws_it(export):
    study = export(subject_of(search_of(), every_kind(), curves_of(range(1, 13))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = optuna.visualization.plot_optimization_history(study)
        parallel = optuna.visualization.plot_parallel_coordinate(study, params=["learning_rate", "layers", "solver"])
        curves = optuna.visualization.plot_intermediate_values(study)
    assert len(history.data[0].y) == 11
    assert set(re.findall("learning_rate|layers|solver", str(parallel))) == {"learning_rate", "layers", "solver"}
    assert len(curves.data) == 11  # those that are complete or pruned


@pytest.mark.parametrize("level", ["EXCLUSIVE", "IMMEDIATE"])
def test_a_storage_that_another_program_has_locked_is_no_other_file(export, path, level, monkeypatch):
    subject = subject_of(search_of(), [finished(1, 0.5)])
    export(subject)
    connect = sqlite3.connect
    # Nobody waits for it here.
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **{**named, "timeout": 0.01}))
    monkeypatch.setattr(sqlite3.dbapi2, "connect", sqlite3.connect)
    other = connect(path, isolation_level=None)
    other.execute(f"BEGIN {level}")
    try:
        with pytest.raises(TryAgainError, match="locked by another program"):
            optuna_study.write(subject, path)
    finally:
        other.close()
    assert len(export(subject).trials) == 1
