"""What ``--json`` prints is what `schemas/cli` says, for every command that has it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.main import get_command

from hpo_pilot.cli.main import app
from hpo_pilot.cli.output import JSON_VERSION
from hpo_pilot.store import SearchState
from schemas.write import _PRINTED, schema_of, stale_schemas
from tests.cli.conftest import command
from tests.rest_api import add_results, set_state, steered, write_search

SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"


pytestmark = pytest.mark.usefixtures("work")


def printed(file, *words, status=0):
    """The document that a command prints; checked against the schema of `file`."""
    document = json.loads(command(*words, "--json", status=status).stdout)
    schema = schema_of(f"cli/{file}")
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
    if isinstance(document, dict):
        assert document["version"] == JSON_VERSION
        assert set(document) <= {*schema["properties"], "batch", "node"} or file == "site.json"
    return document


def test_the_files_are_what_the_types_say():
    assert stale_schemas(SCHEMAS.parent) == []
    assert {path.name for path in SCHEMAS.iterdir()} == set(_PRINTED)
    for path in SCHEMAS.iterdir():
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"urn:hpo-pilot:schema:cli-{path.stem}:{JSON_VERSION}"
        assert "none goes or changes its meaning" in schema["description"]


def test_searches(folder, work):
    (folder / "wrong.yaml").write_text("search: 7\n")
    file = str(write_search(folder, "one", folds=1))
    assert printed("validate.json", "validate", file)["valid"]
    assert not printed("validate.json", "validate", "wrong.yaml", status=2)["valid"]
    assert printed("submit.json", "submit", file)["name"] == "one"
    assert [one["name"] for one in printed("list.json", "list")] == ["one"]
    assert printed("status.json", "status", "one")["eta"] is None
    printed("submit.json", "submit", str(write_search(folder, "two")))
    add_results(work, "two", log="Traceback\x1b[31m")
    status = printed("status.json", "status", "two")
    assert status["last_failure"]["trial"] == 1
    assert status["eta"] is None, "nothing steers it"
    assert status["steered"] is False
    with steered(work):
        status = printed("status.json", "status", "two")
    assert status["eta"]["seconds"] >= 0
    assert status["steered"] is True
    assert len(printed("trials.json", "trials", "two")) == 3
    assert printed("trial.json", "best", "two")["number"] == 2
    assert printed("log.json", "log", "two")[0]["what"] == "submitted"


def test_a_run_and_its_files(folder, work, monkeypatch):
    file = write_search(folder, "one")
    printed("submit.json", "submit", str(file))
    add_results(work, "one")
    set_state(work, "one", SearchState.DONE)
    assert Path(printed("run.json", "run", str(file))["report"]).is_file()
    monkeypatch.setattr("hpo_pilot.operations.client.SearchClient.fetch", lambda *_: [Path("trial2/model.npz")])
    assert printed("fetch.json", "fetch", "best", "one")["files"] == ["trial2/model.npz"]


def test_a_run_of_a_family_is_status_1_where_one_segment_has_no_result(folder, work):
    file = str(write_search(folder, "family", segments=["s1", "s2"]))
    printed("submit.json", "submit", file)
    add_results(work, "family-s2")
    set_state(work, "family-s1", SearchState.FAILED, "nothing worked")
    set_state(work, "family-s2", SearchState.DONE)
    states = [one["state"] for one in printed("run.json", "run", file, status=1)["segments"]]
    assert states == ["failed", "done"]
    assert printed("status.json", "status", "family")["state"] == "failed"


def test_families_and_several_objectives(folder):
    file = write_search(folder, "family", segments=["s1", "s2"])
    assert len(printed("submit.json", "submit", str(file))["segments"]) == 2
    assert len(printed("status.json", "status", "family")["segments"]) == 2
    objective = [{"metric": "loss"}, {"metric": "time"}]
    printed("submit.json", "submit", str(write_search(folder, "front", objective=objective)))
    assert printed("status.json", "status", "front")["front"] is None
    printed("list.json", "list")


def test_changes(folder, work):
    printed("submit.json", "submit", str(write_search(folder, "one")))
    add_results(work, "one")
    assert printed("note.json", "note", "one", "why", "--tags", "a")["tags"] == ["a"]
    assert printed("search.json", "retry", "one")["added"] == 1
    assert printed("search.json", "try", "one", "x=0.5", "kind=b")["added"] == 1
    assert printed("search.json", "extend", "one", "--parallel", "3", "--trials", "+2")["budget"]["parallel"] == 3
    assert printed("search.json", "pause", "one")["state"] == "paused"
    assert printed("search.json", "resume", "one")["state"] == "running"
    assert len(printed("status.json", "status", "one")["wishes"]) == 2
    with steered(work):
        assert printed("search.json", "stop", "one")["state"] == "stopping"


def test_machines_and_sites(folder, monkeypatch):
    findings = [{"what": "store", "ok": True, "detail": "fine", "needed": True}]
    monkeypatch.setattr("hpo_pilot.operations.client.SearchClient.doctor", lambda *_: findings)
    printed("doctor.json", "doctor")
    assert "local" in [site["name"] for site in printed("sites.json", "sites")]
    assert printed("site.json", "sites", "show", "summit")["name"] == "summit"
    assert printed("pilots-list.json", "pilots", "list") == []
    plan = printed("plan.json", "plan", str(write_search(folder, "one")), "--site", "summit")
    assert plan["site"] == "summit"
    assert printed("plan.json", "plan", str(write_search(folder, "one")), "--site", "local")["script"] is None


def test_databases(folder, work):
    printed("submit.json", "submit", str(write_search(folder, "one")))
    assert printed("db-check.json", "db", "check") == []
    with closing(sqlite3.connect(work / "hpo-pilot.db")) as store, store:
        store.execute("UPDATE progress SET finished = 9")
    assert printed("db-check.json", "db", "check", status=1)[0]["invariant"] == "progress"
    assert printed("db-check.json", "db", "check", "--repair") == []


def test_tokens():
    command("token", "create", "--name", "alice", "-o", "alice.token")
    assert Path("alice.token").read_text().count(".") == 2, "a JSON web token"
    assert printed("token-list.json", "token", "list")[-1]["name"] == "alice"


def test_imports():
    Path("task.json").write_text(
        json.dumps({"maxPoints": 4, "searchSpaceFile": "space.json", "evaluationExec": "python x.py"})
    )
    Path("space.json").write_text(json.dumps({"x": {"method": "uniform", "dimension": {"low": 0, "high": 1}}}))
    assert printed("import.json", "import", "phpo", "task.json")["search"]["space"]


def test_every_command_with_json_has_a_schema():
    """And no schema is of none: whoever adds a command adds its schema and a test above."""

    def with_json(command, path):
        commands = {name: command.get_command(None, name) for name in getattr(command, "commands", ())}
        found = {" ".join(path)} if any("--json" in option.opts for option in command.params) else set()
        return found.union(*(with_json(sub, [*path, name]) for name, sub in commands.items()))

    titles = [title.split(":")[0] for title in (schema_of(f"cli/{file}")["title"] for file in _PRINTED)]
    named = {
        word.strip()
        for title in titles
        for part in title.split(";")
        for word in part.partition("hpo-pilot ")[2].split(",")
    }
    assert with_json(get_command(app), []) == {word for word in named if "with" not in word.split()} | {"best"}
