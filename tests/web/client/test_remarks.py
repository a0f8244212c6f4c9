"""What is said of a search beside its results, and what its budget counts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hpo_pilot.cli.main import app
from hpo_pilot.cli.progress import RunProgress
from hpo_pilot.jobs import JobState, Member
from hpo_pilot.search import Trial
from hpo_pilot.store import NewTask, SearchState
from hpo_pilot.web.local_client import LocalClient
from tests.made import made_attempt
from tests.rest_api import add_results, steered, store_of, write_search

NOTHING = "no trial reported a number 'loss' in progress.jsonl: nothing could be stopped early"


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.delenv("HPO_PILOT_STORE", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    with LocalClient(tmp_path / "work") as opened:
        yield opened


def report_values(workdir, name, *values):
    store = store_of(workdir)
    record = store.search(name)
    steps = tuple(enumerate(values, start=1))
    store.record(record.id, [made_attempt(1, 2, 0, 1, JobState.RUNNING, progress=steps)], [])
    store.close()


@pytest.fixture
def service(client, tmp_path):
    store_of(tmp_path / "work").close()
    with steered(tmp_path / "work"):
        yield


def test_early_stopping_without_a_value_to_go_by_is_said(client, tmp_path, service):
    (tmp_path / "old.csv").write_text("value,x\n0.5,0.25\n0.125,0.75\n")
    more = {"early_stopping": "asha", "warm_start": "old.csv"}
    client.submit(write_search(tmp_path, "s", **more))
    [earlier] = client.status("s")["remarks"]  # nothing has finished: nobody can tell yet
    assert earlier.startswith("starts from 2 results of old.csv (it does not name its figures of merit or their")
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


def test_why_tasks_wait_is_said_everywhere(client, tmp_path):
    client.submit(write_search(tmp_path, "s"))
    store = store_of(tmp_path / "work")
    record = store.search("s")
    store.set_state(record.id, SearchState.RUNNING, "service")
    for number in (1, 2):
        trial = Trial(number, 1, {"x": 0.5 * number}, seed=7)
        task = NewTask(f"user.me.s.{record.uid}.g{number}/", number, 0, ((Member(number, 0, 7),),))
        open_task = store.add_generation(record.id, history=0, pending=[], trials=[trial], task=task)
        store.task_submitted(open_task.id, 40 + number)
        store.task_waits(open_task.id, "user sandbox file unavailable")
    store.close()
    [remark] = [found for found in client.status("s")["remarks"] if "user sandbox file unavailable" in found]
    assert "41" in remark and "42" in remark
    assert client.progress("s")["remarks"] == [remark]
    shown = CliRunner().invoke(app, ["status", "s", "--workdir", str(tmp_path / "work")]).output
    assert "user sandbox file unavailable" in shown
    console = Console(file=io.StringIO(), width=200)
    progress = RunProgress(console, client)
    for _ in range(3):
        progress(client.progress("s"))
    assert console.file.getvalue().count("user sandbox file unavailable") == 1
    client.stop("s")
    store = store_of(tmp_path / "work")
    store.set_state(record.id, SearchState.STOPPED, "service")
    store.close()
    assert remark not in client.status("s")["remarks"]
