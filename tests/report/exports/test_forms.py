"""`export --format` of the forms that are files: where they go, and what is missing."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import replace

import pandas as pd
import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import FILE_FORMS, as_csv, export_file
from tests.report.exports.made import curves_of, every_kind, finished, search_of, subject_of


class Client:
    """What an export asks a client for."""

    def __init__(self, subject):
        self.subject, self.asked = subject, []

    def trials(self, identity):
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


@pytest.mark.parametrize(
    ("form", "module", "missing"),
    [
        ("parquet", "parquet", "pyarrow"),
        ("optuna", "optuna", "optuna"),
        ("mlflow", "mlflow", "sqlalchemy"),
    ],
)
def test_a_missing_library_is_named_with_its_remedy(client, tmp_path, monkeypatch, form, module, missing):
    for name in [
        name
        for name in sys.modules
        if name.startswith(f"hpo_pilot.report.{form}") or name == f"hpo_pilot.report.{module}"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delattr(f"hpo_pilot.report.{module}", raising=False)
    with pytest.raises(InputError, match=rf"{missing}.*pip install 'hpo-pilot\[(service,)?{form}\]'"):
        export_file(client, "digits", form, tmp_path / "x.db")
    assert not list(tmp_path.iterdir())


def test_from_the_command_line(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from hpo_pilot.cli.main import app
    from tests.rest_api import add_results, store_of, write_search

    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    work = ["--workdir", str(tmp_path / "work")]
    (tmp_path / "work").mkdir()
    store_of(tmp_path / "work").close()
    made = runner.invoke(app, ["submit", str(write_search(tmp_path, "digits")), *work], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    add_results(tmp_path / "work", "digits")
    done = runner.invoke(
        app, ["export", "digits", "--format", "parquet", "-o", "t.parquet", *work], catch_exceptions=False
    )
    assert done.exit_code == 0 and "wrote 3 trials to t.parquet" in done.output
    assert list(pd.read_parquet("t.parquet")["state"]) == ["failed", "finished", "finished"]


def test_csv_has_no_cell_that_a_spreadsheet_would_run():
    trial = replace(finished(1), error="=1+1", told=1)
    header, row = csv.reader(io.StringIO(as_csv(search_of(), [trial])))
    cells = dict(zip(header, row, strict=True))
    assert (cells["error"], cells["point.value"], cells["value"]) == ("'=1+1", "3", "1.5")
    assert not {"told", "retries", "confirms", "stopped_step"} & cells.keys()
