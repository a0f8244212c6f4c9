"""What every client of searches shows of them."""

from __future__ import annotations

import json
import threading
import time
from contextlib import closing

import pytest
from sqlalchemy import insert, update

from hpo_pilot.errors import InputError
from hpo_pilot.report.documents import OVER_SEARCHES, OVER_TRIALS
from hpo_pilot.report.formatting import best_text
from hpo_pilot.search import Trial, TrialState
from hpo_pilot.store import SearchState, tables
from tests.made import made_end
from tests.rest_api import add_results, add_trials, set_state, store_of, write_search


def test_the_list_has_every_search(client, shown):
    mine = next(search for search in client.searches() if search["name"] == shown)
    assert mine["trials"] == {"failed": 1, "finished": 2}
    assert mine["objective"] == {"metric": "loss", "goal": "minimize"}
    assert mine["best"]["number"] == 2
    assert "log_tail" not in mine["best"]["folds"][0]


def test_status_is_the_list_s_document_and_more(client, shown):
    status = client.status(shown)
    listed = next(search for search in client.searches() if search["name"] == shown)
    assert {key: status[key] for key in listed} == listed
    assert status["job_seconds"] == 12.0
    assert status["gpu_hours"] == 0.0
    more = {"job_seconds", "gpu_hours", "cost", "gain", "source", "definition", "remarks"}
    more |= {"wishes", "eta", "last_failure", "course", "optimizer_state", "hours_used", "monitor"}
    assert set(status) - set(listed) == more


def test_what_it_cost_and_gained(client, shown):
    status, trials = client.status(shown), list(client.trials(shown))
    hours = {"job_seconds": 12.0, "gpu_hours": 0.0, "core_hours": pytest.approx(12 / 3600)}
    not_known = {"energy_kwh": None, "energy_source": None, "co2_kg": None}  # the local site has no figures
    assert status["cost"] == {**hours, **not_known}
    assert [trial["cost"]["job_seconds"] for trial in trials] == [4.0, 4.0, 4.0]
    gain = {"first": 2.5, "best": 2.5, "gain": 0.0, "per_gpu_hour": None, "per_core_hour": 0.0}
    assert status["gain"] == gain
    assert status["best"]["cost"] == trials[1]["cost"]


def test_trials_have_their_folds_and_logs(client, shown):
    trials = list(client.trials(shown))
    assert [trial["number"] for trial in trials] == [1, 2, 3]
    assert trials[0]["state"] == "failed"
    assert trials[0]["error"] == "fold 0: exit status 1"
    assert trials[0]["folds"][0]["log_tail"] == "Traceback"
    assert trials[1]["point"] == {"x": 0.0002, "kind": "a"}
    assert (trials[1]["value"], trials[1]["std"]) == (2.5, 0.7)
    assert [fold["value"] for fold in trials[1]["folds"]] == [2.0, 3.0]
    assert trials[1]["ended"].endswith("+00:00")
    json.dumps(trials, allow_nan=False)  # a payload's NaN is none of ours
    assert "log_tail" not in next(client.trials(shown, logs=False))["folds"][0]


def test_many_trials_come_whole_and_in_order(place, client, name):
    client.submit(write_search(place.folder, name, budget={"trials": 1300}))
    add_results(place.workdir, name, 1200, log="x" * 60_000)
    assert [trial["number"] for trial in client.trials(name)] == list(range(1, 1201))
    assert [trial["number"] for trial in client.trials(name, after=600, limit=301)] == list(range(601, 902))
    assert [trial["number"] for trial in client.trials(name, after=1199, limit=9)] == [1200]
    chosen = [(trial["number"], len(trial["folds"])) for trial in client.trials(name, where="x < 0.0003 or x >= 0.12")]
    assert chosen == [(1, 2), (2, 2), (1200, 2)]
    with pytest.raises(InputError, match="y"):
        list(client.trials(name, where="y < 1"))
    assert list(client.trials(name, after=1200)) == []
    assert "".join(client.export(name, "csv")).count("\n") == 1201
    assert client.best(name)["number"] == 2


def test_intermediate_values_of_those_trials_that_have_some(place, client, searched):
    assert client.intermediate(searched) == []
    store = store_of(place.workdir)
    try:
        record = store.search(searched)
        with store.engine.begin() as connection:
            rows = [(1, 0, 2, 0.5), (1, 0, 1, 0.7), (1, 1, 1, float("inf")), (3, 0, 1, 1.0), (1003, 0, 7, 2.0)]
            columns = ("trial", "fold", "step", "value")
            values = [{"search_id": record.id, **dict(zip(columns, row, strict=True))} for row in rows]
            connection.execute(insert(tables.intermediate_values), values)
    finally:
        store.close()
    found = client.intermediate(searched)
    assert [one["number"] for one in found] == [1, 3, 1003]
    assert [(fold["fold"], [tuple(pair) for pair in fold["values"]]) for fold in found[0]["folds"]] == [
        (0, [(1, 0.7), (2, 0.5)]),
        (1, [(1, None)]),
    ]


