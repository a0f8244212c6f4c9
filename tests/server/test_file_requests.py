"""Logs, checkpoints and the other files that are no sandboxes."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
import requests

from hpo_pilot.server.api import file_requests as api_file_requests
from tests.server.conftest import Api
from tests.task_parameters import make_params


def send(api: Api, call: str, name: str, content: bytes, base: str = "/api/v1/file_server") -> Any:
    answer = api.session.post(f"{api.url}{base}/{call}", files={"file": (name, content)}, timeout=20)
    assert answer.status_code == 200
    return json.loads(answer.text)


def get(api: Api, path: str) -> requests.Response:
    return api.session.get(f"{api.url}{path}", timeout=20)


def test_a_log_is_kept_and_grows(server: Any, user: Api) -> None:
    operator = server.api("operator")
    reply = send(operator, "upload_jedi_log", "jedi.log", "Zeile eins ä\n".encode())
    assert reply["data"] == f"{server.url}/cache/jedilog/jedi.log"
    assert send(operator, "update_jedi_log", "jedi.log", zlib.compress(b"line two\n"))["success"]
    assert get(user, "/cache/jedilog/jedi.log").content == "Zeile eins ä\nline two\n".encode()
    whole = get(user, "/api/v1/file_server/download_jedi_log?log_name=jedi.log")
    assert (whole.text, whole.headers["content-type"]) == (" Zeile eins ä\nline two\n", "text/plain; charset=utf-8")
    assert get(user, "/api/v1/file_server/download_jedi_log?log_name=jedi.log&offset=14").text == " line two\n"
    assert get(user, "/api/v1/file_server/download_jedi_log?log_name=../tokens").text == " "
    assert send(operator, "update_jedi_log", "other.log", b"not packed")["message"].startswith("ERROR: cannot update")
    assert send(operator, "update_jedi_log", "cut.log", zlib.compress(b"x" * 999)[:-5])["success"] is False
    assert get(user, "/cache/jedilog/cut.log").status_code == 404
    assert send(user, "upload_jedi_log", "jedi.log", b"x")["message"] == "production or pilot role required"


def test_a_log_does_not_grow_without_end(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zlib.compress(bytes(api_file_requests.LOG_LIMIT + 1), 9)
    reply = send(server.api("operator"), "update_jedi_log", "bomb.log", bomb)
    assert reply["success"] is False
    assert "Exceeded size limit" in reply["message"]
    assert not [path for path in (server.folder / "files" / "logs").iterdir() if path.name != "jedi.log"]


@pytest.mark.parametrize("legacy", [False, True])
def test_checkpoints(server: Any, user: Api, legacy: bool) -> None:
    base = "/server/panda" if legacy else "/api/v1/file_server"
    upload, done = ("put_checkpoint", "status") if legacy else ("upload_hpo_checkpoint", "success")
    task_id = user.submit(make_params(f"user.me.checkpoint{legacy}/", site="CHECKPOINT"))
    pilot, you = server.api("pilot"), server.api("you")
    assert send(pilot, upload, f"{task_id}_5", b"early", base)[done] is False
    pilot.acquire(site_name="CHECKPOINT")
    for content in (b"first", b"second"):
        assert send(pilot, upload, f"{task_id}_5", content, base)[done] is True
    path = f"/cache/hpo_cp_{task_id}_5"
    assert get(pilot, path).content == get(user, path).content == b"second"
    assert get(you, path).status_code == 403
    assert send(you, upload, f"{task_id}_5", b"theirs", base)[done] is False
    assert send(you, upload, "987654_5", b"nobody's", base)[done] is False
    assert send(pilot, upload, "987654_5", b"nobody's", base)[done] is False
    for name in ("odd", "x_y", f"{task_id}_", "_", f"{task_id}_a_b"):
        assert send(pilot, upload, name, b"x", base)[done] is False
    assert get(user, path).content == b"second"
    if legacy:
        answer = requests.post(f"{server.url}{base}/{upload}", files={"file": (f"{task_id}_5", b"x")}, timeout=10)
        assert answer.json() == {"status": False, "message": "insecure request"}
        remove = user.session.post(
            f"{server.url}{base}/delete_checkpoint", data={"task_id": task_id, "sub_id": "5"}, timeout=10
        )
        assert remove.json()["status"] is True
    else:
        assert you.post("file_server/delete_hpo_checkpoint", task_id=str(task_id), sub_id="5")["success"] is False
        assert user.post("file_server/delete_hpo_checkpoint", task_id=str(task_id), sub_id="5")["success"] is True
        assert user.post("file_server/delete_hpo_checkpoint", task_id=str(task_id), sub_id="5")["success"] is False
    assert get(pilot, path).status_code == 404


def test_a_cache_file_that_may_be_overwritten_is_overwritten_by_its_owner_alone(server: Any, user: Api) -> None:
    for content in (b"first", b"second"):
        assert send(user, "upload_cache_file", "list.__ow__", content)["success"]
    refused = send(server.api("you"), "upload_cache_file", "list.__ow__", b"x")
    assert refused["message"] == "ERROR: cannot overwrite file"
    assert get(user, "/cache/list.__ow__").content == b"second"


def test_registering_a_cache_file(server: Any, user: Api) -> None:
    operator = server.api("operator")
    send(user, "upload_cache_file", "sources.mine", b"12345678")
    known = {"user_name": "me", "file_name": "sources.mine", "checksum": "1"}
    register = "file_server/register_cache_file"
    assert operator.post(register, file_size=8, **known)["message"] == "file already registered"
    assert operator.post(register, file_size=9, **known)["success"] is False
    path = server.folder / "files" / "cache" / "sources.put"
    path.write_bytes(b"put there by hand")
    reply = operator.post(
        "file_server/register_cache_file", user_name="me", file_name="sources.put", file_size=17, checksum="7"
    )
    assert reply["success"] is True
    found = user.post("file_server/validate_cache_file", file_size=17, checksum=7)
    assert found["message"] == "FOUND:127.0.0.1:sources.put"
    assert user.post("file_server/delete_cache_file", file_name="sources.put")["success"] is True
    assert path.exists(), "as on a real server: another task may need it"


def test_requests_to_daemons_that_are_not(server: Any, user: Api) -> None:
    recover = "file_server/upload_file_recovery_request"
    assert user.post(recover)["message"] == "Either task_id or dataset must be provided"
    assert "no data management" in user.post(recover, dataset="x:y")["message"]
    theirs = server.api("you").submit(make_params("user.you.lost/", site="YOURS"))
    assert user.post(recover, task_id=theirs)["message"] == "not the task owner or no production role"
    workflow = "file_server/upload_workflow_request"
    assert user.post(workflow, data="{")["message"].startswith("Cannot upload the workflow request: Expecting")
    assert "no workflow engine" in user.post(workflow, data="{}")["message"]
    picking = "file_server/upload_event_picking_request"
    assert "no event index" in user.post(picking, run_event_list="1 2")["message"]
    assert "too large" in user.post(picking, run_event_list="x" * (api_file_requests.CACHE_LIMIT + 1))["message"]


@pytest.mark.parametrize(
    ("name", "form", "answer"),
    [
        ("relay_idds_command", {"command_name": "x"}, [False, "SSL secure connection is required"]),
        ("execute_idds_workflow_command", {"command_name": "x"}, [False, "SSL secure connection is required"]),
        ("put_workflow_request", {"data": "{}"}, [False, "SSL secure connection is required"]),
        ("put_file_recovery_request", {"jediTaskID": "1"}, [False, "SSL secure connection is required"]),
        ("putEventPickingRequest", {}, "SSL secure connection is required"),
        ("delete_checkpoint", {"task_id": "1", "sub_id": "1"}, {"status": False, "message": "insecure request"}),
    ],
)
def test_legacy_calls_want_a_token(server: Any, user: Api, name: str, form: dict[str, str], answer: Any) -> None:
    url = f"{server.url}/server/panda/{name}"
    text = requests.post(url, data=form, timeout=10).text
    assert (text if isinstance(answer, str) else json.loads(text)) == answer
    assert "SSL" not in user.session.post(url, data=form, timeout=10).text
