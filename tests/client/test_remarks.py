"""What is said of a search beside its results, and what its budget counts."""

from __future__ import annotations

import time

import pytest
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.client.documents import budget_count
from hpo_pilot.client.local_client import LocalClient
from hpo_pilot.jobs import JobState, Member
from hpo_pilot.search import TrialState
from hpo_pilot.store import JobOutcome, NewTask, NewTrial, TrialEnd
from tests.rest_api import add_results, store_of, write_search

NOTHING = "no trial reported a number 'loss' in progress.jsonl: nothing could be stopped early"


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.delenv("HPO_PILOT_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    with LocalClient(tmp_path / "work") as opened:
        yield opened


def report_values(workdir, name, *values):
    store = store_of(workdir)
    record = store.search(name)
    steps = tuple(enumerate(values, start=1))
    store.record(record.id, [JobOutcome(1, 2, 0, 1, JobState.RUNNING, progress=steps)], [])
    store.close()


def test_early_stopping_without_a_value_to_go_by_is_said(client, tmp_path):
    (tmp_path / "old.csv").write_text("value,x\n0.5,0.25\n0.125,0.75\n")
    more = {"early_stopping": "asha", "warm_start": "old.csv"}
    client.submit(write_search(tmp_path, "s", **more))
    [earlier] = client.status("s")["remarks"]  # nothing has finished: nobody can tell yet
    assert earlier.startswith("starts from 2 results of old.csv (nothing says what its values are, or which way is")
    add_results(tmp_path / "work", "s")
    assert client.status("s")["remarks"] == [earlier, NOTHING]
    text = client.report("s")
    assert f"<p>N{NOTHING[1:]}.</p>".replace("'", "&#39;") in text
    assert "2 results of old.csv" in text
    shown = CliRunner().invoke(app, ["status", "s", "--workdir", str(tmp_path / "work")]).output
    assert NOTHING in shown
    report_values(tmp_path / "work", "s", float("inf"))
    assert NOTHING in client.status("s")["remarks"]
    report_values(tmp_path / "work", "s", float("inf"), 0.5)
    assert client.status("s")["remarks"] == [earlier]


def test_confirmation_runs_are_not_of_the_budget(client, tmp_path):
    client.submit(write_search(tmp_path, "s", confirm={"top": 1, "repeats": 2}, budget={"trials": 3}))
    add_results(tmp_path / "work", "s")
    store = store_of(tmp_path / "work")
    record = store.search("s")
    again = [NewTrial(n, {"x": 2 / 10_000, "kind": "a"}, seed=n, confirms=2) for n in (4, 5)]
    task = NewTask("user.me.s.g2/", 2, 0, ((Member(4, 0, 4),), (Member(5, 0, 5),)))
    store.add_generation(record.id, history=3, pending=[], trials=again, task=task)
    store.record(record.id, (), [TrialEnd(4, TrialState.FINISHED, 2.5, None, None, 4, time.time())])
    store.close()
    status = client.status("s")
    assert (budget_count(status), status["confirmations"]) == (3, 1)
    assert client.searches()[0]["confirmations"] == 1
    shown = CliRunner().invoke(app, ["status", "s", "--workdir", str(tmp_path / "work")]).output
    assert "3 of 3 over (1 failed, 3 finished, 1 pending; 1 of them confirms others)" in shown
