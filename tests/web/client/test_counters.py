"""The counters of a search agree wherever they are shown."""

from __future__ import annotations

import re
import time

import pytest

from hpo_pilot.advice import Place
from hpo_pilot.jobs import Member
from hpo_pilot.search import EarlyStop, Trial, TrialState
from hpo_pilot.search.trials import TrialCounts, trial_counts_of
from hpo_pilot.steering.results import result_of
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import NewTask, SearchState
from hpo_pilot.web.live import SearchFragments
from hpo_pilot.web.local_client import LocalClient, extent_in, run_document
from hpo_pilot.web.notebook import progress_line
from hpo_pilot.web.search_views import SearchCache
from tests.command_here import command_here
from tests.made import made_end
from tests.rest_api import set_state, steered, store_of, write_search

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


@pytest.fixture
def work(tmp_path, monkeypatch):
    for name in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    work.mkdir()
    store = store_of(work)
    with LocalClient(work) as client:
        client.submit(write_search(tmp_path, "demo", confirm={"top": 1, "repeats": 3}, budget={"trials": 12}, folds=1))
    record = store.search("demo")
    store.set_state(record.id, SearchState.RUNNING, "service")
    trials = [
        Trial(n, 1, {"x": n / 1000, "kind": "a"}, seed=n, confirms=confirms)
        for n, (_, _, confirms) in enumerate(ENDS, 1)
    ]
    jobs = tuple((Member(trial.number, 0, trial.seed),) for trial in trials)
    task = NewTask(f"user.me.demo.{record.uid}.g1/", 1, 0, jobs)
    made = store.add_generation(record.id, history=0, pending=[], trials=trials, task=task)
    now = time.time()
    ends = [
        made_end(
            n,
            TrialState(state),
            0.5 if state == "finished" else None,
            error="no" * (state == "failed"),
            told=told,
            ended=now,
        )
        for n, (state, told, _) in enumerate(ENDS, 1)
        if state is not None
    ]
    store.record(record.id, [], [], look=1, stops={3: EarlyStop(1, "hopeless", 3, 0.9)})
    store.record(record.id, [], ends, ended_tasks=[made.id])
    yield work
    store.close()


@pytest.mark.parametrize("state", [SearchState.RUNNING, SearchState.STOPPED])
def test_they_agree_everywhere(work, state):
    set_state(work, "demo", state)
    over, failed = 7, 3
    planned = over if state.is_over else 15
    where = ("--workdir", str(work))
    with LocalClient(work) as client, steered(work):
        store = client._opened()
        record, trials = store.search("demo"), store.trials(1)
        extents = {extent_in(store, record), trial_counts_of(record.search, trials, is_over=state.is_over)}
        assert extents == {TrialCounts(over, planned, failed, 2)}
        ran = run_document(result_of(store, WorkDir.at(work), record))
        for document in (client.status("demo"), client.searches()[0], ran):
            assert (document["over"], document["planned"], document["trials"]["failed"]) == (over, planned, failed)
        progress = client.progress("demo")
        assert (progress["over"], progress["total"], progress["trials"]["failed"]) == (over, planned, failed)
        assert f"{over} of {planned} trials, {failed} failed" in progress_line(progress)
        assert f"{over}/{planned}" in command_here("list", *where).stdout
        assert f"{over} of {planned} over" in command_here("status", "demo", *where).stdout
        report = re.sub(r"<[^>]+>", " ", client.report("demo").partition("<main")[0])
        assert re.search(rf"trials over\s+{over} of {planned}\s+failed\s+{failed}\s", report)
        html = SearchFragments(SearchCache(store), None, Place()).look("demo").content.html
        page = {name: " ".join(re.sub(r"<[^>]+>", " ", text).split()) for name, text in html.items()}
        assert f"{over} of {planned} trials" in page["f-progress"]
        assert f"{failed} of {over} trials failed" in page["f-trouble"]
        assert page["f-failed"] == str(failed)
