"""How every client asks for points, for failed trials again and for more at once."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.store import SearchState
from tests.rest_api import add_results, set_state, write_search


def test_failed_trials_again(place, client, searched):
    changed = client.retry(searched)
    assert (changed["added"], changed["budget"]["trials"]) == (1, 5)
    assert [(wish["retries"], wish["who"]) for wish in client.status(searched)["wishes"]] == [(1, "alice")]
    event = client.events(searched)[-1]
    assert (event["who"], event["what"]) == ("alice", "asked for failed trial 1 again: budget trials 4 -> 5")
    with pytest.raises(InputError, match="all of its failed trials were tried again"):
        client.retry(searched)
    for trials, message in [([2], "trial 2 is finished"), ([99], "has no trial 99"), ([1], "waits to go out")]:
        with pytest.raises(InputError, match=message):
            client.retry(searched, trials)
    assert client.status(searched)["budget"]["trials"] == 5


def test_a_search_that_is_over_goes_on(place, client, searched):
    set_state(place.workdir, searched, SearchState.DONE)
    assert client.retry(searched, [1])["state"] == "running"
    set_state(place.workdir, searched, SearchState.DONE)
    assert client.add_point(searched, {"x": 0.5, "kind": "a"})["state"] == "running"
    set_state(place.workdir, searched, SearchState.PAUSED)
    assert client.add_point(searched, {"x": 0.5, "kind": "b"})["state"] == "paused"


def test_a_point_to_try(client, searched):
    changed = client.add_point(searched, {"kind": "b", "x": 1})
    assert (changed["added"], changed["budget"]["trials"]) == (1, 5)
    assert [wish["point"] for wish in client.status(searched)["wishes"]] == [{"x": 1.0, "kind": "b"}]
    assert client.events(searched)[-1]["what"].startswith('asked for the point {"x": 1.0, "kind": "b"}')
    for point, message in [
        ({"x": 1.0, "kind": "b"}, "its point waits to go out; alice asked for it"),
        ({"x": 0.0002, "kind": "a"}, "trial 2 has its point and is finished"),
        ({"x": 0.0001, "kind": "a"}, "trial 1 failed"),
        ({"x": 2.0, "kind": "c", "z": 1}, "z: is not a parameter.*x: must be between 0 and 1.*kind: must be"),
        ({"x": "0.5", "kind": "a"}, "must be a number"),
        ({}, "x: is missing"),
    ]:
        with pytest.raises(InputError, match=message):
            client.add_point(searched, point)
    assert client.status(searched)["budget"]["trials"] == 5


def test_conditions_are_respected(place, client, name):
    space = {
        "solver": {"type": "categorical", "choices": ["adam", "sgd"]},
        "momentum": {"type": "real", "low": 0.0, "high": 1.0, "when": {"solver": "sgd"}},
    }
    client.submit(write_search(place.folder, name, space=space, constraints=["momentum != 0.5"]))
    assert client.add_point(name, {"solver": "adam"})["added"] == 1
    for point, message in [
        ({"solver": "adam", "momentum": 0.1}, "momentum: is not active here: it needs solver: 'sgd'"),
        ({"solver": "sgd"}, "momentum: is missing"),
        ({"solver": "sgd", "momentum": 0.5}, "breaks the constraint"),
    ]:
        with pytest.raises(InputError, match=message):
            client.add_point(name, point)


def test_more_at_once(client, searched):
    assert client.set_parallel(searched, 7)["budget"]["parallel"] == 7
    assert client.events(searched)[-1]["what"] == "budget changed: parallel 2 -> 7"
    assert client.set_parallel(searched, 7)["budget"]["parallel"] == 7
    assert client.events(searched)[-1]["what"] == "budget changed: parallel 2 -> 7"
    for wrong in (0, -1, 10**9):
        with pytest.raises(InputError):
            client.set_parallel(searched, wrong)


def test_only_the_owner_asks(place, client, searched):
    with place.client("bob") as bob:
        for call in (
            lambda: bob.retry(searched),
            lambda: bob.add_point(searched, {"x": 0.5, "kind": "a"}),
            lambda: bob.set_parallel(searched, 3),
        ):
            with pytest.raises(InputError, match=f"search '{searched}' is alice's"):
                call()
    assert client.status(searched)["budget"] == client.status(searched)["definition"]["budget"]
    assert client.status(searched)["budget"]["trials"] == 4


def test_a_family_asks_in_each_of_its_searches_that_can(place, client, name):
    client.submit(write_search(place.folder, name, segments=["s1", "s2"]))
    add_results(place.workdir, f"{name}-s1")
    changed = client.retry(name)
    assert changed["added"] == 1
    assert [segment["budget"]["trials"] for segment in changed["segments"]] == [5, 4]
    with pytest.raises(InputError, match="is a family of 2 searches"):
        client.retry(name, [1])
    changed = client.add_point(name, {"x": 0.5, "kind": "a"})
    assert changed["added"] == 2
    assert [segment["budget"]["trials"] for segment in changed["segments"]] == [6, 5]
    assert client.set_parallel(name, 3)["segments"][1]["budget"]["parallel"] == 3
    assert len(client.status(name)["wishes"]) == 3
