"""`export --format` of the forms that are files: where they go, and what is missing."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace

import pandas as pd
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.report.exports import FILE_FORMS, as_csv, as_hpogrid_report, export_file, without_stops
from tests.command_here import command_here
from tests.made import made_fold
from tests.report.exports.made import curves_of, every_kind, failed, finished, search_of, subject_of
from tests.rest_api import add_results, store_of, write_search


class Client:
    """What an export asks a client for."""

    def __init__(self, subject):
        self.subject, self.asked = subject, []

    def trials(self, identity, **_):
        self.asked.append("trials")
        return self.subject.trials

    def status(self, identity):
        assert identity == "digits"
        return self.subject.search

    def intermediate(self, identity):
        self.asked.append("intermediate")
        return list(self.subject.curves.values())


@pytest.fixture
def client():
    return Client(subject_of(search_of(), every_kind(), curves_of([1])))


@pytest.mark.parametrize(
    ("form", "name", "asked"), [("parquet", "t.parquet", False), ("mlflow", "runs", True), ("optuna", "s.log", True)]
)
def test_each_is_written_and_says_what_opens_it(client, tmp_path, form, name, asked):
    said = export_file(client, "digits", form, tmp_path / name)
    assert (tmp_path / name).exists() and str(tmp_path / name) in said
    assert ("intermediate" in client.asked) is asked


def test_none_goes_to_the_terminal(client):
    for form, chosen in FILE_FORMS.items():
        with pytest.raises(InputError, match=f"-o {chosen.target}"):
            export_file(client, "digits", form, None)


def test_a_folder_that_is_not_there(client, tmp_path):
    with pytest.raises(InputError, match="no/such does not exist"):
        export_file(client, "digits", "parquet", tmp_path / "no" / "such" / "t.parquet")


@pytest.mark.parametrize(("form", "missing"), [("parquet", "pyarrow"), ("optuna", "optuna"), ("mlflow", "sqlalchemy")])
def test_a_missing_library_is_named_with_its_remedy(client, tmp_path, monkeypatch, form, missing):
    for name in [name for name in sys.modules if name.startswith(f"hpo_pilot.report.{form}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delattr(f"hpo_pilot.report.{form}", raising=False)
    with pytest.raises(InputError, match=rf"{missing}.*pip install 'hpo-pilot\[(service,)?{form}\]'"):
        export_file(client, "digits", form, tmp_path / "x.db")
    assert not list(tmp_path.iterdir())


def test_from_the_command_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    store_of(work).close()
    with SearchClient.local(work) as local:
        local.submit(write_search(tmp_path, "digits"))
    add_results(work, "digits")
    done = command_here("export", "digits", "--format", "parquet", "-o", "t.parquet", "--workdir", str(work))
    assert done.returncode == 0, done.stderr
    assert "wrote 3 trials to t.parquet" in done.stdout + done.stderr
    assert list(pd.read_parquet("t.parquet")["state"]) == ["failed", "finished", "finished"]


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
