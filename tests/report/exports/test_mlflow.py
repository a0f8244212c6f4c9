"""The MLflow export, read back with MLflow's own client."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

import mlflow
import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.report import mlflow as mlflow_export
from hpo_pilot.report.mlflow import MARK, key_of
from tests.report.exports.made import curves_of, every_kind, finished, search_of, subject_of


class Place:
    """A database to export to, and MLflow's view of it."""

    def __init__(self, path: Path) -> None:
        self.path, self.uri = path, f"sqlite:///{path}"

    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def runs(self, name="digits"):
        client = self.client()
        experiment = client.get_experiment_by_name(name)
        found = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL, max_results=1000)
        return sorted(found, key=lambda run: int(run.data.tags.get("trial", 0)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A search with a trial of every kind, exported; only to be read."""
    place = Place(tmp_path_factory.mktemp("exported") / "runs.db")
    said = mlflow_export.write(subject_of(search_of(), every_kind(), curves_of([1])), place.path)
    assert "14 of 16 trials (2 are not over; export again later)" in said and place.uri in said
    return place


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """MLflow's tables, which take it a second."""
    path = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def place(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "x.db")
    return Place(tmp_path / "x.db")


def test_runs_as_mlflow_knows_them(exported):
    client, runs = exported.client(), exported.runs()
    assert [int(run.data.tags["trial"]) for run in runs] == [*range(1, 14), 16]
    statuses = ["FINISHED"] * 10 + ["FAILED", "KILLED", "KILLED", "FINISHED"]
    assert [run.info.status for run in runs] == statuses
    first = runs[0]
    assert first.data.params["learning_rate"] == "0.0002" and first.data.params["solver"] == "sgd"
    assert first.data.params["odd"] == "true" and "momentum" not in runs[1].data.params
    metrics = first.data.metrics
    assert (metrics["loss"], metrics["std"], metrics["fold_0"], metrics["fold_1"]) == (1.5, 0.7, 1.0, 2.0)
    assert (metrics["accuracy"], metrics["fold_1_accuracy"]) == (pytest.approx(0.55), 0.6)
    assert metrics["fold_0_loss"] == 7.0  # the payload's own figure of that name; `loss` is the figure of merit
    assert metrics["job_seconds"] == 5.0 and "note" not in metrics and "best" not in metrics
    history = client.get_metric_history(first.info.run_id, "intermediate_value")
    assert [(one.step, one.value) for one in history[:2]] == [(1, 1.5), (2, 1.0)] and math.isnan(history[2].value)
    assert math.isnan(metrics["intermediate_value"])
    assert len(client.get_metric_history(first.info.run_id, "fold_1_intermediate_value")) == 3
    assert (first.info.start_time, first.info.end_time) == (1767605401000, 1767605403500)
    assert first.info.run_name == "digits-1"
    tags = first.data.tags
    assert (tags["state"], tags["generation"], tags["seed"], tags["owner"]) == ("finished", "1", "78", "alice")
    assert tags["panda_ids"] == "1000 1001" and runs[13].data.tags["confirms"] == "1"
    assert runs[10].data.tags["error"].startswith("fold 0: exit status 1")


def test_logs_and_the_definition_are_artifacts(exported):
    client, run_id = exported.client(), exported.runs()[10].info.run_id
    assert {one.path for one in client.list_artifacts(run_id)} == {"search.yaml", "fold_0.log"}
    log, definition = (Path(client.download_artifacts(run_id, name)) for name in ("fold_0.log", "search.yaml"))
    assert log.read_text(encoding="utf-8") == "Traceback …\nValueError: <b>\n"
    assert '"search": "digits"' in definition.read_text(encoding="utf-8")


def test_mlflow_s_own_search_finds_them(exported):
    mlflow.set_tracking_uri(exported.uri)
    found = mlflow.search_runs(
        experiment_names=["digits"], filter_string="metrics.loss < 0.71 and params.solver = 'sgd'", output_format="list"
    )
    assert sorted(int(run.data.tags["trial"]) for run in found) == [5, 7, 9, 16]


def test_several_objectives(place):
    search = search_of(objective=[{"metric": "loss"}, {"metric": "latency", "goal": "maximize"}])
    mlflow_export.write(subject_of(search, [finished(2, objectives=2)]), place.path)
    metrics = place.runs()[0].data.metrics
    assert (metrics["loss"], metrics["latency"], metrics["std_latency"], metrics["fold_1_latency"]) == (1, 10, 7, 15)


def test_a_second_export_adds_what_is_over_now(place):
    trials = every_kind()
    mlflow_export.write(subject_of(search_of(), trials[:14]), place.path)
    before = place.runs()
    place.client().set_tag(before[3].info.run_id, "mlflow.note.content", "look here")
    place.client().delete_run(before[4].info.run_id)
    trials[13] = finished(14)  # it was running
    said = mlflow_export.write(subject_of(search_of(), trials), place.path)
    assert "wrote 2 of 16 trials (13 were already written) (1 is not over; export again later)" in said
    after = place.runs()
    assert len(after) == 15
    assert [run.info.run_id for run in after[:13]] == [run.info.run_id for run in before]
    assert after[13].info.status == "FINISHED" and after[13].data.metrics["fold_1"] == pytest.approx(1 + 1 / 14)
    assert after[3].data.tags["mlflow.note.content"] == "look here"
    assert after[4].info.lifecycle_stage == "deleted"
    assert len(place.client().search_experiments(filter_string="name = 'digits'")) == 1
    assert "wrote 0 of 16 trials" in mlflow_export.write(subject_of(search_of(), trials), place.path)


def test_several_searches_share_a_store(place):
    mlflow_export.write(subject_of(search_of(), every_kind()[:2]), place.path)
    mlflow_export.write(subject_of(search_of(search="other"), every_kind()[:3]), place.path)
    assert (len(place.runs()), len(place.runs("other"))) == (2, 3)
    experiment = place.client().get_experiment_by_name("other")
    assert experiment.tags[MARK].startswith("other ") and experiment.tags["goals"] == "minimize loss"


def test_nothing_of_others_is_overwritten(place):
    client = place.client()
    client.create_experiment("digits")
    with pytest.raises(InputError, match="experiment 'digits' that is not an export"):
        mlflow_export.write(subject_of(search_of(), every_kind()), place.path)
    assert place.runs() == []


@pytest.mark.parametrize(("target", "message"), [("notes.db", "not a database of MLflow"), ("", "not a file")])
def test_other_files_are_refused(tmp_path, target, message):
    (tmp_path / "notes.db").write_text("notes")
    with pytest.raises(InputError, match=message):
        mlflow_export.write(subject_of(search_of(), []), tmp_path / target)
    assert (tmp_path / "notes.db").read_text() == "notes"


def test_an_interrupted_export_is_completed_by_the_next(place, monkeypatch):
    def full(client, subject, trial, run_id, scratch):
        if trial["number"] == 5:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as context, pytest.raises(OSError, match="No space"):
        context.setattr(mlflow_export, "_write_artifacts", full)
        mlflow_export.write(subject_of(search_of(), every_kind()), place.path)
    assert [run.info.status for run in place.runs()] == ["FINISHED"] * 4 + ["RUNNING"]
    assert "wrote 10 of 16 trials (4 were already written)" in mlflow_export.write(
        subject_of(search_of(), every_kind()), place.path
    )
    runs = place.runs()
    assert [int(run.data.tags["trial"]) for run in runs] == [*range(1, 14), 16]
    assert runs[4].info.status == "FINISHED" and runs[4].data.metrics["loss"] == pytest.approx(0.7)


def test_many_metrics_and_parameters_go_in_several_calls(place):
    space = {f"x{number}": {"type": "real", "low": 0, "high": 1} for number in range(130)}
    trial = replace(finished(1), point=dict.fromkeys(space, 0.5))
    subject = subject_of(search_of(space=space), [trial], curves_of([1], steps=1200))
    mlflow_export.write(subject, place.path)
    (run,) = place.runs()
    assert len(run.data.params) == 130
    assert len(place.client().get_metric_history(run.info.run_id, "intermediate_value")) == 1200


def test_a_database_that_another_program_has_locked(place, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **{**named, "timeout": 0.01}))
    with closing(connect(place.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TryAgainError, match="locked by another program"):
            mlflow_export.write(subject_of(search_of(), [finished(1)]), place.path)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("val_loss", "val_loss"),
        ("a/b", "a_b"),
        ("..", "__"),
        ("größe µ", "größe µ"),
        ("x" * 300, "x" * 250),
        ("a\nb", "a_b"),
    ],
)
def test_names_that_mlflow_does_not_take(name, key):
    assert key_of(name) == key
