"""The API keeps to its own description (OpenAPI 3.1), whatever it is asked: no 5xx, no answer that is not described."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis

from hpo_pilot.server.tokens import Role
from hpo_pilot.web.app import build_api
from tests.bearer import token
from tests.openapi import drive
from tests.rest_api import RunningApi, add_results, write_search

DESCRIPTION = build_api().openapi()
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
OPERATIONS = [(path, method) for path, item in sorted(DESCRIPTION["paths"].items()) for method in sorted(item)]


@pytest.fixture(scope="module")
def described(api) -> RunningApi:
    """An API with the search of the description's examples, well under way."""
    with api.client("alice") as client:
        client.submit(write_search(api.root / "mine", "digits-mlp"))
    add_results(api.workdir, "digits-mlp")
    return api


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.PILOT, None])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_call_breaks_the_api(described, path, method, role):
    operation = SCHEMA[path][method.upper()]
    headers = {} if role is None else {"Authorization": f"Bearer {token('alice', role)}"}

    def refused(response: Any) -> None:
        if role in (Role.PILOT, None) and path != "/api/v1/health":
            assert response.status_code in (401, 403)

    drive(operation, described.url, headers, 15 if role is Role.USER else 3, waits="/progress", check=refused)


def test_the_description_is_served_and_whole(call):
    assert call("GET", "openapi.json", None).json() == DESCRIPTION
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


def test_the_largest_counts_are_in_the_description():
    schemas = DESCRIPTION["components"]["schemas"]
    assert schemas["Width"]["properties"]["parallel"]["maximum"] == 100_000
    assert schemas["Extension"]["properties"]["add"]["additionalProperties"]["maximum"] == 10**12
