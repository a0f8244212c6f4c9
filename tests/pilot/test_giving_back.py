from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from hpo_pilot.pilot.client import GivingBack, ServerAway
from tests.pilot.conftest import in_background


class Server:
    """Takes back what is even; the first call takes until the test says so."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, int]]] = []
        self.called, self.go_on = threading.Event(), threading.Event()
        self.is_away = False

    def give_back(self, attempts: Sequence[tuple[int, int]]) -> Collection[int]:
        self.calls.append(list(attempts))
        self.called.set()
        assert self.go_on.wait(600)
        if self.is_away:
            raise ServerAway("away")
        return [panda_id for panda_id, _ in attempts if panda_id % 2 == 0]


def give(server: Any, count: int) -> list[Any]:
    giving = GivingBack(server)
    first = in_background(giving.give, 0, 1)
    assert server.called.wait(600)
    others = [in_background(giving.give, number, 1) for number in range(1, count)]
    end = time.monotonic() + 600
    while len(giving._waiting) < count - 1 and time.monotonic() < end:
        time.sleep(0.01)
    server.go_on.set()
    return [one.exception(600) or one.result() for one in (first, *others)]


def test_those_that_come_meanwhile_go_together():
    server = Server()
    assert give(server, 40) == [number % 2 == 0 for number in range(40)]
    assert [len(call) for call in server.calls] == [1, 39]


def test_everybody_hears_of_a_server_that_is_away():
    server = Server()
    server.is_away = True
    assert all(isinstance(one, ServerAway) for one in give(server, 5))
    with pytest.raises(ServerAway):
        GivingBack(server).give(1, 1)  # type: ignore[arg-type]
