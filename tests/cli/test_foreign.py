"""`hpo-pilot import`: files of other tools, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpo_pilot.steering.search_file import load_search
from tests.cli.conftest import command, refused

SPACE = {
    "x": {"method": "uniformint", "dimension": {"low": 0, "high": 4}},
    "y": {"method": "uniform", "dimension": {"low": 0, "high": 1}},
}
TASK = {"evaluationExec": "python t.py", "searchSpaceFile": "space.json", "maxPoints": 6, "alrbArgs": "--nocvmfs"}


@pytest.fixture(autouse=True)
def code(folder: Path) -> None:
    (folder / "code").mkdir()
    (folder / "code" / "space.json").write_text(json.dumps(SPACE))
    (folder / "code" / "task.json").write_text(json.dumps(TASK))


def test_import_writes_a_search_file_beside_its_payload(folder: Path) -> None:
    result = command("import", "phpo", "code/task.json", "-o", "search.yaml")
    assert "not carried over: code/task.json:1:" in result.stderr
    assert "alrbArgs" in result.stderr
    search = load_search(folder / "search.yaml")  # its folder is looked at too
    assert search.payload.files == "code"
    assert search.budget.trials == 6
    command("validate", "search.yaml")


def test_import_prints_without_an_output() -> None:
    result = command("import", "phpo", "code/task.json", "--name", "mine")
    assert result.stdout.startswith("# Made by `hpo-pilot import phpo`")
    assert "search: mine" in result.stdout
    document = json.loads(command("import", "phpo", "code/task.json", "--json").stdout)
    assert document["search"]["budget"]["trials"] == 6
    assert document["warnings"][0]["path"] == "alrbArgs"


def test_import_of_a_command_line(folder: Path) -> None:
    words = ["--", "phpo", "--maxPoints", "9", "--evaluationExec", "run it", "--searchSpaceFile", "code/space.json"]
    command("import", "phpo", "-o", "search.yaml", *words)
    search = load_search(folder / "search.yaml")
    assert (search.budget.trials, search.payload.command) == (9, "run it")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["phpo", "code/nowhere.json"], "cannot be read"),
        (["phpo"], "no task is given"),
        (["hpogrid"], "no file is given"),
        (["hpogrid", "code/task.json"], "code/task.json:1:1: project_name: is missing"),
        (["optuna", "code/task.json"], "no importer for 'optuna'"),
        (["phpo", "code/task.json", "-o", "code/task.json"], "would be lost"),
    ],
)
def test_a_wrong_import_is_status_2(folder: Path, words: list[str], expected: str) -> None:
    said = refused("import", *words)
    assert expected in said and "Traceback" not in said
    assert json.loads((folder / "code" / "task.json").read_text()) == TASK


def test_an_unknown_form_is_told_with_every_one_that_there_is() -> None:
    assert "csv, json, hpogrid-report, mlflow" in refused("export", "any", "--format", "xml")
