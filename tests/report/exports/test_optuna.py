"""The Optuna export, read back with Optuna itself."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import replace

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from hpo_pilot.errors import InputError
from hpo_pilot.report import optuna as optuna_export
from tests.report.exports.made import curves_of, every_kind, finished, point_of, search_of, subject_of


def journal(path):
    return JournalStorage(JournalFileBackend(str(path)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.log"


@pytest.fixture
def export(path):
    """Writes, and reads the study back."""

    def exported(subject):
        optuna_export.write(subject, path)
        return optuna.load_study(study_name="digits", storage=journal(path))

    return exported


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The study of a search with a trial of every kind; only to be read."""
    path = tmp_path_factory.mktemp("exported") / "study.log"
    optuna_export.write(subject_of(search_of(), every_kind(), curves_of(range(1, 13))), path)
    return optuna.load_study(study_name="digits", storage=journal(path))


def test_trials_as_optuna_knows_them(study):
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(14))
    assert [trial.user_attrs["trial"] for trial in trials] == [*range(1, 14), 16]  # 14 runs, 15 waits
    assert study.direction.name == "MINIMIZE" and study.metric_names == ["loss"]
    states = [TrialState.COMPLETE] * 10 + [TrialState.FAIL, TrialState.PRUNED, TrialState.FAIL]
    assert [trial.state for trial in trials] == [*states, TrialState.COMPLETE]
    for trial in trials:
        expected = point_of(1 if trial.number == 13 else trial.number + 1)
        expected["odd"] = json.dumps(expected["odd"])  # 1 and true are one choice to Optuna
        assert trial.params == expected
        assert [type(value) for value in trial.params.values()] == [type(value) for value in expected.values()]
        trial._validate()
    first = trials[0]
    assert first.value == 1.5
    assert first.intermediate_values[1] == 1.5 and math.isnan(first.intermediate_values[3])
    assert [first.user_attrs[name] for name in ("trial", "std", "panda_ids")] == [1, 0.7, [1000, 1001]]
    assert first.user_attrs["accuracy"] == pytest.approx(0.55)
    assert first.datetime_complete.astimezone().timestamp() == pytest.approx(1767605403.5)
    assert trials[10].user_attrs["error"] == "fold 0: exit status 1 \udcff"
    assert trials[11].value == 0.9
    assert study.best_trial.user_attrs["confirms"] == 1
    assert study.user_attrs["definition"] == search_of().to_dict()


def test_distributions_are_exact():
    space = search_of().to_dict()["space"]
    assert {name: optuna_export._distribution(dimension) for name, dimension in space.items()} == {
        "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "dropout": FloatDistribution(0.0, 0.5, step=0.05),
        "layers": IntDistribution(1, 4),
        "width": IntDistribution(16, 512, log=True),
        "value": IntDistribution(0, 9, step=3),
        "solver": CategoricalDistribution(["adam", "sgd"]),
        "batch": CategoricalDistribution([32, 64, 128]),
        "odd": CategoricalDistribution(["1", "true", '"1"', "null", "1.5"]),
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
    found = optuna_export._distribution(dimension.model_dump())
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


def test_trials_below_the_highest_level_are_pruned(export):
    search = search_of(fidelity={"epochs": {"low": 1, "high": 3}})
    low, high = finished(1, level=1), finished(2, level=3, continues=1)
    study = export(subject_of(search, [low, high]))
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED, TrialState.COMPLETE]
    assert study.trials[0].value == low.value and study.best_trial.number == 1


def test_a_second_export_adds_what_is_over_now(export, path):
    trials = every_kind()
    export(subject_of(search_of(), trials[:3]))
    # Somebody else's study in the same file, and an attribute of theirs on ours.
    other = optuna.create_study(study_name="mine", storage=journal(path))
    other.add_trial(optuna.trial.create_trial(value=1.0))
    optuna.load_study(study_name="digits", storage=journal(path)).set_user_attr("note", "look here")
    now = export(subject_of(search_of(), trials))
    assert [trial.user_attrs["trial"] for trial in now.trials] == [*range(1, 14), 16]
    trials[13] = finished(14)  # it was running
    now = export(subject_of(search_of(), trials))
    assert [trial.user_attrs["trial"] for trial in now.trials] == [*range(1, 14), 16, 14]
    assert now.trials[14].state is TrialState.COMPLETE and now.user_attrs["note"] == "look here"
    assert optuna.load_study(study_name="mine", storage=journal(path)).trials[0].value == 1.0
    before = path.read_bytes()
    export(subject_of(search_of(), trials))
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_said_so(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        optuna_export.write(subject_of(search_of(), []), tmp_path / "nosuch" / "study.log")


@pytest.mark.parametrize("content", [b"notes", b"notes\n", b"{}", b"[1]\n", b"SQLite format 3\0\n\xff"])
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a journal file of Optuna"):
        optuna_export.write(subject_of(search_of(), every_kind()), path)
    assert path.read_bytes() == content


def test_studies_of_others_are_refused(path):
    optuna.create_study(study_name="digits", storage=journal(path))
    with pytest.raises(InputError, match="study 'digits' that is not an export"):
        optuna_export.write(subject_of(search_of(), every_kind()), path)
    assert optuna.load_study(study_name="digits", storage=journal(path)).trials == []


def test_a_study_that_somebody_went_on_with_keeps_their_trials(export):
    export(subject_of(search_of(), every_kind()[:3])).add_trial(optuna.trial.create_trial(value=0.001))
    study = export(subject_of(search_of(), every_kind()))
    assert study.best_value == 0.001
    assert [trial.user_attrs.get("trial") for trial in study.trials] == [1, 2, 3, None, *range(4, 14), 16]


def test_an_interrupted_export_is_completed_by_the_next(export, path, monkeypatch):
    trial_of = optuna_export._trial

    def broken(subject, trial, space):
        if trial["number"] == 5:
            raise OSError(28, "No space left on device")
        return trial_of(subject, trial, space)

    with monkeypatch.context() as context, pytest.raises(OSError, match="No space"):
        context.setattr(optuna_export, "_trial", broken)
        optuna_export.write(subject_of(search_of(), every_kind()), path)
    study = export(subject_of(search_of(), every_kind()))
    assert [trial.user_attrs["trial"] for trial in study.trials] == [*range(1, 14), 16]


def test_a_trial_that_optuna_refuses_is_named(path):
    trials = every_kind()[:2]
    trials[1] = replace(trials[1], point={**trials[1].point, "layers": 40})
    with pytest.raises(InputError, match=r"Optuna refuses trial 2 of 'digits'.*layers"):
        optuna_export.write(subject_of(search_of(), trials), path)


def test_optuna_draws_it(study):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = optuna.visualization.plot_optimization_history(study)
        parallel = optuna.visualization.plot_parallel_coordinate(study, params=["learning_rate", "layers", "solver"])
        curves = optuna.visualization.plot_intermediate_values(study)
    assert len(history.data[0].y) == 11
    assert set(re.findall("learning_rate|layers|solver", str(parallel))) == {"learning_rate", "layers", "solver"}
    assert len(curves.data) == 11  # those that are complete or pruned
