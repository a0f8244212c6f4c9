"""Sandboxes in a server's file cache."""

from __future__ import annotations

import pytest

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.panda.client_process import MissingCallError
from hpo_pilot.panda.sandbox_cache import SandboxCache


class Client:
    """What panda-client answers, and what was asked."""

    def __init__(self, touched=True, put=(0, "True")):
        self.asked = []
        self._answers = {"touchFile": touched, "putFile": put, "sourceURL": "https://cache:25443"}

    def call(self, name, *_arguments, deadline=60.0):
        self.asked.append(name)
        answer = self._answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def sandbox(tmp_path):
    path = tmp_path / "sources.abc.tar.gz"
    path.write_bytes(b"x")
    return path


def test_a_file_that_is_there_is_touched_twice_a_day(sandbox):
    client, now = Client(), [0.0]
    cache = SandboxCache(client, use_cache_server=False, clock=lambda: now[0])
    for hours in (0, 1, 11, 13, 14):
        now[0] = hours * 3600.0
        assert cache.keep(sandbox) == "https://cache:25443"
    assert client.asked.count("touchFile") == 2
    assert "putFile" not in client.asked


@pytest.mark.parametrize("touched", [False, MissingCallError("the server has no such call")])
def test_a_file_that_cannot_be_touched_is_sent(sandbox, touched):
    client = Client(touched, put=(0, "cannot overwrite the file"))
    SandboxCache(client, use_cache_server=False).keep(sandbox)
    assert client.asked == ["touchFile", "putFile", "sourceURL"]


def test_a_server_that_takes_none_now_is_asked_again(sandbox):
    cache = SandboxCache(Client(False, put=(0, "disk is full")), use_cache_server=False)
    with pytest.raises(TryAgainError, match="disk is full"):
        cache.keep(sandbox)


def test_a_file_that_nobody_has_ends_the_search(sandbox):
    sandbox.unlink()
    with pytest.raises(GiveUpError, match="--new-payload"):
        SandboxCache(Client(False), use_cache_server=False).keep(sandbox)
