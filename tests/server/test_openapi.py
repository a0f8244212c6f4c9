"""The API's description, and schemathesis driving every call of it with every role's token: never a 5xx."""

from __future__ import annotations

from typing import Any

import pytest
import requests
import schemathesis
from jsonschema import Draft202012Validator

from hpo_pilot.server.app import API_MODULES
from hpo_pilot.server.web.endpoints import TABLE
from hpo_pilot.server.web.openapi import PATHS, description
from tests.openapi import drive
from tests.server.conftest import bearer
from tests.task_parameters import make_params

assert API_MODULES, "imported for what they put into the table"
SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = [
    (path, method) for path, item in sorted(description()["paths"].items()) for method in sorted(item, reverse=True)
]


@pytest.fixture(scope="module", autouse=True)
def work(server: Any) -> None:
    """Something for the calls to find: a task with a finished, a running and a waiting job."""
    server.api("me").submit(make_params("user.me.work/", 3))
    pilot = server.api("pilot")
    one, two = pilot.acquire(2)
    pilot.update(one["PandaID"], "finished", meta_data="{}")
    pilot.update(two["PandaID"], "running")


def test_the_description_is_served_and_whole(server: Any) -> None:
    for path in PATHS:
        served = requests.get(f"{server.url}{path}", timeout=10)
        assert (served.status_code, served.json()) == (200, description())
    assert set(description()["paths"]) == {f"/api/v1/{path}" for path in TABLE}
    for path, item in description()["paths"].items():
        for operation in item.values():
            assert operation["summary"], path
            for content in operation.get("requestBody", {}).get("content", {}).values():
                Draft202012Validator.check_schema(content["schema"])


@pytest.mark.parametrize("role", ["me", "pilot", "operator"])
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_no_call_breaks_the_server(server: Any, path: str, method: str, role: str) -> None:
    operation = SCHEMA[path][method.upper()]
    headers = {"Authorization": f"Bearer {bearer(f'token-of-{role}')}"}
    drive(operation, server.url, headers, 4, waits="hpo_pilot/changes")