def test_best(place, client, name, searched):
    found = client.best(searched)
    assert found["number"] == 2
    assert found["folds"][0]["panda_id"] == 102
    recommended = client.recommend(searched)
    assert (recommended["number"], recommended["value"], recommended["error"]) == (2, found["value"], None)
    assert "too few" in recommended["reason"]
    client.submit(write_search(place.folder, f"{name}-new"))
    assert client.best(f"{name}-new") is None
    assert client.recommend(f"{name}-new") is None


def test_remarks_on_the_best(place, client, name):
    space = {"x": {"type": "real", "low": 0.0002, "high": 0.5}, "kind": {"type": "categorical", "choices": ["a", "b"]}}
    client.submit(write_search(place.folder, name, space=space))
    add_results(place.workdir, name)
    (bound,) = client.best(name)["remarks"]
    assert bound.startswith("x is at its lower bound")
    with closing(store_of(place.workdir)) as store, store.engine.begin() as connection:
        connection.execute(update(tables.trials).where(tables.trials.c.number == 3).values(value=2.5))
        connection.execute(update(tables.progress).values(version=0))
    assert client.best(name)["remarks"] == ["2 trials have this value", bound]


def test_the_best_of_confirmed_trials(place, client, name):
    client.submit(write_search(place.folder, name, confirm={"top": 1, "repeats": 1}))
    add_results(place.workdir, name)
    assert client.best(name)["number"] == 2


def test_report_and_exports(client, shown):
    report = client.report(shown)
    assert report.lower().startswith("<!doctype html")
    assert shown in report
    rows = "".join(client.export(shown, "csv")).splitlines()
    head = "number,generation,state,value,std,x,kind,seed,fold_0,fold_1,error,submitted,started,ended,confirms,told,"
    assert rows[0] == head + "job_seconds,gpu_hours,core_hours,energy_kwh,co2_kg,panda_ids"
    assert len(rows) == 4
    exported = json.loads("".join(client.export(shown, "json")))
    assert exported["trials"] == list(client.trials(shown))
    assert exported["search"] == client.status(shown)["definition"]
    with pytest.raises(InputError, match="unknown export format 'xml'; the formats are csv, json"):
        client.export(shown, "xml")


@pytest.mark.parametrize("identity", ["nope", "99999999", "²", "..", "a/b", "%2e%2e", "?"])
def test_an_unknown_search_is_your_input(client, shown, identity):
    calls = [client.status, client.trials, client.best, client.report, client.events, client.pause, client.stop]
    for call in calls:
        with pytest.raises(InputError, match=r"no search|neither a name"):
            call(identity)


def test_watching_shows_every_change_and_ends(place, client, searched):
    seen = []

    def move():
        for last, state in (("running", SearchState.PAUSED), ("paused", SearchState.DONE)):
            end = time.monotonic() + 600
            while [now["state"] for now in seen[-1:]] != [last] and time.monotonic() < end:
                time.sleep(0.1)
            set_state(place.workdir, searched, state, "enough" if state is SearchState.DONE else "")

    mover = threading.Thread(target=move)
    mover.start()
    for now in client.watch(searched):
        seen.append(now)
    mover.join()
    assert [now["state"] for now in seen] == ["running", "paused", "done"]
    assert seen[0]["trials"] == {"failed": 1, "finished": 2}
    assert seen[0]["best"] == {"number": 2, "value": 2.5, "std": 0.7}
    assert seen[0]["total"] == 4
    assert seen[-1]["message"] == "enough"


def test_what_is_not_kept_cannot_be_fetched(place, client, shown):
    for which, message in [("best", "no kept outputs"), ("17", "no trial 17"), ("worst", "names no trial")]:
        with pytest.raises(InputError, match=message):
            client.fetch(shown, which, place.folder / "out")


def test_a_doctor_finds_something(client):
    findings = client.doctor()
    assert all(finding["ok"] for finding in findings if finding["needed"])
    assert {"what", "ok", "detail", "needed"} == set(findings[0])


def test_the_words_for_being_over_are_the_store_s():
    assert {state.value for state in SearchState if state.is_over} == set(OVER_SEARCHES)
    assert {"paused", *(state.value for state in TrialState if state.is_over)} == set(OVER_TRIALS)


def test_the_best_shows_the_mean_of_its_confirmation_runs(place, client, name):
    client.submit(write_search(place.folder, name, confirm={"top": 1, "repeats": 2}, folds=1))
    with closing(store_of(place.workdir)) as store:
        number = store.search(name).id
        confirms = (None, None, 2, 2)
        trials = [Trial(n, 1, {"x": n / 10, "kind": "a"}, seed=n, confirms=one) for n, one in enumerate(confirms, 1)]
        task = add_trials(store, name, trials)
        ends = [made_end(n, TrialState.FINISHED, value, told) for n, value, told in ((1, 0.5, 1), (2, 0.25, 2))]
        assert "confirmed" not in (client.best(name) or {})
        ends += [made_end(n, TrialState.FINISHED, value) for n, value in ((3, 0.5), (4, 1.0))]
        store.record(number, [], ends, ended_tasks=[task])
    for found in (client.best(name), client.status(name)["best"]):
        assert (found["number"], found["value"], found["confirmed"]) == (2, 0.25, {"value": 0.75, "runs": 2})
        assert best_text(found) == "0.25; 0.75 on average over 2 confirmation runs"
    assert client.recommend(name)["value"] == 0.75
