"""An API process, calls to it, and what is sent with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.rest_api import RunningApi, start_api


@pytest.fixture(scope="session")
def api(tmp_path_factory) -> Iterator[RunningApi]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HPO_PILOT_UNPACKED_MB", "20")
        started = start_api(tmp_path_factory.mktemp("api"), "--upload-mb", "1")
    with started as running:
        yield running
        assert running.process.poll() is None
        assert "Traceback" not in running.log


@pytest.fixture(scope="session")
def call(api):
    """Calls the API as somebody; returns the answer, whatever it is."""

    def send(method: str, path: str, who: str | None = "alice", role: Role = Role.USER, **more) -> requests.Response:
        headers = {"Authorization": f"Bearer {token(who, role)}"} if who else {}
        headers.update(more.pop("headers", {}))
        return requests.request(
            method, f"{api.url}/api/v1/{path}", headers=headers, timeout=600, allow_redirects=False, **more
        )

    return send


@pytest.fixture
def submit(call):
    """Submits a search of a name; returns its document."""

    def submitted(name: str, **more: Any) -> dict[str, Any]:
        answer = call("POST", "searches", data=search_text(name), **more)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return submitted


def search_text(name: str, **document: Any) -> str:
    """A search file; its budget is 64 trials."""
    fields = {
        "search": name,
        "space": {"x": {"type": "real", "low": 0.0, "high": 1.0}},
        "optimizer": "random",
        "budget": {"hours": 5},
        "payload": {"command": "true"},
    }
    return json.dumps({**fields, **document})
