"""The API keeps to its own description (OpenAPI 3.1), whatever it is asked: no 5xx, no answer that is not described."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis

from hpo_pilot.server.tokens import Role
from hpo_pilot.web.app import build_api
from tests.bearer import token
from tests.openapi import drive
from tests.rest_api import RunningApi, add_results, start_api, write_search

DESCRIPTION = build_api().openapi()
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
OPERATIONS = [(path, method) for path, item in sorted(DESCRIPTION["paths"].items()) for method in sorted(item)]


@pytest.fixture(scope="module")
def described(tmp_path_factory) -> Iterator[RunningApi]:
    """An API with a search that is well under way."""
    api = start_api(tmp_path_factory.mktemp("described"), "--upload-mb", "1")
    with api.client("alice") as client:
        client.submit(write_search(api.root / "mine", "digits-mlp"))
    add_results(api.workdir, "digits-mlp")
    yield api
    assert api.process.poll() is None
    assert "Traceback" not in api.log
    api.stop()


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.PILOT, None])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_call_breaks_the_api(described, path, method, role):
    operation = SCHEMA[path][method.upper()]
    headers = {} if role is None else {"Authorization": f"Bearer {token('alice', role)}"}

    def refused(response: Any) -> None:
        if role in (Role.PILOT, None) and path != "/api/v1/health":
            assert response.status_code in (401, 403)

    drive(operation, described.url, headers, 15 if role is Role.USER else 3, waits="/progress", check=refused)


def test_the_description_is_served_and_whole(described):
    import requests

    assert requests.get(f"{described.url}/api/v1/openapi.json", timeout=10).json() == DESCRIPTION
    assert DESCRIPTION["openapi"].startswith("3.1")
    scheme = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
    assert DESCRIPTION["components"]["securitySchemes"] == {"token": scheme}
    assert DESCRIPTION["security"] == [{"token": []}]
    without = []
    for path, item in DESCRIPTION["paths"].items():
        for method, operation in item.items():
            assert operation["description"], (method, path)
            assert "HTTPValidationError" not in json.dumps(operation)
            good = operation["responses"].get("200") or operation["responses"]["201"]
            if "example" not in good["content"].get("application/json", {"example": ()}):
                without.append(f"{method} {path}")
    assert without == ["get /api/v1/searches/{identity}/export"]  # whose form the caller chooses
