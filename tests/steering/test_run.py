"""`run` where a service has the store already."""

from __future__ import annotations

import threading

import pytest
import yaml

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.steering.service import run
from hpo_pilot.steering.workdir import STORE_VARIABLE
from hpo_pilot.store import SearchState
from hpo_pilot.store.lease import acquire
from tests.made import made_search

REAL = "https://panda.example.org:25443"


@pytest.fixture
def file(store, tmp_path, monkeypatch):
    monkeypatch.delenv("PANDA_URL_SSL", raising=False)
    monkeypatch.setenv(STORE_VARIABLE, store.engine.url.render_as_string(hide_password=False))
    path = tmp_path / "demo.yaml"
    path.write_text(yaml.safe_dump(made_search().to_dict()))
    return path


def test_a_service_at_another_server_is_not_watched_for_ever(file, store, tmp_path):
    acquire(store.engine, "serve", REAL)
    with pytest.raises(InputError, match=f"steers only at the PanDA server {REAL}"):
        run(file, tmp_path / "work", server="embedded")


def test_a_service_that_comes_back_at_another_server_is_noticed(file, store, tmp_path):
    lease = acquire(store.engine, "serve", "embedded")

    def move(_store, _record):
        if not moved:
            moved.append(True)
            lease.release()
            acquire(store.engine, "serve", REAL)

    moved = []
    with pytest.raises(InputError, match="the service that has this store steers only at"):
        run(file, tmp_path / "work", server="embedded", on_progress=move)


def test_a_search_that_no_server_has_goes_where_the_service_is(file, store, tmp_path):
    acquire(store.engine, "serve", REAL)

    def steer(_store, record):
        store.bind_server(record.id, REAL)
        store.set_state(record.id, SearchState.STOPPED, "service")

    result = []
    thread = threading.Thread(target=lambda: result.append(run(file, tmp_path / "work", on_progress=steer)))
    thread.start()
    thread.join(600)
    assert result[0].record.state is SearchState.STOPPED


@pytest.mark.parametrize(
    ("options", "lease"),
    [
        ({"server": "https://panda.example.org:25443", "slots": 4}, None),
        ({"server": "no URL"}, None),
        ({}, "run"),  # another run in this work folder
        ({"server": "embedded"}, "serve"),  # a service that takes tasks elsewhere
    ],
)
def test_a_run_that_is_refused_registers_nothing(file, store, tmp_path, options, lease):
    held = None if lease is None else acquire(store.engine, lease, REAL)
    with pytest.raises(HpoPilotError):
        run(file, tmp_path / "work", **options)
    if held is not None:
        held.release()
    assert store.searches() == []


def test_a_run_whose_server_does_not_start_registers_nothing(file, store, tmp_path, monkeypatch):
    def broken(_: object) -> None:
        raise TryAgainError("no free port")

    monkeypatch.setattr("hpo_pilot.steering.embedded.EmbeddedPanda.start", broken)
    with pytest.raises(TryAgainError, match="no free port"):
        run(file, tmp_path / "work")
    assert store.searches() == []


def test_a_run_that_is_refused_leaves_a_search_as_it_was(file, store, tmp_path):
    record = store.create_search(made_search(), source=str(file), sandbox=None, owner="me")
    store.set_state(record.id, SearchState.PAUSED, "me")
    held = acquire(store.engine, "run")
    with pytest.raises(HpoPilotError):
        run(file, tmp_path / "work")
    held.release()
    assert store.search("demo").state is SearchState.PAUSED
