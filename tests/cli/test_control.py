"""Commands that change searches: what they take, and what they say to do next."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import pytest

from hpo_pilot.cli.searches import point_of
from hpo_pilot.errors import InputError
from hpo_pilot.search.trials import TrialState
from hpo_pilot.store import SearchState
from tests.cli.conftest import command, printed, refused
from tests.command_here import command_here
from tests.rest_api import add_results, set_state, steered, store_of, write_search

RUNS = "`hpo-pilot status demo --watch` shows its progress"


@pytest.fixture
def demo(folder, work, client):
    """The work folder of a steered search, whose first trial has failed."""
    client.submit(write_search(folder, "demo"))
    add_results(work, "demo")
    with steered(work):
        yield work


def test_logs(demo):
    assert printed("logs", "demo", "1") == "--- fold 0 --- Traceback --- fold 1 --- Traceback"
    assert printed("logs", "demo", "1", "--fold", "1") == "--- fold 1 --- Traceback"
    assert "trial 2 (finished)" in refused("logs", "demo", "2")
    with closing(store_of(demo)) as store:
        record = store.search("demo")
        attempt = store.trials(record.id)[2].folds[0].attempts[0]
        store.record(record.id, [replace(attempt, log_tail="epoch 1")], [])
    assert printed("logs", "demo", "3") == "--- fold 0 --- epoch 1"
    assert "epoch 1" not in printed("trials", "demo", "--log")  # only failures are explained there
    assert "has no trial 99" in refused("logs", "demo", "99")
    assert "no log of fold 7" in refused("logs", "demo", "1", "--fold", "7")


def test_trials_that_failed_alike_are_explained_once(demo):
    def fail(*reasons):
        with closing(store_of(demo)) as store:
            record = store.search("demo")
            found = zip(store.trials(record.id), reasons, strict=True)
            store.record(record.id, [], [replace(each, state=TrialState.FAILED, error=said) for each, said in found])

    fail("a", "b", "a")
    said = printed("trials", "demo")
    assert "trials 1, 3 failed: a" in said and "trial 2 failed: b" in said and said.count("failed: a") == 1
    assert printed("trials", "demo", "--log").count("failed: a") == 2
    fail("a after 2 s", "a after 2.5 s", "a after 3 s")  # as in the report
    assert "trials 1-3 failed: a after 2 s" in printed("trials", "demo")


def test_new_payload_files_bring_no_other_change(demo):
    assert "of the search file only the budget may change" in printed("resume", "demo", "--new-payload")


def test_retry(demo):
    assert printed("retry", "demo") == (
        f"search 'demo' tries 1 failed trial again, ahead of others: its budget grew to 5 trials; {RUNS}"
    )
    assert "its point waits" in refused("retry", "demo", "--trial", "1")
    assert "asked for failed trial 1 again: budget trials 4 -> 5" in printed("log", "demo")


def test_try(demo):
    assert printed("try", "demo", "x=5e-1", "kind=a") == (
        f"search 'demo' tries the point next: its budget grew to 5 trials; {RUNS}"
    )
    set_state(demo, "demo", SearchState.PAUSED)
    assert printed("try", "demo", "x=0.25", "kind=a").endswith("it is paused: `hpo-pilot resume demo` continues it")
    assert "requested 2 points will run next" in printed("status", "demo")


def test_parallel(demo):
    assert printed("extend", "demo", "--parallel", "9") == f"search 'demo' now has 9 trials at once; {RUNS}"
    assert printed("extend", "demo", "--parallel", "2", "--trials", "+1") == (
        f"search 'demo' now has a budget of 5 trials and now has 2 trials at once; {RUNS}"
    )
    assert "a budget of 5 trials, 7 hours;" in printed("extend", "demo", "--hours", "+2")
    assert "no amount is given" in refused("extend", "demo")


def test_a_new_highest_level(folder, work, client):
    client.submit(write_search(folder, "levels", folds=1, fidelity={"epochs": {"low": 1, "high": 9}}))
    assert "a budget of 4 trials, levels up to 27;" in printed("extend", "levels", "--high", "27")
    assert client.status("levels")["definition"]["fidelity"]["epochs"]["high"] == 27
    assert "can only go higher" in refused("extend", "levels", "--high", "27")


def test_notes_and_tags_are_written_and_found(demo, folder, client):
    client.submit(write_search(folder, "other"))
    assert printed("note", "demo") == "tags: none note: none"
    assert printed("note", "demo", "the baseline", "--tags", "paper, good") == "tags: paper, good note: the baseline"
    assert printed("note", "demo", "--tags", "paper") == "tags: paper note: the baseline"
    assert printed("note", "demo", "odd", "--trial", "1") == "tags: none note: odd"
    assert "has no trial 99" in refused("note", "demo", "odd", "--trial", "99")
    assert "without commas" in refused("note", "demo", "--tags", "x" * 41)
    for filters in (("--tag", "PAPER"), ("--text", "BASE"), ("--text", "dem"), ("--text", "pap")):
        shown = printed("list", *filters)
        assert "demo" in shown
        assert "other" not in shown, filters
    assert "tags paper note the baseline" in printed("status", "demo")
    assert "trial 1: note: odd" in printed("log", "demo")
    (first, *rest) = client.trials("demo")
    assert first["note"] == "odd"
    assert not any("note" in trial for trial in rest)


def test_no_line_for_a_program_ends_with_blanks(demo):
    for words in (("status", "demo"), ("log", "demo"), ("list",), ("trials", "demo")):
        lines = command(*words).stdout.splitlines()
        assert len(lines) > 1
        assert lines == [line.rstrip() for line in lines]


def test_list_filters_and_pages(folder, work, client, monkeypatch):
    monkeypatch.setattr("hpo_pilot.cli.inspection._PAGE", 2)
    for name in ("one", "two", "three"):
        client.submit(write_search(folder, name))
    set_state(work, "two", SearchState.DONE)
    assert "older searches, if there are any: --page 2" in printed("list")
    assert " one " not in printed("list")
    assert " one " in printed("list", "--page", "2")
    assert "there is no page 3" in printed("list", "--page", "3")
    names = [search["name"] for search in json.loads(printed("list", "--json"))]
    assert names == ["one", "two", "three"]
    assert [search["name"] for search in json.loads(printed("list", "--json", "--page", "1"))] == ["two", "three"]
    assert [search["name"] for search in json.loads(printed("list", "--json", "--state", "over"))] == ["two"]
    assert json.loads(printed("list", "--json", "--owner", "nobody")) == []
    assert printed("list", "--owner", "nobody") == "no search matches"
    assert "active, over, submitted" in refused("list", "--state", "runing")


def test_words_of_a_point():
    words = ["lr=1e-3", "layers=2", "on=true", "name=adam", 'text="1"', "none=null", "sign=-0.5", "eq=a=b"]
    numbers = {"lr": 0.001, "layers": 2, "sign": -0.5}
    assert point_of(words) == {**numbers, "on": True, "name": "adam", "text": "1", "none": None, "eq": "a=b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr"], "expected name=value"),
        (["=1"], "expected name=value"),
        (["lr="], "expected name=value"),
        (["lr=1", "lr=2"], "lr is given twice"),
        (["lr=[1, 2]"], "one value, not a list"),
        (["lr={a: 1}"], "one value, not a mapping"),
        (["lr='1"], "lr='1"),
    ],
)
def test_wrong_words_of_a_point(words, message):
    with pytest.raises(InputError, match=message):
        point_of(words)


def test_a_number_beyond_all_maxima_is_refused_in_words(demo, client):
    for words in (
        *(f"extend demo {option} +{{}}" for option in ("--trials", "--hours", "--failures")),
        "extend demo --parallel {}",
        "retry demo --trial {}",
        "try demo x={}",
        "logs demo {}",
        "note demo --trial {}",
        "logs demo 1 --fold {}",
        "serve --slots {}",
        "status {}",
    ):
        for number in (10**23, 2**63, 10**400):
            result = command_here(*words.format(number).split())
            assert (result.returncode, "Traceback" in result.stderr) == (2, False), (words, number, result.stderr)
    assert client.status("demo")["budget"]["trials"] == 4
