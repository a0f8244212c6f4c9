"""What `run` prints while it runs: how far it is, each new reason of failures at once, and that nothing steers it."""

from __future__ import annotations

import io
from contextlib import closing

import pytest
from rich.console import Console

from hpo_pilot.cli.progress import RunProgress
from hpo_pilot.search import Trial, TrialState
from tests.made import made_end
from tests.rest_api import add_trials, steered, store_of, write_search


@pytest.fixture(autouse=True)
def demo(folder, client):
    client.submit(write_search(folder, "demo", budget={"trials": 300, "parallel": 300}, folds=1))


@pytest.fixture
def store(work):
    with closing(store_of(work)) as opened:
        yield opened


def fail(store, reasons):
    """Ends one more trial for each reason as failed."""
    record = store.search("demo")
    before = len(store.trials(record.id))
    reason_of = dict(enumerate(reasons, start=before + 1))
    generation = record.version * 1000 + before + 1
    trials = [Trial(number, generation, {"x": number / 1000, "kind": "a"}) for number in reason_of]
    task = add_trials(store, "demo", trials, generation=generation)
    ends = [made_end(number, TrialState.FAILED, error=why, told=number) for number, why in reason_of.items()]
    store.record(record.id, [], ends, ended_tasks=[task])


def test_each_reason_is_said_once_and_at_once(client, store, work):
    out = io.StringIO()
    progress = RunProgress(Console(file=out, width=300), client)
    with steered(work):
        progress(client.here.progress("demo"))
        assert "failed" not in out.getvalue()
        fail(store, ["fold 0: exit status 1 after 3 s: no module named torch\x1b[2J", "fold 0: NaN"])
        progress(client.here.progress("demo"))
        progress(client.here.progress("demo"))
        fail(store, ["fold 0: exit status 1 after 7 s: no module named torch\x1b[2J"])
        progress(client.here.progress("demo"))
        lines = [line for line in out.getvalue().splitlines() if "trial " in line]
        assert [line.partition(" failed")[0] for line in lines] == ["demo: trial 1", "demo: trial 2"]
        assert "no module named torch" in lines[0]
        assert "\x1b" not in out.getvalue()
        assert "`hpo-pilot trials demo --log`" in lines[0]


def test_it_stays_short_whatever_fails(client, store):
    fail(store, [f"reason {chr(97 + n % 26)}{chr(97 + n // 26)}: " + "x" * 5000 for n in range(250)])
    failures = client.here.progress("demo")["failures"]
    assert [failure["trial"] for failure in failures] == [1, 2, 3, 4, 5]
    out = io.StringIO()
    RunProgress(Console(file=out, width=300), client)(client.here.progress("demo"))
    assert len(out.getvalue()) < 3000


def test_failures_before_a_resume_are_not_told_again(client, store):
    fail(store, ["old"])
    client.pause("demo")
    client.resume("demo")
    assert client.here.progress("demo")["failures"] == []
    fail(store, ["new"])
    assert [failure["error"] for failure in client.here.progress("demo")["failures"]] == ["new"]


def test_nothing_steers_it_is_said_once(client, work):
    out = io.StringIO()
    progress = RunProgress(Console(file=out, width=300), client)
    for _ in range(3):
        progress(client.here.progress("demo"))
    assert out.getvalue().count("nothing steers it now") == 1
    with steered(work):
        progress(client.here.progress("demo"))
    progress(client.here.progress("demo"))
    assert out.getvalue().count("nothing steers it now") == 2


def test_a_retry_counts_the_trials_of_all_its_points(client, store):
    fail(store, ["one", "two", "three"])
    assert client.retry("demo")["added"] == 3
