"""Families, the searches of a file's segments, as every client of searches has them."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.store import SearchState
from tests.rest_api import add_results, set_state, write_search

from .conftest import sandbox_names

SEGMENTS = {"arm": {"inputs": ["mc23:arms"]}, "leg": {}}


@pytest.fixture
def family(place, client, name) -> str:
    """A family of two, submitted."""
    submitted = client.submit(write_search(place.folder, name, segments=SEGMENTS))
    assert [one["name"] for one in submitted["segments"]] == [f"{name}-arm", f"{name}-leg"]
    return name


def test_a_family_is_submitted_whole(place, client, name, family):
    (arm, leg) = (client.status(f"{family}-{segment}") for segment in ("arm", "leg"))
    assert arm["family"] == leg["family"] == family
    assert arm["definition"]["payload"]["inputs"] == ["mc23:arms"]
    assert list(leg["definition"]["segments"]) == ["leg"]
    assert sandbox_names(place, arm["name"]) == sandbox_names(place, leg["name"])
    shown = client.status(family)
    assert (shown["id"], shown["state"], len(shown["segments"])) == (0, "submitted", 2)
    assert shown["budget"]["trials"] == 2 * arm["budget"]["trials"]
    with pytest.raises(InputError, match=f"already has a search '{name}-arm'"):
        client.submit(write_search(place.folder, name, segments=SEGMENTS))


def test_a_family_is_changed_by_its_name(client, family):
    assert client.pause(family)["state"] == "paused"
    assert client.status(f"{family}-leg")["state"] == "paused"
    client.resume(f"{family}-leg")
    assert client.status(family)["state"] == "running"
    assert client.resume(family)["state"] == "running"
    before = client.status(family)["budget"]["trials"]
    assert client.extend(family, {"trials": 2})["budget"]["trials"] == before + 4
    assert client.stop(family)["state"] == "stopped"  # nothing steers it
    with pytest.raises(InputError, match="name one of"):
        client.trials(family)


def test_new_payload_files_go_to_each_search_that_can_be_resumed(place, client, family):
    set_state(place.workdir, f"{family}-arm", SearchState.DONE)
    client.pause(f"{family}-leg")
    (place.folder / "training" / "more.py").write_text("new")
    client.resume(family, new_payload=True)
    assert client.status(f"{family}-leg")["state"] == "running"
    assert "more.py" in sandbox_names(place, f"{family}-leg")
    set_state(place.workdir, f"{family}-leg", SearchState.DONE)
    with pytest.raises(InputError, match="is done"):
        client.resume(family, new_payload=True)


def test_a_family_is_others_to_see_only(place, client, family):
    with place.client("bob") as bob:
        assert bob.status(family)["state"] == "submitted"
        with pytest.raises(InputError, match="alice's"):
            bob.stop(family)
    assert client.status(family)["state"] == "submitted"


def test_a_watched_family_is_over_when_all_of_it_is(place, client, family):
    for segment in ("arm", "leg"):
        add_results(place.workdir, f"{family}-{segment}")
        set_state(place.workdir, f"{family}-{segment}", SearchState.DONE)
    (last,) = client.watch(family)
    assert (last["name"], last["state"], last["best"]) == (family, "done", None)
    assert last["trials"] == client.status(family)["trials"]
