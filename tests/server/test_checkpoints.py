"""Checkpoints of points, and files of the cache that may be overwritten."""

from __future__ import annotations

from typing import Any

import requests

from tests.server.conftest import Api
from tests.task_parameters import make_params


def keep(api: Api, name: str, content: bytes) -> Any:
    return api.upload(name, content, "upload_hpo_checkpoint")


def get(api: Api, path: str) -> requests.Response:
    return api.session.get(f"{api.url}{path}", timeout=600)


def test_checkpoints(server: Any, user: Api) -> None:
    task_id = user.submit(make_params("user.me.checkpoint/", site="CHECKPOINT"))
    pilot, you = server.api("pilot"), server.api("you")
    assert not keep(pilot, f"{task_id}_5", b"early")["success"]
    pilot.acquire(site_name="CHECKPOINT")
    path = f"/cache/hpo_cp_{task_id}_5"
    for content in (b"first", b"second"):
        assert keep(pilot, f"{task_id}_5", content)["data"] == f"{server.url}{path}"
    assert get(pilot, path).content == get(user, path).content == b"second"
    assert get(you, path).status_code == 403
    assert not keep(you, f"{task_id}_5", b"theirs")["success"]
    assert not user.upload(f"hpo_cp_{task_id}_6", b"no sandbox")["success"]
    assert not keep(you, "987654_5", b"nobody's")["success"]
    assert not keep(pilot, "987654_5", b"nobody's")["success"]
    for name in ("odd", "x_y", f"{task_id}_", "_", f"{task_id}_a_b"):
        assert not keep(pilot, name, b"x")["success"]
    assert get(user, path).content == b"second"
    delete = "file_server/delete_hpo_checkpoint"
    assert you.post(delete, task_id=str(task_id), sub_id="5")["success"] is False
    assert user.post(delete, task_id=str(task_id), sub_id="5")["success"] is True
    assert user.post(delete, task_id=str(task_id), sub_id="5")["success"] is False
    assert get(pilot, path).status_code == 404


def test_only_the_owner_overwrites_a_cache_file(server: Any, user: Api) -> None:
    for content in (b"first", b"second"):
        assert user.upload("list.__ow__", content)["success"]
    refused = server.api("you").upload("list.__ow__", b"x")
    assert refused["message"] == "ERROR: cannot overwrite file"
    assert get(user, "/cache/list.__ow__").content == b"second"
