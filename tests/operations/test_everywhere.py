"""Counters, remarks and the lack of a steering process are the same in every place that shows a search."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from hpo_pilot.advice import Place
from hpo_pilot.cli.progress import RunProgress
from hpo_pilot.errors import InputError
from hpo_pilot.jobs import JobState
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.documents import run_document
from hpo_pilot.operations.notebook import OpenedSearch, progress_line
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.steering.results import result_of
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchState, SteeringStore
from hpo_pilot.store.lease import held_lease
from hpo_pilot.web.live import SearchFragments, searches_topic
from hpo_pilot.web.search_views import SearchCache
from tests.command_here import command_here
from tests.made import made_attempt, made_end
from tests.rest_api import add_results, add_trials, set_state, steered, store_of, write_search


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    for name in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE", "PANDA_URL_SSL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "the work"
    work.mkdir()
    store_of(work).close()
    return work


@pytest.fixture
def client(work) -> Iterator[SearchClient]:
    with SearchClient.local(work) as opened:
        yield opened


@pytest.fixture
def store(work) -> Iterator[SteeringStore]:
    with closing(store_of(work)) as opened:
        yield opened


@pytest.fixture
def demo(client, work, tmp_path) -> str:
    """A search with results."""
    client.submit(write_search(tmp_path, "demo"))
    add_results(work, "demo")
    return "demo"


def places(client: SearchClient, work: Path, name: str) -> dict[str, str]:
    """What each place shows of a search, by place."""
    place = Place(workdir=work)
    pieces = SearchFragments(SearchCache(client.here.store), place, WorkDir(work))
    return {
        "status": command_here("status", name, "--workdir", str(work)).stdout,
        "list": command_here("list", "--workdir", str(work)).stdout,
        "page": " ".join(pieces.look(name).content.html.values()),
        "row": " ".join(pieces.look(searches_topic("1")).content.html.values()),
        "notebook": repr(OpenedSearch(client, name, place)),
        "progress": progress_line(client.here.progress(name)),
    }


# --- counters ---

#: What becomes of the trials: (state, place in the order of results, the trial that it confirms); None: still out.
ENDS = [
    ("finished", 1, None),
    ("failed", 2, None),
    ("stopped", 3, None),  # early
    ("finished", 4, None),
    ("failed", 5, None),
    ("stopped", None, None),  # together with the search
    ("finished", None, 1),
    ("failed", None, 1),
    ("stopped", None, 1),  # a confirmation run, together with the search
    (None, None, None),
]


@pytest.mark.parametrize("state", [SearchState.RUNNING, SearchState.STOPPED, SearchState.DONE])
def test_counters_agree_everywhere(client, store, work, tmp_path, state):
    client.submit(write_search(tmp_path, "demo", confirm={"top": 1, "repeats": 3}, budget={"trials": 12}, folds=1))
    number = store.search("demo").id
    trials = [
        Trial(n, 1, {"x": n / 1000, "kind": "a"}, seed=n, confirms=confirms)
        for n, (_, _, confirms) in enumerate(ENDS, 1)
    ]
    task = add_trials(store, "demo", trials)
    ends = [
        made_end(
            n, TrialState(end), 0.5 if end == "finished" else None, told, time.time(), error="no" * (end == "failed")
        )
        for n, (end, told, _) in enumerate(ENDS, 1)
        if end is not None
    ]
    store.record(number, [], [], look=1, stops={3: EarlyStop(1, "hopeless", 3, 0.9)})
    store.record(number, [], ends, ended_tasks=[task])
    store.set_state(number, state, "service")
    over, failed = 7, 3
    planned = over if state is SearchState.DONE else 15
    with steered(work):
        record = store.search("demo")
        ran = run_document(result_of(store, WorkDir.at(work), record))
        for document in (client.status("demo"), client.searches()[0], ran):
            assert (document["over"], document["planned"], document["trials"]["failed"]) == (over, planned, failed)
        progress = client.here.progress("demo")
        assert (progress["over"], progress["total"], progress["trials"]["failed"]) == (over, planned, failed)
        found = {**places(client, work, "demo"), "report": client.report("demo").partition("<main")[0]}
        shown = {place: " ".join(re.sub(r"<[^>]+>", " ", text).split()) for place, text in found.items()}
    for place, words in {
        "progress": f"{over} of {planned} trials, {failed} failed",
        "list": f"{over}/{planned}",
        "status": f"{over} of {planned} over",
        "report": f"trials over {over} of {planned} failed {failed} ",
        "page": f"{failed} of {over} trials failed",
    }.items():
        assert words in shown[place], place
    assert f"{over} of {planned} trials" in shown["page"]


# --- a search that nothing steers ---


@pytest.mark.parametrize("state", [SearchState.RUNNING, SearchState.STOPPING, SearchState.SUBMITTED])
def test_every_place_says_that_nothing_steers_it_and_none_when_it_ends(client, work, demo, tmp_path, state):
    set_state(work, demo, state)
    for place, text in places(client, work, demo).items():
        assert "steer" in text, place
        if place not in ("row", "progress"):
            assert f"hpo-pilot run &#39;{tmp_path}" in text or f"`hpo-pilot run {tmp_path}/demo.yaml" in text, place
            assert f"--workdir &#39;{work}&#39;`" in text or f"--workdir '{work}'`" in text, place
        assert "left  " not in text, place
        assert "condition good" not in text, place
    with steered(work):
        for place, text in places(client, work, demo).items():
            assert "steer" not in text.replace("stopping", ""), place


def test_a_process_that_steers_others_does_not_steer_it(client, store, work, demo, tmp_path):
    other = client.submit(write_search(tmp_path, "other"))
    with held_lease(store.engine, "run", "embedded") as lease:
        lease.take_all([other["id"]])
        assert client.status("other")["steered"] is True
        status = client.status(demo)
        assert status["steered"] is False
        assert "`hpo-pilot run`, which has this store, steers other searches only" in status["remarks"][0]
    client.submit(write_search(tmp_path, "far"), server="https://panda.example.org:25443")
    with steered(work, "embedded"):
        assert client.status("far")["steered"] is False
        assert "serve --server https://panda.example.org:25443" in client.how_to_steer("far")


def test_a_family_is_steered_where_all_of_it_is(client, work, tmp_path):
    client.submit(write_search(tmp_path, "family", segments=["one", "two"]))
    assert client.status("family")["steered"] is False
    assert client.here.progress("family")["steered"] is False
    with steered(work):
        assert client.status("family")["steered"] is True


def test_stop_ends_a_search_without_jobs_at_once(client, work, demo):
    assert client.stop(demo)["state"] == "stopped"
    with pytest.raises(InputError, match="stopped already"):
        client.stop(demo)
    client.resume(demo)
    with steered(work):
        assert client.stop(demo)["state"] == "stopping", "what steers it ends it"
        with pytest.raises(InputError, match="stopping already"):
            client.stop(demo)


# --- remarks ---


def test_early_stopping_without_a_value_to_go_by_is_said(client, store, work, tmp_path):
    nothing = "no trial reported a number 'loss' in progress.jsonl: nothing could be stopped early"
    (tmp_path / "old.csv").write_text("value,x\n0.5,0.25\n0.125,0.75\n")

    def report(*values: float) -> None:
        steps = tuple(enumerate(values, start=1))
        store.record(store.search("s").id, [made_attempt(1, 2, 0, 1, JobState.RUNNING, progress=steps)], [])

    with steered(work):
        client.submit(write_search(tmp_path, "s", early_stopping="asha", warm_start="old.csv"))
        [earlier] = client.status("s")["remarks"]  # nothing has finished: nobody can tell yet
        assert earlier.startswith("starts from 2 results of old.csv (it does not name its figures of merit or their")
        add_results(work, "s")
        assert client.status("s")["remarks"] == [earlier, nothing]
        text = client.report("s")
        assert f"<p>N{nothing[1:]}.</p>".replace("'", "&#39;") in text
        assert "2 results of old.csv" in text
        assert nothing in places(client, work, "s")["status"]
        report(float("inf"))
        assert nothing in client.status("s")["remarks"]
        report(float("inf"), 0.5)
        assert client.status("s")["remarks"] == [earlier]


def test_why_tasks_wait_is_said_everywhere_until_the_search_is_over(client, store, work, tmp_path):
    why = "user sandbox file unavailable"
    client.submit(write_search(tmp_path, "s"))
    number = store.search("s").id
    store.set_state(number, SearchState.RUNNING, "service")
    for n in (1, 2):
        task = add_trials(store, "s", [Trial(n, n, {"x": 0.5 * n}, seed=7)], generation=n)
        store.task_submitted(task, 40 + n)
        store.task_waits(task, why)
    [remark] = [found for found in client.status("s")["remarks"] if why in found]
    assert "41" in remark and "42" in remark
    assert client.here.progress("s")["remarks"] == [remark]
    assert why in places(client, work, "s")["status"]
    console = Console(file=io.StringIO(), width=200)
    progress = RunProgress(console, client)
    for _ in range(3):
        progress(client.here.progress("s"))
    assert console.file.getvalue().count(why) == 1
    store.set_state(number, SearchState.STOPPED, "service")
    assert remark not in client.status("s")["remarks"]
