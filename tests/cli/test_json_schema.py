"""What ``--json`` prints is what `schemas/cli` says, for every command that has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.main import get_command
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.cli.output import JSON_VERSION
from hpo_pilot.cli.schemas import _PRINTED, schema_of, stale_schemas
from hpo_pilot.store import SearchState
from tests.rest_api import add_results, set_state, steered, store_of, write_search

SCHEMAS = Path(__file__).parents[2] / "schemas" / "cli"


@pytest.fixture
def work(tmp_path, monkeypatch):
    for name in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpo-pilot").mkdir()
    store_of(tmp_path / "hpo-pilot").close()
    return tmp_path


def printed(file, *words, status=0):
    """The document that a command prints; checked against the schema of `file`."""
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == status, (result.output, result.exception)
    document = json.loads(result.stdout)
    schema = schema_of(f"cli/{file}")
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
    if isinstance(document, dict):
        assert document["version"] == JSON_VERSION
        assert set(document) <= {*schema["properties"], "batch", "node"} or file == "site.json"
    seen.add(file)
    return document


seen: set[str] = set()


def test_the_files_are_what_the_types_say():
    assert stale_schemas(SCHEMAS.parent) == []
    assert {path.name for path in SCHEMAS.iterdir()} == set(_PRINTED)
    for path in SCHEMAS.iterdir():
        schema = json.loads(path.read_text())
        assert schema["$id"] == f"urn:hpo-pilot:schema:cli-{path.stem}:{JSON_VERSION}"
        assert "none goes or changes its meaning" in schema["description"]


def test_searches(work):
    file = str(write_search(work, "one", folds=1))
    assert printed("validate.json", "validate", file)["valid"]
    assert not printed("validate.json", "validate", str(_wrong(work)), status=2)["valid"]
    assert printed("submit.json", "submit", file)["name"] == "one"
    assert [one["name"] for one in printed("list.json", "list")] == ["one"]
    assert printed("status.json", "status", "one")["eta"] is None
    printed("submit.json", "submit", str(write_search(work, "two")))
    add_results(work / "hpo-pilot", "two", log="Traceback\x1b[31m")
    status = printed("status.json", "status", "two")
    assert status["last_failure"]["trial"] == 1
    assert status["eta"] is None, "nothing steers it"
    assert status["steered"] is False
    with steered(work / "hpo-pilot"):
        status = printed("status.json", "status", "two")
    assert status["eta"]["seconds"] >= 0
    assert status["steered"] is True
    assert len(printed("trials.json", "trials", "two")) == 3
    assert printed("trial.json", "best", "two")["number"] == 2
    assert printed("log.json", "log", "two")[0]["what"] == "submitted"


def test_a_run_and_its_files(work, monkeypatch):
    file = write_search(work, "one")
    printed("submit.json", "submit", str(file))
    add_results(work / "hpo-pilot", "one")
    set_state(work / "hpo-pilot", "one", SearchState.DONE)
    assert Path(printed("run.json", "run", str(file))["report"]).is_file()
    monkeypatch.setattr("hpo_pilot.web.local_client.LocalClient.fetch", lambda *_: [Path("trial2/model.npz")])
    assert printed("fetch.json", "fetch", "best", "one")["files"] == ["trial2/model.npz"]


def test_families_and_several_objectives(work):
    file = write_search(work, "family", segments=["s1", "s2"])
    assert len(printed("submit.json", "submit", str(file))["segments"]) == 2
    assert len(printed("status.json", "status", "family")["segments"]) == 2
    objective = [{"metric": "loss"}, {"metric": "time"}]
    printed("submit.json", "submit", str(write_search(work, "front", objective=objective)))
    assert printed("status.json", "status", "front")["front"] is None
    printed("list.json", "list")


def test_changes(work):
    printed("submit.json", "submit", str(write_search(work, "one")))
    add_results(work / "hpo-pilot", "one")
    assert printed("search.json", "retry", "one")["added"] == 1
    assert printed("search.json", "try", "one", "x=0.5", "kind=b")["added"] == 1
    assert printed("search.json", "extend", "one", "--parallel", "3", "--trials", "+2")["budget"]["parallel"] == 3
    assert printed("search.json", "pause", "one")["state"] == "paused"
    assert printed("search.json", "resume", "one")["state"] == "running"
    assert len(printed("status.json", "status", "one")["wishes"]) == 2
    with steered(work / "hpo-pilot"):
        assert printed("search.json", "stop", "one")["state"] == "stopping"


def test_machines_and_sites(work, monkeypatch):
    monkeypatch.setattr("hpo_pilot.web.local_client.LocalClient.doctor", _findings)
    printed("doctor.json", "doctor")
    assert "local" in [site["name"] for site in printed("sites.json", "sites")]
    assert printed("site.json", "sites", "show", "summit")["name"] == "summit"
    assert printed("pilots-list.json", "pilots", "list") == []
    plan = printed("plan.json", "plan", str(write_search(work, "one")), "--site", "summit")
    assert plan["site"] == "summit"
    assert printed("plan.json", "plan", str(write_search(work, "one")), "--site", "local")["script"] is None


def test_tokens(work):
    made = CliRunner().invoke(app, ["token", "create", "--name", "alice", "-o", "alice.token"])
    assert made.exit_code == 0, made.output
    assert printed("token-list.json", "token", "list")[-1]["name"] == "alice"


def test_imports(work):
    Path("task.json").write_text(
        json.dumps({"maxPoints": 4, "searchSpaceFile": "space.json", "evaluationExec": "python x.py"})
    )
    Path("space.json").write_text(json.dumps({"x": {"method": "uniform", "dimension": {"low": 0, "high": 1}}}))
    assert printed("import.json", "import", "phpo", "task.json")["search"]["space"]


def _wrong(folder):
    path = folder / "wrong.yaml"
    path.write_text("search: 7\n")
    return path


def _findings(*_arguments):
    return [{"what": "store", "ok": True, "detail": "fine", "needed": True}]


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
