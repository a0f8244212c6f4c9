"""Which searches a command means: a store's or a service's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.cli.options import client_of
from hpo_pilot.errors import InputError
from hpo_pilot.web.local_client import LocalClient
from hpo_pilot.web.rest_client import RestClient

URL = "https://127.0.0.1:1"


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    for name in ("HPO_PILOT_SERVICE", "HPO_PILOT_TOKEN_FILE", "HPO_PILOT_STORE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("a.b.c")
    monkeypatch.chdir(tmp_path)


def test_without_options_it_is_the_work_folder(monkeypatch):
    assert isinstance(client_of(), LocalClient)
    monkeypatch.setenv("HPO_PILOT_SERVICE", "")
    assert isinstance(client_of(), LocalClient)


def test_a_service_by_option_and_by_environment(monkeypatch):
    assert isinstance(client_of(service=URL, token_file=Path("token")), RestClient)
    monkeypatch.setenv("HPO_PILOT_SERVICE", URL)
    monkeypatch.setenv("HPO_PILOT_TOKEN_FILE", "token")
    assert isinstance(client_of(), RestClient)


def test_what_is_said_beats_the_environment(monkeypatch):
    monkeypatch.setenv("HPO_PILOT_SERVICE", URL)
    assert isinstance(client_of(workdir=Path("w")), LocalClient)
    assert isinstance(client_of(store="sqlite:///x.db"), LocalClient)
    assert isinstance(client_of(service=URL, token_file=Path("token"), workdir=Path("w")), RestClient)


def test_what_contradicts_itself_is_refused():
    with pytest.raises(InputError, match="name one"):
        client_of(service=URL, token_file=Path("token"), store="sqlite:///x.db")
    with pytest.raises(InputError, match="are for a service"):
        client_of(token_file=Path("token"))
    with pytest.raises(InputError, match="needs a token"):
        client_of(service=URL)
