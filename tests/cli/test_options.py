"""Which searches a command means: a store's or a service's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpo_pilot.cli.options import client_of
from hpo_pilot.errors import InputError
from hpo_pilot.operations.here import Here
from hpo_pilot.operations.remote import RemoteService

URL = "https://127.0.0.1:1"


@pytest.fixture(autouse=True)
def token(folder):
    (folder / "token").write_text("a.b.c")


FAR = {"HPO_PILOT_SERVICE": URL, "HPO_PILOT_TOKEN_FILE": "token"}
TOKEN = Path("token")


@pytest.mark.parametrize(
    ("environment", "options", "kind"),
    [
        ({}, {}, Here),
        ({"HPO_PILOT_SERVICE": ""}, {}, Here),
        ({}, {"service": URL, "token_file": TOKEN}, RemoteService),
        (FAR, {}, RemoteService),
        (FAR, {"workdir": Path("w")}, Here),
        (FAR, {"store": "sqlite:///x.db"}, Here),
        (FAR, {"service": URL, "token_file": TOKEN, "workdir": Path("w")}, RemoteService),
    ],
)
def test_options_come_before_the_environment(monkeypatch, environment, options, kind):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert isinstance(client_of(**options).at, kind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service": URL, "token_file": TOKEN, "store": "sqlite:///x.db"}, "name one"),
        ({"token_file": TOKEN}, "are for a service"),
        ({"service": URL}, "needs a token"),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        client_of(**options)
