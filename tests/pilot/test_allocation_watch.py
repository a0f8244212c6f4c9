from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hpo_pilot.launchers import make_launcher
from hpo_pilot.pilot.allocation import Allocation
from hpo_pilot.pilot.allocation_room import AllocationRoom
from hpo_pilot.pilot.allocation_watch import AllocationWatch
from hpo_pilot.pilot.site import Site
from hpo_pilot.scheduling import Node, NodeShape

ALLOCATION = Allocation((Node("n1", NodeShape(4, 4000)),), 1e4)
SITE = Site(launcher=make_launcher({"name": "srun"}))


@pytest.fixture
def room() -> AllocationRoom:
    return AllocationRoom(ALLOCATION, SITE, margin=0.0, when_lost=lambda *_: None)


@pytest.fixture
def watch(room: AllocationRoom) -> Iterator[Callable[[float], threading.Event]]:
    """Starts one; returns what is set when it ends the pilot."""
    watches: list[AllocationWatch] = []

    def start(idle: float) -> threading.Event:
        ended = threading.Event()
        watches.append(AllocationWatch(room, SITE, ALLOCATION, margin=0.0, idle=idle, end=ended.set))
        watches[-1].start()
        return ended

    yield start
    for one in watches:
        one.stop()


def test_an_allocation_without_jobs_is_given_back(watch: Callable[[float], threading.Event]) -> None:
    began = time.monotonic()
    assert watch(0.2).wait(20) and time.monotonic() - began >= 0.2


def test_not_while_there_is_a_job(room: AllocationRoom, watch: Callable[[float], threading.Event]) -> None:
    claim = room.claim({"PandaID": 1, "attemptNr": 1})
    ended = watch(0.2)
    assert not ended.wait(2.5)
    room.give_back(claim)
    assert ended.wait(20)


def test_never_where_nobody_wants_it(watch: Callable[[float], threading.Event]) -> None:
    assert not watch(0).wait(1.2)
