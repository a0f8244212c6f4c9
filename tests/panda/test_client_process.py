"""panda-client behind a guard: it may hang, exit and print; our deadline holds, and the next call works."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from hpo_pilot.errors import TryAgainError
from hpo_pilot.panda.client_process import ClientProcess, NoAnswerError
from hpo_pilot.panda.manager import PandaServer


@pytest.fixture
def silent_server():
    """Takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept():
        while True:
            try:
                taken.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    for connection in taken:
        connection.close()


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


def test_a_server_that_never_answers_costs_no_more_than_the_deadline(client, silent_server):
    process = client(silent_server)
    begun = time.monotonic()
    with pytest.raises(NoAnswerError, match="did not answer within 2 s"):
        process.call("getTaskStatus", 1, deadline=2.0)
    assert time.monotonic() - begun < 10


def test_a_refused_connection_is_an_answer(client):
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    status, _ = client(url).call("getTaskStatus", 1)
    assert status == 255


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
    assert process.call("getTaskStatus", 1)[0] == 255
