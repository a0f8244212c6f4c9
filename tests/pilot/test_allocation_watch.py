from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import Remainder
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.jobs.resources import Node, NodeShape
from hpo_pilot.pilot import allocation_watch
from hpo_pilot.pilot.allocation import AllocatedNodes
from hpo_pilot.pilot.allocation_pool import AllocationPool, AllocationReservation
from hpo_pilot.pilot.allocation_watch import AllocationWatch
from hpo_pilot.pilot.job import GivenBack, parse_job
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadSettings
from tests.pilot.conftest import in_background

ALLOCATION = AllocatedNodes((Node("n1", NodeShape(4, 4000)),), 1e4)
SITE = Site(launcher=make_launcher({"name": "srun"}))


@pytest.fixture
def room():
    return AllocationPool(ALLOCATION, SITE, margin=0.0, when_lost=lambda *_: None)


@pytest.fixture
def watch(room):
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


def test_an_allocation_without_jobs_is_given_back(room, watch, monkeypatch):
    monkeypatch.setattr(allocation_watch, "_TICK", 0.05)
    began = time.monotonic()
    assert watch(0.2).wait(600) and time.monotonic() - began >= 0.2
    claim = room.reserve({"PandaID": 1, "attemptNr": 1})
    ended = watch(0.2)
    assert not ended.wait(0.5), "there is a job"
    room.free(claim)
    assert ended.wait(600)


@pytest.fixture
def three():
    """Of three nodes, of which the batch system takes the second away as soon as it is asked."""
    nodes = tuple(Node(name, NodeShape(4, 4000)) for name in ("n1", "n2", "n3"))
    return AllocatedNodes(nodes, 1e4, remainder=lambda: Remainder(("n2",)))


def test_a_lost_node_drains_nothing(three, tmp_path, monkeypatch, until):
    monkeypatch.setattr(allocation_watch, "_TICK", 0.05)
    ended = threading.Event()
    room = AllocationPool(three, SITE, margin=0.0, when_lost=lambda *_: None)
    watch = AllocationWatch(room, SITE, three, margin=0.0, idle=0, end=ended.set)

    draining = threading.Event()

    def begin(number: int) -> tuple[AllocationReservation, tuple[str, ...]]:
        data = {"PandaID": number, "attemptNr": 1, "jobPars": "-a s.tar.gz -p x", "coreCount": 4}
        job, claim = parse_job(data), room.reserve(data)
        return claim, room.assign(claim, job, PayloadSettings(minutes=5.0), StartingJob(job, tmp_path, draining)).nodes

    claims = [begin(number) for number in (1, 2)]
    assert [nodes for _, nodes in claims] == [("n1",), ("n2",)]
    watch.start()
    room.note_launch(claims[1][0], ["n2"])  # a failed launch: it is asked at once
    until(lambda: "n2" not in room.up)
    assert begin(3)[1] == ("n3",)
    room.free(claims[1][0], Ending.LOST)
    room.free(claims[0][0], Ending.FINISHED)
    assert begin(4)[1] == ("n1",) and not ended.is_set()
    room.lose("n1", "gone")
    room.lose("n3", "gone")
    assert ended.wait(600)
    watch.stop()


def test_a_batch_system_that_does_not_answer_is_not_asked_for_each_job(room, until):
    asked, answers = [], threading.Event()

    def remainder() -> Remainder:
        asked.append(1)
        assert answers.wait(600)
        raise InputError("squeue has not answered")

    given = AllocatedNodes(ALLOCATION.nodes, 1e4, remainder=remainder)
    watch = AllocationWatch(room, SITE, given, margin=0.0, idle=0, end=lambda: None)
    came: list[int] = []
    told = [in_background(lambda: (came.append(1), watch.ends_soon())[1]) for _ in range(5)]
    until(lambda: asked and len(came) == 5)
    threading.Event().wait(0.2)  # the others wait behind it
    answers.set()
    assert [one.result(600) for one in told] == [False] * 5
    assert len(asked) <= 2


def test_an_allocation_that_ends_sooner_starts_no_more_jobs():
    answers = [Remainder(seconds=9990.0), InputError("squeue has not answered"), Remainder(seconds=20.0)]

    def remainder() -> Remainder:
        if isinstance(answer := answers.pop(0), InputError):
            raise answer
        return answer

    given, ended = AllocatedNodes(ALLOCATION.nodes, 1e4, remainder=remainder), threading.Event()
    room = AllocationPool(given, SITE, margin=0.0, when_lost=lambda *_: None)
    watch = AllocationWatch(room, SITE, given, margin=120.0, idle=0, end=ended.set)
    told = threading.Event()
    # A step that was cancelled alone: once for each job, however often it is asked.
    assert watch.is_cut_off("job") and not watch.is_cut_off("job")
    assert room.wait_for_some(told).slots and watch.remaining > 9000
    assert watch.is_cut_off("job") and watch.is_cut_off("other") and not answers
    assert watch.remaining <= 20
    claim = room.reserve({"PandaID": 1, "attemptNr": 1, "jobPars": "-a s.tar.gz -p x", "coreCount": 4})
    job = parse_job({"PandaID": 1, "attemptNr": 1, "jobPars": "-a s.tar.gz -p x", "coreCount": 4})
    with pytest.raises(GivenBack):
        room.assign(claim, job, PayloadSettings(minutes=0.1), StartingJob(job, Path(), told))
    room.free(claim)
    watch.start()
    assert ended.wait(600), "nothing runs any more"
    watch.stop()
