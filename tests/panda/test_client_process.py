"""panda-client behind a guard: it may hang, exit and print; our deadline holds, and the next call works."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.panda.client_process import ClientProcess, DeniedError, MissingCallError, NoAnswerError, RefusedError
from hpo_pilot.panda.server import PandaServer
from tests.answering import answering


@pytest.fixture
def serve():
    """Starts servers whose answers are `answer(path)`."""
    with contextlib.ExitStack() as stack:
        yield lambda answer: stack.enter_context(answering(answer))


@pytest.fixture
def always(serve):
    """Starts servers that give one answer to everything."""
    return lambda status, body: serve(lambda _path: (status, body))


@pytest.fixture
def client(tmp_path):
    made: list[ClientProcess] = []

    def make(url):
        token = tmp_path / "token"
        token.write_text("t")
        made.append(ClientProcess(PandaServer(url, token, "me").environment(), tmp_path / "client.log"))
        return made[-1]

    yield make
    for process in made:
        process.close()


def test_a_server_that_never_answers_costs_no_more_than_the_deadline(client, serve):
    ended = threading.Event()
    process = client(serve(lambda _path: (None, ended.wait(600))))
    with pytest.raises(NoAnswerError, match="did not answer within 1 s"):
        process.call("getTaskStatus", 1, deadline=1.0)
    ended.set()


def test_a_refused_connection_is_known_as_such(client):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(RefusedError, match=f"{url} cannot be reached: .*refused"):
        client(url).call("getTaskStatus", 1)


@pytest.mark.parametrize(
    ("status", "body", "error", "said"),
    [
        (403, b"Invalid token. Signature has expired", DeniedError, "Signature has expired.*nothing is lost.*pbook"),
        (404, b"", MissingCallError, "no such call"),
        (429, b"slow down", RefusedError, "busy"),
        (502, b"<html><h1>Proxy  Error</h1></html>", NoAnswerError, r"fails \(502: Proxy Error\)"),
        (503, b"", RefusedError, "busy"),
    ],
)
def test_what_panda_client_swallows_comes_back_as_an_error_of_ours(client, always, status, body, error, said):
    with pytest.raises(error, match=f"(?s){said}"):
        client(always(status, body)).call("getTaskStatus", 1)


def test_an_answer_that_is_cut_off_leaves_it_open_what_happened(client, always):
    with pytest.raises(NoAnswerError, match="was lost"):
        client(always(None, b"")).call("insertTaskParams", {})


def test_a_missing_token_is_an_error_and_no_login(tmp_path, always, monkeypatch):
    for name in ("PANDA_AUTH_ID_TOKEN", "OIDC_AUTH_TOKEN_FILE", "OIDC_AUTH_ID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    endpoints = {"token_endpoint": "http://127.0.0.1:1/", "device_authorization_endpoint": "http://127.0.0.1:1/"}
    url = always(200, json.dumps(endpoints).encode())
    oidc = {"oidc_config_url": url, "client_id": "c", "client_secret": "", "audience": "a"}
    url = always(200, json.dumps(oidc).encode())
    for name, value in (("PANDA_AUTH", "oidc"), ("PANDA_AUTH_VO", "atlas"), ("PANDA_CONFIG_ROOT", str(tmp_path))):
        monkeypatch.setenv(name, value)
    process = ClientProcess(PandaServer(url, None, "me").environment(), tmp_path / "client.log")
    try:
        with pytest.raises(DeniedError, match=r"no valid token, and no user here to log in.*pbook"):
            process.call("getTaskStatus", 1)
    finally:
        process.close()


def test_the_nickname_is_panda_client_s(tmp_path, monkeypatch):
    claims = base64.urlsafe_b64encode(json.dumps({"name": "Ann Other", "preferred_username": "aother"}).encode())
    monkeypatch.setenv("PANDA_AUTH", "oidc")
    monkeypatch.setenv("PANDA_AUTH_VO", "atlas")
    token = f"e30.{claims.decode().rstrip('=')}.c2ln"
    nick = {"PANDA_AUTH_ID_TOKEN": "of another make", "PANDA_NICKNAME": "nick"}
    cases = [
        ({"PANDA_AUTH_ID_TOKEN": token}, "aother"),
        ({"PANDA_NICKNAME_REPLACE": "/aoth/boss/"}, "bosser"),
        (nick, "nick"),
    ]
    for variables, name in cases:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        process = ClientProcess(PandaServer("http://127.0.0.1:1", None, "").environment(), tmp_path / "client.log")
        assert process.call("nickname") == name
        process.close()


def test_the_user_s_own_settings_do_not_reach_an_embedded_server(tmp_path, monkeypatch):
    monkeypatch.setenv("PANDA_AUTH_ID_TOKEN", "of the collaboration")
    monkeypatch.setenv("PANDACACHE_URL", "https://cache.example.org/server/panda")
    environment = PandaServer("http://127.0.0.1:7", tmp_path / "token", "me").environment()
    assert "PANDA_AUTH_ID_TOKEN" not in environment
    assert environment["PANDACACHE_URL"] == environment["PANDA_URL_SSL"] == "http://127.0.0.1:7/server/panda"


def test_a_cache_that_nobody_knows_is_a_server_out_of_reach(tmp_path, monkeypatch):
    monkeypatch.setenv("PANDA_URL_SSL", "http://127.0.0.1:1/server/panda")
    monkeypatch.setenv("PANDACACHE_URL", "http://no.such.host.invalid/server/panda")
    monkeypatch.delenv("PANDA_BEHIND_REAL_LB", raising=False)
    environment = PandaServer("http://127.0.0.1:1", None, "me").environment()
    del environment["PANDA_BEHIND_REAL_LB"]
    process = ClientProcess(environment, tmp_path / "client.log")
    for _ in range(2):
        with pytest.raises(RefusedError, match="PANDACACHE_URL host"):
            process.call("getTaskStatus", 1)
    process.close()


def test_only_the_calls_that_we_use_can_be_made(client):
    process = client("http://127.0.0.1:1")
    with pytest.raises(TryAgainError, match="not one of"):
        process.call("submitJobs", [])


def test_a_call_that_exits_is_an_error_and_the_next_call_works(client, tmp_path):
    process = client("http://127.0.0.1:1")
    (tmp_path / "token").unlink()  # panda-client then raises inside the call
    with pytest.raises(TryAgainError, match="panda-client: getTaskStatus"):
        process.call("getTaskStatus", 1)
    (tmp_path / "token").write_text("t")
    with pytest.raises(RefusedError):
        process.call("getTaskStatus", 1)


def test_a_call_that_hangs_holds_up_no_other(client, serve):
    arrived, let_go = threading.Event(), threading.Event()

    def answer(path):
        if "task_id=1" in path:
            arrived.set()
            let_go.wait(600)
        return 200, json.dumps({"success": True, "message": "", "data": "running"}).encode()

    process = client(serve(answer))
    answers = []
    slow = threading.Thread(target=lambda: answers.append(process.call("getTaskStatus", 1)), daemon=True)
    slow.start()
    try:
        assert arrived.wait(600)
        assert process.call("getTaskStatus", 2) == [0, "running"]
        assert not answers
    finally:
        let_go.set()
    slow.join(600)
    assert answers == [[0, "running"]]
