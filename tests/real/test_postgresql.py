"""A search whose store is PostgreSQL: run, killed, resumed, read, backed up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.end_to_end.conftest import Scan
from tests.postgresql import BASE, new_database
from tests.real.processes import missing


def database() -> Iterator[str]:
    if BASE is None:
        missing("HPO_PILOT_TEST_POSTGRESQL names no PostgreSQL; `make test-real` starts one where it is installed")
    with new_database() as url:
        yield url


store_url = pytest.fixture(database)
server_url = pytest.fixture(database)


def test_a_search_whose_databases_are_both_in_postgresql(tmp_path, store_url, server_url):
    scan = Scan(tmp_path, {"HPO_PILOT_STORE": store_url, "HPO_PILOT_SERVER_DATABASE": server_url})
    scan.write({"budget": {"trials": 12, "parallel": 2}, "folds": 2, "optimizer": "bayesian"})
    scan("run", str(scan.file))
    assert not list(scan.workdir.glob("*.db"))
    trials = scan.trials()
    assert [trial["number"] for trial in trials] == list(range(1, 13))
    assert all(trial["state"] == "finished" and len(trial["folds"]) == 2 for trial in trials)
    best = scan.json("best", "demo")
    assert best["value"] == min(trial["value"] for trial in trials)
    scan("extend", "demo", "--trials", "+4")
    scan("run", str(scan.file))
    assert len(scan.trials()) == 16

    backup = tmp_path / "scan.tar"
    scan("db", "backup", str(backup))
    scan("note", "demo", "written after the backup")
    assert "after the backup" in scan("log", "demo").stdout
    assert "--replace" in scan("db", "restore", str(backup), status=2).stderr
    scan("db", "restore", str(backup), "--replace")
    assert scan("db", "check").stdout.strip() == "every invariant holds"
    assert "after the backup" not in scan("log", "demo").stdout and len(scan.trials()) == 16
    scan("extend", "demo", "--trials", "+2")
    scan("run", str(scan.file))
    assert len(scan.trials()) == 18 and all(trial["state"] == "finished" for trial in scan.trials())
    assert scan("db", "check").stdout.strip() == "every invariant holds"


def test_a_killed_run_goes_on_in_postgresql(tmp_path, store_url):
    scan = Scan(tmp_path, {"HPO_PILOT_STORE": store_url})
    scan.write({"budget": {"trials": 30, "parallel": 2}})
    running = scan.start("run", str(scan.file))
    assert running.stdout is not None
    for line in running.stdout:
        if "of 30 trials" in line and not line.startswith("demo: 0 "):
            break
    running.kill()
    running.wait()
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [trial["number"] for trial in trials] == list(range(1, 31))
    assert all(trial["state"] == "finished" for trial in trials)
