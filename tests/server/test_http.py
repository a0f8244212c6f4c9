"""The server over HTTP: tokens, roles, arguments, bodies, files."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import stat
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from hpo_pilot.server.calls import BODY_LIMIT, TABLE
from hpo_pilot.server.file_store import CACHE_LIMIT
from hpo_pilot.server.tokens import Authority, Role
from tests.server.conftest import TOKENS, bearer, send
from tests.task_parameters import make_params


def test_new_and_revoked_tokens_need_no_restart(server: Any) -> None:
    path = "/api/v1/system/get_user_attributes"
    token, made = Authority(server.tokens).issue("new", Role.USER, 1)
    for _ in range(2):  # then it is remembered
        assert send(server, "GET", path, token).json()["data"]["user_dn_clean"] == "new"
    Authority(server.tokens).revoke(made.id)
    answer = send(server, "GET", path, token)
    refusal = f"the token {made.id} was revoked: ask for another (hpo-pilot token create)"
    assert (answer.status_code, answer.json()["message"]) == (401, f"Token authentication failed. {refusal}")
    assert send(server, "GET", path, "token-of-operator").json()["data"]["is_production_user"] is True
    token, _ = Authority(server.tokens).issue("new", Role.PILOT, 1, vo="atlas")
    for origin, status in {"atlas.pilot": 200, "cms": 401}.items():
        assert send(server, "GET", path, token, headers={"Origin": origin}).status_code == status


def test_a_wrong_method_or_version_is_refused(server: Any, user: Any) -> None:
    assert user.get("task/kill", task_id=1)["message"] == "expecting POST, received GET"
    assert user.post("task/get_status", task_id=1)["message"] == "expecting GET, received POST"
    assert send(server, "GET", "/api/v7/task/get_status", "token-of-me").status_code == 404
    assert send(server, "GET", "/api/latest/system/is_alive").status_code == 200


@pytest.mark.parametrize("path", ["task/nothing", "statistics/job_stats_by_cloud"])
@pytest.mark.parametrize("who", [None, "token-of-me", "token-of-operator"])
def test_a_call_that_is_not_provided(server: Any, path: str, who: str | None) -> None:
    refused = {"success": False, "message": f"{path} is not provided by this server", "data": None}
    for method in ("GET", "POST"):
        answer = send(server, method, f"/api/v1/{path}", who)
        assert (answer.status_code, answer.json()) == (404, refused)


def test_wrong_arguments_are_refused(user: Any, pilot: Any) -> None:
    assert user.get("task/get_status", task_id="x")["message"] == (
        "Type error: 'task_id' with value 'x' could not be casted to type int from str."
    )
    assert user.get("task/get_status", task_id="1e999")["success"] is False
    assert user.get("task/get_status", task_id=str(2**70))["success"] is False
    assert user.get("task/get_status", task_id=["1", "2"])["success"] is False
    assert user.get("task/get_status", task_id="987654.0")["message"] == "Task not found"
    assert user.get("task/get_status", task_id=1, more=2)["message"] == (
        "Argument error: got an unexpected keyword argument 'more'"
    )
    assert user.post("task/kill", task_id="1")["message"] == "Type error: 'task_id' must be of type int, got str."
    assert user.post("task/kill", task_id=True)["success"] is False
    assert user.post("task/submit", task_parameters=[])["message"] == (
        "Type error: 'task_parameters' must be of type dict, got list."
    )
    assert user.post("job/kill", job_ids=["1"])["message"] == "Type error: All elements in 'job_ids' must be int."
    assert user.get("job/get_description", job_ids=["987654", "987655"])["data"] == [None, None]
    assert pilot.post("pilot/update_job", job_id=1, job_status="odd") == {
        "success": False,
        "message": "Invalid job status: odd",
        "data": {"StatusCode": 50},
    }
    assert user.get("task/get_tasks_modified_since", since="yesterday")["data"] == {}
    assert user.get("task/get_tasks_detailed_info_since", filters="{")["message"] == "filters is not valid JSON"
    assert user.get("task/get_tasks_detailed_info_since", filters='{"odd": "1"}')["success"] is False
    assert user.get("task/get_tasks_detailed_info_since", filters='{"status": "("}')["data"] == []


@pytest.mark.parametrize(
    ("call", "success", "message", "data"),
    [
        ("task/get_status", False, "Task not found", None),
        ("task/get_details", False, "Task not found or error retrieving the details", None),
        ("task/get_datasets_and_files", False, "No data found for the task", None),
        ("task/get_task_parameters", False, "Task not found", None),
        ("task/get_detailed_info", False, "Task not found or error retrieving task info", None),
        ("task/get_job_ids", True, "", []),
        ("task/get_job_descriptions", True, "", []),
        ("job/get_metadata_for_analysis_jobs", True, "No metadata found", {}),
        *((f"task/{command}", False, "jediTaskID=-1 not found", 2) for command in ("kill", "pause", "reload_input")),
    ],
)
def test_calls_about_an_unknown_task(user: Any, call: str, success: bool, message: str, data: Any) -> None:
    """The answers of panda-server 1.0.4, which its own tests of its API check."""
    ask = user.post if data == 2 else user.get
    assert ask(call, task_id=-1) == {"success": success, "message": message, "data": data}


def test_a_slow_pattern_is_refused(user: Any) -> None:
    user.submit(make_params("user.me.slow/", 1, site="SLOW", cliParams="a" * 200 + "!"))
    filters = json.dumps({"raw_task_params": "(a|aa)+$"})
    reply = user.get("task/get_tasks_detailed_info_since", filters=filters)
    assert (reply["success"], "takes too long" in reply["message"]) == (False, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[1]", 400),
        (b"\xff\xfe", 200),
        (b'{"task_id": "\\ud800"}', 400),
        (b'{"task_id": "\\u0000"}', 400),
        (b"[" * 100_000, 400),
        (b" " * (BODY_LIMIT + 1), 413),
    ],
)
def test_invalid_bodies_are_refused(server: Any, body: bytes, status: int) -> None:
    kind = {"Content-Type": "application/json"} if status != 200 else {}
    answer = send(server, "POST", "/api/v1/task/kill", "token-of-me", data=body, headers=kind)
    assert (answer.status_code, answer.json()["success"]) == (status, False)


def test_compressed_bodies(server: Any) -> None:
    def post(body: bytes) -> requests.Response:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return send(server, "POST", "/api/v1/task/kill", "token-of-me", data=body, headers=headers)

    assert post(gzip.compress(b'{"task_id": 987654}')).json()["message"] == "jediTaskID=987654 not found"
    assert post(gzip.compress(b" " * (BODY_LIMIT + 1))).status_code == 413
    assert post(b"no gzip").status_code == 400
    assert post(gzip.compress(b'{"task_id": 987654}')[:-6]).status_code == 400, "its end is missing"


def test_a_user_cannot_submit_for_another(server: Any, user: Any) -> None:
    task_id = user.submit(make_params("user.me.for-you/", 1, site="FORYOU", userName="you", taskPriority=9999))
    info = user.get("task/get_detailed_info", task_id=task_id)["data"]
    assert (info["userName"], info["taskPriority"]) == ("me", 1000)
    operator = server.api("operator")
    task_id = operator.submit(make_params("user.you.for-you/", 1, site="FORYOU", userName="you"))
    assert user.get("task/get_detailed_info", task_id=task_id)["data"]["userName"] == "you"


def test_a_broken_task_has_an_error_dialog(user: Any) -> None:
    task_id = user.submit(make_params("user.me.broken/", 1, nEvents="some"))
    info = user.get("task/get_detailed_info", task_id=task_id)["data"]
    assert (info["status"], info["errorDialog"]) == ("broken", "nEvents must be a whole number, not 'some'")
    assert user.get("task/get_details", task_id=task_id)["success"] is True
    assert user.get("task/get_datasets_and_files", task_id=task_id)["message"] == "No data found for the task"


UNSAFE = ["..%2Ftokens.json", "%2e%2e", ".hidden", "a%00b", "a%2Fb", "x" * 300, "a.part", "-rf", "%C3%A4"]


@pytest.mark.parametrize("name", [*UNSAFE, "../tokens.json", "../../tokens.json", "/etc/passwd"])
def test_unsafe_file_names_are_refused(server: Any, name: str) -> None:
    """The names are sent unchanged: http.client does not normalise paths."""
    parts = urlsplit(server.url)
    headers = {"Authorization": f"Bearer {bearer('token-of-operator')}"}
    for method, folder in (("GET", "cache"), ("GET", "storage"), ("PUT", "storage"), ("DELETE", "storage")):
        with contextlib.closing(http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)) as connection:
            connection.request(method, f"/{folder}/{name}", body=b"x", headers=headers)
            assert connection.getresponse().status in (400, 404, 405)
    assert not (server.folder / "files" / "x").exists()


@pytest.mark.parametrize("name", ["../sources.x", "/etc/sources.y", "a/b/sources.z"])
def test_uploads_go_to_the_cache_without_their_folders(server: Any, user: Any, name: str) -> None:
    assert user.upload(name, b"content")["success"] is True
    path = server.folder / "files" / "cache" / name.rsplit("/", 1)[-1]
    assert path.read_bytes() == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_size_limits_of_uploads(server: Any, user: Any) -> None:
    assert user.upload("jobO.small", b"\0" * CACHE_LIMIT)["success"] is True
    too_large = user.upload("jobO.large", b"\0" * (CACHE_LIMIT + 1))
    assert too_large["success"] is False
    assert too_large["message"].startswith("ERROR: upload failure. Exceeded size limit 10 MB > 10 MB.")
    assert user.upload("sources.large", b"\0" * (CACHE_LIMIT + 1))["success"] is True
    left = [path.name for path in (server.folder / "files" / "cache").iterdir()]
    assert not [name for name in left if name.endswith(".part") or name == "jobO.large"]


@pytest.mark.parametrize(
    "more",
    [
        {"data": b"x"},
        {"json": {"file": "x"}},
        {"files": {"other": ("sources.a", b"x")}},
        {"data": b"--b\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"data": b"nonsense", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"data": b"x", "headers": {"Content-Type": f"multipart/form-data; boundary={'a' * 300}"}},
    ],
)
def test_uploads_without_a_file_are_refused(server: Any, more: dict[str, Any]) -> None:
    answer = send(server, "POST", "/api/v1/file_server/upload_cache_file", "token-of-me", **more)
    assert (answer.status_code, answer.json()["success"]) == (200, False)


def test_an_incomplete_upload_is_removed(server: Any) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    cache = server.folder / "files" / "cache"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="sources.cut"\r\n\r\nhalf of it'
    head = (
        "POST /api/v1/file_server/upload_cache_file HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {bearer('token-of-me')}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000\r\n\r\n"
    )
    deadline = time.monotonic() + 600
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(head.encode() + part)
        while not list(cache.glob("*.part")):
            assert time.monotonic() < deadline, "it has not begun"
            time.sleep(0.01)
    while list(cache.glob("*.part")):
        assert time.monotonic() < deadline, "the half stays"
        time.sleep(0.01)
    assert not (cache / "sources.cut").exists()


def test_a_touched_sandbox(user: Any) -> None:
    user.upload("sources.touched", b"content")
    assert user.post("file_server/touch_cache_file", file_name="sources.touched")["success"] is True
    assert user.post("file_server/touch_cache_file", file_name="sources.none")["success"] is False


def test_all_files_are_private(server: Any, user: Any) -> None:
    user.get("system/is_alive")
    for path in (server.folder / "files").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for path in server.folder.glob("panda.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_tokens_are_neither_stored_nor_logged(server: Any) -> None:
    assert send(server, "GET", "/api/v1/system/get_user_attributes", "token-of-me").status_code == 200
    for path in [*server.tokens.iterdir(), server.log, *server.folder.glob("panda.db*")]:
        for alias in TOKENS:
            assert bearer(alias).rsplit(".", 1)[1].encode() not in path.read_bytes(), path


@pytest.mark.parametrize("path", sorted(TABLE))
def test_no_argument_breaks_a_call(server: Any, path: str) -> None:
    """Invalid numbers, lists, empty values: the status is below 500."""
    endpoint = TABLE[path]
    odd: list[Any] = ["", "NULL", "é", "../x", -1, 0, 2**63, 1e300, None, True, [], [None], [""], {}, {"a": []}]
    fitting = {int: 1, str: "x", bool: False, float: 0.5, list: [], dict: {}}
    good = {name: fitting[each.kinds[0]] for name, each in endpoint.parameters.items() if each.required}
    method = endpoint.method or "POST"
    who = "token-of-operator"
    for name in endpoint.parameters:
        for value in odd:
            if path == "hpo_pilot/changes" and name == "timeout" and value is not None:
                continue  # it would wait
            given = good | {name: value}
            how: dict[str, Any] = {"params": given} if method == "GET" else {"json": given}
            answer = send(server, method, f"/api/v1/{path}", who, **how)
            assert answer.status_code < 500, (given, answer.text)
