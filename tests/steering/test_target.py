"""Which PanDA server is meant."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.search import Search, Trial
from hpo_pilot.steering.embedded import bind_to_server, check_steered, chosen_server, nickname_at
from hpo_pilot.store import EMBEDDED, NewTask

REAL = "https://panda.example.org:25443"


@pytest.fixture
def record(store):
    search = Search.model_validate(
        {
            "search": "demo",
            "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
            "payload": {"command": "true"},
        }
    )
    return store.create_search(search, source="demo.yaml", sandbox=None, owner="me")


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("PANDA_URL_SSL", "PANDA_AUTH", "PANDA_AUTH_VO", "OIDC_AUTH_VO"):
        monkeypatch.delenv(name, raising=False)


def test_option_then_search_then_environment_then_embedded(record, monkeypatch):
    assert chosen_server(None) == EMBEDDED
    assert chosen_server("embedded") == EMBEDDED
    monkeypatch.setenv("PANDA_URL_SSL", f"{REAL}/server/panda")
    assert chosen_server(None) == chosen_server(None, [record]) == REAL
    assert chosen_server(EMBEDDED, [record]) == EMBEDDED
    here = replace(record, server=EMBEDDED)
    assert chosen_server(None, [here]) == chosen_server(None, [record, here]) == EMBEDDED
    with pytest.raises(InputError, match=f"--server {EMBEDDED}"):
        chosen_server(REAL, [record, here])


def test_a_search_is_tied_to_the_first_server_that_has_it(store, record):
    assert store.bind_server(record.id, REAL) == REAL
    assert store.bind_server(record.id, EMBEDDED) == REAL
    assert store.search(record.id).server == REAL
    with pytest.raises(InputError, match=f"has its tasks at the PanDA server {REAL}"):
        bind_to_server(store, [record], EMBEDDED)


def test_a_family_is_tied_as_a_whole_or_not_at_all(store, record):
    search = record.search.model_copy(update={"name": "other"})
    other = store.create_search(search, source="other.yaml", sandbox=None, owner="me")
    store.bind_server(other.id, REAL)
    with pytest.raises(InputError, match="'other' has its tasks"):
        bind_to_server(store, [record, other], EMBEDDED)
    assert store.search(record.id).server is None


def test_a_service_leaves_searches_of_other_servers_alone(record):
    check_steered({"new": None, "demo": REAL}, REAL)
    check_steered({"demo": REAL}, None)
    with pytest.raises(InputError, match=f"goes to the embedded PanDA server.*steers only at the PanDA server {REAL}"):
        check_steered({"new": None, "demo": EMBEDDED}, REAL)


def test_a_search_of_before_there_were_others_is_at_the_embedded_one(store, record):
    trial = Trial(1, 1, {"x": 0.5}, seed=7)
    task = NewTask("user.me.demo.cafecafe.g1/", 1, 0, (((1, 0, 7),),))
    store.add_generation(record.id, history=0, pending=[], trials=[trial], task=task)
    assert store.bind_server(record.id, REAL) == EMBEDDED


def test_a_name_that_is_taken_is_replaced_before_it_is_used(store, record):
    task = NewTask("user.me.demo.cafecafe.g1/", 1, 0, (((1, 0, 7),),))
    sent = store.add_generation(record.id, history=0, pending=[], trials=[Trial(1, 1, {"x": 0.5}, seed=7)], task=task)
    store.rename_task(sent.id, "user.me.demo.deadbeef.g1/")
    assert [open_task.name for open_task in store.open_tasks(record.id)] == ["user.me.demo.deadbeef.g1/"]
    store.task_submitted(sent.id, 77)
    store.rename_task(sent.id, "user.me.demo.00000000.g1/")
    assert [open_task.name for open_task in store.open_tasks(record.id)] == ["user.me.demo.deadbeef.g1/"]


def test_oidc_without_a_vo_is_a_wrong_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("PANDA_AUTH", "oidc")
    with pytest.raises(InputError, match="PANDA_AUTH_VO"):
        nickname_at(REAL, tmp_path / "log")


def test_a_name_that_no_task_can_have_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PANDA_AUTH", "x509_no_grid")
    monkeypatch.setenv("PANDA_NICKNAME", "ann other")
    with pytest.raises(InputError, match="'ann other', which is not allowed in names of tasks"):
        nickname_at("http://127.0.0.1:1", tmp_path / "log")
    monkeypatch.setenv("PANDA_NICKNAME", "aother")
    with pytest.raises(TryAgainError, match=r"127\.0\.0\.1:1 cannot be reached"):
        nickname_at("http://127.0.0.1:1", tmp_path / "log")
