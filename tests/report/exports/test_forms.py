"""Where exports go, what is missing for them, and CSV and hpogrid's report; MLflow's runs: test_mlflow.py."""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.report.exports import as_csv, as_hpogrid_report, export_mlflow, without_stops
from tests.command_here import command_here
from tests.made import made_fold
from tests.report.exports.made import failed, finished, search_of
from tests.rest_api import add_results, store_of, write_search


@pytest.fixture
def client(tmp_path):
    """A client of a search with three trials."""
    (tmp_path / "work").mkdir()
    store_of(tmp_path / "work").close()
    with SearchClient.local(tmp_path / "work") as opened:
        opened.submit(write_search(tmp_path, "digits"))
        add_results(tmp_path / "work", "digits")
        yield opened


def test_mlflow_from_the_command_line(client, tmp_path):
    words = ("export", "digits", "--format", "mlflow", "--workdir", str(tmp_path / "work"))
    done = command_here(*words, "-o", str(tmp_path / "runs.db"))
    assert done.returncode == 0, done.stderr
    assert "wrote 3 of 3 trials to" in done.stdout and f"sqlite:///{tmp_path}/runs.db" in done.stdout
    assert "-o FILE.db" in command_here(*words).stderr


def test_a_folder_that_is_not_there(client, tmp_path):
    with pytest.raises(InputError, match="no/such does not exist"):
        export_mlflow(client, "digits", tmp_path / "no" / "such" / "runs.db")


@pytest.mark.parametrize("missing", ["mlflow", "sqlalchemy"])
def test_a_missing_library_is_named_with_its_remedy(client, tmp_path, monkeypatch, missing):
    monkeypatch.delitem(sys.modules, "hpo_pilot.report.mlflow", raising=False)
    monkeypatch.delattr("hpo_pilot.report.mlflow", raising=False)
    client.status("digits")  # the store needs it too
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError, match=rf"{missing}.*pip install 'hpo-pilot\[service,mlflow\]'"):
        export_mlflow(client, "digits", tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_csv_has_a_column_that_only_a_late_trial_has():
    late = finished(301, folds=(made_fold(1, 0.5, metrics={"memory_mb": 7}),))
    rows = list(csv.DictReader("".join(as_csv(search_of(), [*map(finished, range(1, 301)), late])).splitlines()))
    assert [row["metrics.memory_mb"] for row in rows] == [""] * 300 + ["7.0"]


def test_csv_on_a_full_disk_names_the_remedy(monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(TryAgainError, match=r"no room .*: .* No space left on device; .* TMPDIR"):
        next(as_csv(search_of(), [finished(1)]))


def test_csv_has_means_of_measured_figures_in_columns_of_their_own():
    folds = tuple(made_fold(n, 0.5, metrics={"energy_joules": 2.0 * n, "accuracy": 0.9}) for n in (1, 2))
    text = "".join(as_csv(search_of(), [finished(1, folds=folds), finished(2, folds=())]))
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["metrics.energy_joules"] for row in rows] == ["3.0", ""]
    assert [name for name in rows[0] if name.startswith("metrics.")] == ["metrics.energy_joules"]


def test_the_best_of_a_hpogrid_report_is_no_confirmation_run():
    trials = [finished(1), finished(2), finished(3, value=0.1, confirms=2), failed(4)]
    report = json.loads("".join(as_hpogrid_report(search_of(), trials)))
    assert (report["best_metric_score"], report["best_config"]["layers"]) == (1.0, 3)
    assert [row["loss"] for row in report["result"].values()] == [1.5, 1.0, 0.1]


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t=", "\r="])
def test_csv_has_no_cell_that_a_spreadsheet_would_run(first):
    trial = replace(finished(1), error=first + "1+1", told=1)
    header, row = csv.reader(io.StringIO("".join(as_csv(search_of(), [trial]))))
    cells = dict(zip(header, row, strict=True))
    assert (cells["error"], cells["point.value"], cells["value"]) == (f"'{first}1+1".replace("\r", "\n"), "3", "1.5")
    assert (cells["told"], cells["seed"], cells["confirms"]) == ("1", "78", "")
    assert not {"retries", "stopped_step"} & cells.keys()


def test_a_parameter_may_have_a_name_as_of_early_stopping():
    columns = {"stopped_step": [], "projected": [], "projected_dim": []}
    assert without_stops(columns, {"projected_dim": "projected_dim"}) == {"projected_dim": []}
