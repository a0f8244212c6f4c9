"""A search that nothing steers: every place says so, and no place says when it will end."""

from __future__ import annotations

import pytest

from hpo_pilot.advice import Place
from hpo_pilot.errors import InputError
from hpo_pilot.store import SearchState
from hpo_pilot.store.lease import held_lease
from hpo_pilot.web.live import ALL_SEARCHES, SearchFragments
from hpo_pilot.web.local_client import LocalClient
from hpo_pilot.web.notebook import OpenedSearch, progress_line
from hpo_pilot.web.search_views import SearchCache
from tests.command_here import command_here
from tests.rest_api import add_results, set_state, steered, store_of, write_search


@pytest.fixture
def work(tmp_path, monkeypatch):
    for name in ("HPO_PILOT_STORE", "HPO_PILOT_SERVICE", "PANDA_URL_SSL"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "the work"
    work.mkdir()
    store_of(work).close()
    with LocalClient(work) as client:
        client.submit(write_search(tmp_path, "demo"))
    add_results(work, "demo")
    return work


def places(work):
    """What each place shows of the search, by place."""
    with LocalClient(work) as client:
        store = client._opened()
        pieces = SearchFragments(SearchCache(store), Place(workdir=work), Place(workdir=work))
        return {
            "status": command_here("status", "demo", "--workdir", str(work)).stdout,
            "list": command_here("list", "--workdir", str(work)).stdout,
            "page": " ".join(pieces.look("demo").content.html.values()),
            "row": " ".join(pieces.look(ALL_SEARCHES).content.html.values()),
            "notebook": repr(OpenedSearch(client, "demo", Place(workdir=work))),
            "progress": progress_line(client.progress("demo")),
        }


@pytest.mark.parametrize("state", [SearchState.RUNNING, SearchState.STOPPING, SearchState.SUBMITTED])
def test_every_place_says_so(work, tmp_path, state):
    set_state(work, "demo", state)
    for place, text in places(work).items():
        assert "steer" in text, place
        if place not in ("row", "progress"):
            assert f"hpo-pilot run &#39;{tmp_path}" in text or f"`hpo-pilot run {tmp_path}/demo.yaml" in text, place
            assert f"--workdir &#39;{work}&#39;`" in text or f"--workdir '{work}'`" in text, place
        assert "left  " not in text, place
        assert "mood good" not in text, place
    with steered(work):
        for place, text in places(work).items():
            assert "steer" not in text.replace("stopping", ""), place


def test_a_run_of_another_search_does_not_steer_it(work, tmp_path):
    with LocalClient(work) as client:
        store = client._opened()
        other = client.submit(write_search(tmp_path, "other"))
        with held_lease(store.engine, "run", "embedded") as lease:
            lease.steer_only([other["id"]])
            assert client.status("other")["steered"] is True
            status = client.status("demo")
            assert status["steered"] is False
            assert "`hpo-pilot run`, which has this store, steers other searches only" in status["remarks"][0]


def test_a_service_at_another_server_does_not_steer_it(work, tmp_path):
    with LocalClient(work) as client:
        client.submit(write_search(tmp_path, "far"), server="https://panda.example.org:25443")
        with steered(work, "embedded"):
            assert client.status("far")["steered"] is False
            assert "serve --server https://panda.example.org:25443" in client.how_to_steer("far")


def test_a_family_is_steered_where_all_of_it_is(work, tmp_path):
    with LocalClient(work) as client:
        client.submit(write_search(tmp_path, "family", segments=["one", "two"]))
        assert client.status("family")["steered"] is False
        assert client.progress("family")["steered"] is False
        with steered(work):
            assert client.status("family")["steered"] is True


def test_stop_ends_a_search_without_jobs_at_once(work):
    with LocalClient(work) as client:
        assert client.stop("demo")["state"] == "stopped"
        with pytest.raises(InputError, match="stopped already"):
            client.stop("demo")
        client.resume("demo")
        with steered(work):
            assert client.stop("demo")["state"] == "stopping", "what steers it ends it"
            with pytest.raises(InputError, match="stopping already"):
                client.stop("demo")
