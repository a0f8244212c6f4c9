"""Roles: every call and file, for each role."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.server.app import API_MODULES
from hpo_pilot.server.calls import EVERYBODY, TABLE, Parameter
from hpo_pilot.server.pilot_calls import LEGACY, LEGACY_PUBLIC
from hpo_pilot.server.tokens import Role
from tests.server.conftest import TOKENS, send
from tests.task_parameters import make_params

#: token -> role; None: no token at all.
CALLERS: dict[str | None, Role | None] = {None: None} | {alias: role for alias, (_, role) in TOKENS.items()}

#: What needs no token, whichever group it is in: whoever adds to this list must mean it.
OPEN_CALLS = {"system/is_alive"}

#: Calls that pilots alone make: a user's token is none.
PILOT_GROUPS = ("pilot",)


def test_the_tables_are_full() -> None:
    assert len(API_MODULES) > 3
    assert len(TABLE) > 30
    assert len(LEGACY) > 4


@pytest.mark.parametrize("path", sorted(TABLE))
def test_roles_of_every_call(server: Any, path: str) -> None:
    endpoint = TABLE[path]
    assert (endpoint.roles == EVERYBODY) is (path in OPEN_CALLS)
    assert path in OPEN_CALLS or Role.OPERATOR in endpoint.roles
    if path.split("/", maxsplit=1)[0] in PILOT_GROUPS and endpoint.method == "POST":
        assert Role.USER not in endpoint.roles, "a user token cannot act as a pilot"
    if path == "task/submit" or (endpoint.owner_of and endpoint.method == "POST"):
        assert Role.PILOT not in endpoint.roles, "a pilot token cannot submit or change tasks"
    for caller, role in {**CALLERS, "wrong": None, "": None}.items():
        answer = send(server, endpoint.method or "GET", f"/api/v1/{path}", caller)
        if path in OPEN_CALLS:
            assert answer.json()["success"] is True, caller
        elif role is None:
            assert (answer.status_code, answer.json()["success"]) == (401, False), caller
        else:
            assert (answer.status_code == 403) is (role not in endpoint.roles), (caller, answer.text)


@pytest.mark.parametrize("name", sorted(LEGACY))
def test_roles_of_every_legacy_call(server: Any, name: str) -> None:
    for caller, role in CALLERS.items():
        answer = send(server, "POST", f"/server/panda/{name}", caller)
        assert answer.status_code < 500
        may = name in LEGACY_PUBLIC or role in (Role.PILOT, Role.OPERATOR)
        refused = "role" in answer.text or answer.text == "StatusCode=60"
        assert refused is not may, (caller, answer.text)
    # A wrong token is refused, even where this API needs none.
    assert send(server, "POST", f"/server/panda/{name}", "wrong").status_code == 403


def test_roles_of_files(server: Any) -> None:
    """An output: its job's pilot writes, users read, its owner removes. A sandbox: pilots and its owner read."""
    server.api("me").upload("sources.secret", b"content")
    output = "/storage/user.me.999999999._000001.outputs.tar.gz"
    for content in (b"first", b"second" * 100_000):
        assert send(server, "PUT", output, "token-of-operator", data=content).json()["success"]
        assert send(server, "GET", output, "token-of-you").content == content
    codes = {
        caller: [
            send(server, "PUT", output, caller, data=b"x").status_code,
            send(server, "GET", output, caller).status_code,
            send(server, "DELETE", output, caller).status_code,
            send(server, "GET", "/cache/sources.secret", caller).status_code,
        ]
        for caller in (None, "token-of-you", "token-of-pilot", "token-of-me")
    }
    assert codes == {
        None: [401, 401, 401, 401],
        "token-of-you": [403, 200, 403, 403],
        "token-of-pilot": [409, 403, 403, 200],
        "token-of-me": [403, 200, 200, 200],
    }
    assert send(server, "GET", "/cache/sources.secret", "token-of-operator").status_code == 200
    for method, path in (("GET", output), ("DELETE", output), ("GET", "/cache/sources.none")):
        assert send(server, method, path, "token-of-operator").status_code == 404


def _a_value(parameter: Parameter, task_id: int) -> Any:
    kind = parameter.kinds[0]
    if kind is int:
        return task_id if parameter.name.endswith(("task_id", "parent_tid")) else 1
    if kind is bool:
        return False
    return {str: "x", dict: {}, list: [], float: 1.0}[kind]


@pytest.mark.parametrize("path", sorted(path for path, call in TABLE.items() if call.owner_of))
def test_tasks_are_changed_only_by_their_owners(server: Any, path: str) -> None:
    endpoint = TABLE[path]
    name = path.replace("/", ".")
    task_id = server.api("me").submit(make_params(f"user.me.own.{name}/", 1, site="NOWHERE"))
    before = server.api("me").get("task/get_details", task_id=task_id)["data"]
    given = {
        parameter.name: task_id if parameter.name == endpoint.owner_of else _a_value(parameter, task_id)
        for parameter in endpoint.parameters.values()
        if parameter.required
    }
    how = {"params": given} if endpoint.method == "GET" else {"json": given}
    answer = send(server, endpoint.method, f"/api/v1/{path}", "token-of-you", **how).json()
    assert (answer["success"], answer["message"]) == (False, "not the task owner or no production role")
    assert server.api("you").get("task/get_details", task_id=task_id)["data"] == before, "and everybody sees all"
    for owner in ("token-of-me", "token-of-operator"):
        answer = send(server, endpoint.method, f"/api/v1/{path}", owner, **how).json()
        assert answer["message"] != "not the task owner or no production role"


def test_jobs_are_changed_only_by_their_tasks_owners(server: Any) -> None:
    server.api("me").submit(make_params("user.me.jobs/", 1, site="ROLES"))
    (job,) = server.api("pilot").acquire(site_name="ROLES")
    assert server.api("you").post("job/kill", job_ids=[job["PandaID"]])["data"] == [False]
    assert server.api("you").post("job/set_debug_mode", job_id=job["PandaID"], mode=True)["success"] is False
    assert server.api("pilot").update(job["PandaID"], "running")["command"] is None
    server.api("operator").post("job/kill", job_ids=[job["PandaID"]])
    assert server.api("pilot").update(job["PandaID"], "running")["command"] == "tobekilled"
