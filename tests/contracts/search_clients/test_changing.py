"""How every client of searches changes them, and for whom."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.store import SearchState
from tests.rest_api import set_state, write_search

from .conftest import sandbox_names


def test_pause_resume_stop(client, searched):
    assert client.pause(searched)["state"] == "paused"
    with pytest.raises(InputError, match="is paused, so it cannot be paused"):
        client.pause(searched)
    assert client.resume(searched)["state"] == "running"
    with pytest.raises(InputError, match="is running already"):
        client.resume(searched)
    assert client.stop(searched)["state"] == "stopped", "nothing steers it and it has no jobs: it ends at once"
    with pytest.raises(InputError, match="is stopped"):
        client.stop(searched)
    done = [(event["who"], event["what"]) for event in client.events(searched)]
    at = done.index(("alice", "paused"))
    assert done[at : at + 3] == [("alice", "paused"), ("alice", "resumed"), ("alice", "stopped: stopped on request")]


def test_extend(place, client, searched):
    assert client.extend(searched, {"trials": 10, "hours": 0.5})["budget"]["trials"] == 14
    before = client.status(searched)["budget"]
    assert before["hours"] == 5.5
    for changes, message in [
        ({"trials": 0}, "may only grow"),
        ({"trials": -3}, "may only grow"),
        ({"trials": 1.5}, "not a whole number"),
        ({"gpu_hours": 1}, "no limit on gpu_hours"),
        ({"parallel": 1}, "no such limit"),
        ({"hours": 1e308}, "does not extend the budget: the maximum is 1,000,000"),
    ]:
        with pytest.raises(InputError, match=message):
            client.extend(searched, changes)
    assert client.status(searched)["budget"] == before
    set_state(place.workdir, searched, SearchState.DONE)
    assert client.extend(searched, {"trials": 1})["state"] == "running"


def test_a_mended_payload_goes_along(place, client, searched):
    (place.folder / "training" / "train.py").write_text("mended")
    (place.folder / "training" / "more.py").write_text("new")
    client.resume(searched, new_payload=True)
    assert "more.py" in sandbox_names(place, searched)
    assert client.events(searched)[-1]["what"] == "resumed with new payload files"


def test_a_mended_payload_elsewhere_is_named(place, client, searched, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    path = write_search(elsewhere, searched)
    (elsewhere / "training" / "other.py").write_text("new")
    client.resume(searched, new_payload=True, file=path)
    assert "other.py" in sandbox_names(place, searched)


def test_everybody_sees_and_the_owner_changes(place, client, searched):
    with place.client("bob") as bob:
        of_now = {"eta": None, "hours_used": None}
        assert {**bob.status(searched), **of_now} == {**client.status(searched), **of_now}
        assert list(bob.trials(searched))
        calls = [
            lambda: bob.pause(searched),
            lambda: bob.stop(searched),
            lambda: bob.extend(searched, {"trials": 1}),
            lambda: bob.resume(searched),
            lambda: bob.resume(searched, new_payload=True, file=place.folder / f"{searched}.yaml"),
        ]
        for call in calls:
            with pytest.raises(InputError, match=f"search '{searched}' is alice's"):
                call()
    assert client.status(searched)["state"] == "running"
    with place.client("carol", operator=True) as carol:
        assert carol.pause(searched)["state"] == "paused"
    assert client.events(searched)[-1]["who"] == "carol"
