"""`run` where a service has the store already."""

from __future__ import annotations

import threading

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.service.run import run
from hpo_pilot.store import SearchState, Store
from hpo_pilot.store.lease import acquire

REAL = "https://panda.example.org:25443"

FILE = """
search: demo
space: {x: {type: real, low: 0.0, high: 1.0}}
payload: {command: "true"}
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.delenv("PANDA_URL_SSL", raising=False)
    path = tmp_path / "demo.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def store(tmp_path):
    (tmp_path / "work").mkdir()
    opened = Store.open(f"sqlite:///{tmp_path / 'work' / 'hpo-pilot.db'}")
    yield opened
    opened.close()


def test_a_service_at_another_server_is_not_watched_for_ever(file, store, tmp_path):
    acquire(store.engine, "serve", REAL)
    with pytest.raises(InputError, match=f"steers at the PanDA server {REAL} alone"):
        run(file, tmp_path / "work", server="embedded")


def test_a_service_that_comes_back_at_another_server_is_noticed(file, store, tmp_path):
    lease = acquire(store.engine, "serve", "embedded")

    def move(_store, _record):
        if not moved:
            moved.append(True)
            lease.release()
            acquire(store.engine, "serve", REAL)

    moved = []
    with pytest.raises(InputError, match="alone"):
        run(file, tmp_path / "work", server="embedded", on_progress=move)


def test_a_search_that_no_server_has_goes_where_the_service_is(file, store, tmp_path):
    acquire(store.engine, "serve", REAL)

    def steer(_store, record):
        store.bind_server(record.id, REAL)
        store.set_state(record.id, SearchState.STOPPED, "service")

    result = []
    thread = threading.Thread(target=lambda: result.append(run(file, tmp_path / "work", on_progress=steer)))
    thread.start()
    thread.join(20)
    assert result[0].record.state is SearchState.STOPPED
