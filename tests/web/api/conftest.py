from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from hpo_pilot.server.tokens import Role
from tests.bearer import token
from tests.rest_api import RunningApi, start_api


@pytest.fixture(scope="module")
def api(tmp_path_factory) -> Iterator[RunningApi]:
    running = start_api(tmp_path_factory.mktemp("api"), "--upload-mb", "1", "--unpacked-mb", "20")
    yield running
    running.stop()


@pytest.fixture
def call(api):
    """Calls the API as somebody; returns the answer, whatever it is."""

    def send(method: str, path: str, who: str | None = "alice", role: Role = Role.USER, **more) -> requests.Response:
        headers = {"Authorization": f"Bearer {token(who, role)}"} if who else {}
        headers.update(more.pop("headers", {}))
        return requests.request(
            method, f"{api.url}/api/v1/{path}", headers=headers, timeout=60, allow_redirects=False, **more
        )

    return send
