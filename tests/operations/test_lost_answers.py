"""Answers of a service that get lost on their way: calls are repeated, and nothing is done twice."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import requests

from hpo_pilot import connect
from hpo_pilot.errors import TryAgainError
from hpo_pilot.operations import client as operations_client
from tests.rest_api import start_api, write_search

from .conftest import Answer, good, http_service, problem, search


def test_reading_is_repeated(fake, token_file):
    fake.answers = [None, problem(503, "try_again"), (502, {}, b""), good([])]
    with pytest.raises(TryAgainError):
        connect(fake.url, token_file).searches()
    assert connect(fake.url, token_file).searches() == []


@pytest.mark.parametrize(("change", "state"), [("pause", "paused"), ("stop", "stopping"), ("resume", "running")])
def test_a_change_whose_answer_is_lost_is_looked_for(fake, token_file, change, state):
    fake.answers = [None, good(search(state)), good(search("never asked"))]
    assert getattr(connect(fake.url, token_file), change)("x")["state"] == state
    assert [seen[0] for seen in fake.seen] == ["POST", "GET"]


def test_a_change_that_did_not_arrive_is_made(fake, token_file):
    fake.answers = [None, good(search("running")), good(search("paused"))]
    assert connect(fake.url, token_file).pause("x")["state"] == "paused"
    assert [seen[0] for seen in fake.seen] == ["POST", "GET", "POST"]


def test_an_extension_says_what_it_extends(fake, token_file):
    fake.answers = [good(search("done")), None, good(search("running", 69))]
    connect(fake.url, token_file).extend("x", {"trials": 5})
    bodies = [json.loads(seen[3]) for seen in fake.seen[1:]]
    assert bodies == [{"add": {"trials": 5}, "seen": {"trials": 64}}] * 2


def test_a_submission_is_repeated_under_its_key(tmp_path, token_file, fake):
    path = write_search(tmp_path / "mine", "x", payload={"command": "true"})
    examined = {"valid": True, "problems": [], "notes": [], "search": {}, "named_files": None}
    fake.answers = [good(examined), None, None, good(search("submitted"))]
    connect(fake.url, token_file).submit(path)
    assert [seen[1].partition("?")[0] for seen in fake.seen] == ["/api/v1/examinations"] + ["/api/v1/searches"] * 3


def test_a_registration_whose_answer_is_lost_is_one(tmp_path):
    """Through a proxy that loses the first answer of the real API to each kind of change."""
    lost: list[str] = []

    def losing(method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        headers = {name: value for name, value in headers.items() if name.lower() != "host"}
        answer = requests.request(method, api.url + path, headers=headers, data=body, timeout=600)
        kind = path.partition("?")[0].rsplit("/", 1)[-1]
        if method == "POST" and kind in ("searches", "extend") and kind not in lost:
            lost.append(kind)
            return None
        return answer.status_code, {"Content-Type": answer.headers["Content-Type"]}, answer.content

    with start_api(tmp_path / "api") as api, http_service(losing) as url:
        client = connect(url, api.token_file("alice"))
        document = client.submit(write_search(tmp_path / "mine", "once"))
        assert (lost, document["id"], len(client.searches())) == (["searches"], 1, 1)
        assert client.extend("once", {"trials": 5})["budget"]["trials"] == 9
        assert lost == ["searches", "extend"]
        client.submit(write_search(tmp_path / "mine", "pair", segments=["one", "two"]))
        lost.remove("extend")
        segments = client.extend("pair", {"trials": 5})["segments"]
        assert [segment["budget"]["trials"] for segment in segments] == [9, 9]
        assert lost == ["searches", "extend"]
        token = {"Authorization": f"Bearer {api.token_file('alice').read_text().strip()}"}
        body = {"add": {"trials": 5}, "seen": {"trials": 9}}  # whose budget was seen is not known
        refused = requests.post(f"{api.url}/api/v1/searches/pair/extend", json=body, headers=token, timeout=600)
        assert 400 <= refused.status_code < 500
        assert [segment["budget"]["trials"] for segment in client.status("pair")["segments"]] == [9, 9]


def test_watching_outlives_a_restart_of_the_service(fake, token_file, monkeypatch):
    monkeypatch.setattr(operations_client, "_PAUSE", 0.01)
    progress = {"state": "running", "trials": {}, "total": 4, "best": None, "name": "x", "metric": "loss"}
    tagged = (200, {"ETag": '"1"'}, json.dumps(progress).encode())
    fake.answers = [tagged, *[None] * 9, (304, {}, b""), good({**progress, "state": "done"})]
    states = [now["state"] for now in connect(fake.url, token_file).watch("x")]
    assert states == ["running", "done"]
