from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.capacity import Node, NodeShape
from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.hpc.scheduler import Scheduler
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.pilot.allocation import Allocation, AllocationPool, AllocationReservation
from hpo_pilot.pilot.job import GivenBack, Job, JobFailure, NodeLost, parse_job
from hpo_pilot.pilot.machine import Assignment
from hpo_pilot.pilot.report import Starting
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadDocument

SITE = Site(launcher=make_launcher({"name": "srun"}), gpu_kind="nvidia")


class Room:
    """An allocation's, with what a test asks of it."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        cores: int = 4,
        gpus: int = 0,
        seconds: float = 1e4,
        site: Site = SITE,
        keeps_cores: bool = False,
    ) -> None:
        self.lost: list[tuple[int, JobFailure]] = []
        shape = NodeShape(cores, 1000 * cores, gpus)
        named = tuple(Node(f"n{number}", shape) for number in range(1, nodes + 1))
        given = Allocation(named, seconds, reclaim=list if keeps_cores else None)
        self.now = 100.0
        self.room = AllocationPool(
            given, site, margin=0.0, when_lost=lambda *what: self.lost.append(what), clock=lambda: self.now
        )
        self.draining = threading.Event()
        self._ids = iter(range(1, 1000))

    def job(self, **more: Any) -> dict[str, Any]:
        return {"PandaID": next(self._ids), "attemptNr": 1, "jobPars": "-a s.tar.gz -p x", "coreCount": 1, **more}

    def take(self, data: dict[str, Any], claim: Any, folder: Path, **document: Any) -> Assignment:
        job: Job = parse_job(data)
        return self.room.assign(claim, job, PayloadDocument(**document), Starting(job, folder, self.draining))


def test_each_job_has_its_own(tmp_path: Path) -> None:
    """Many jobs of many shapes, from many threads: nothing is lent twice."""
    made, chance = Room(3, cores=4, gpus=2), random.Random(4)
    held: set[tuple[str, str]] = set()
    cores_used: Counter[str] = Counter()
    most, lock, failures = [0], threading.Lock(), []

    def run(nodes: int, cores: int, gpus: int, seconds: float) -> None:
        data = made.job(coreCount=cores)
        claim = made.room.reserve(data)
        try:
            seat = made.take(data, claim, tmp_path, nodes=nodes, gpus=gpus, minutes=5.0)
            own = {(node, gpu) for node in seat.nodes for gpu in seat.gpus[node]}
            assert len(set(seat.nodes)) == nodes and len(own) == nodes * gpus and seat.cores == cores
            with lock:
                assert not own & held
                held.update(own)
                cores_used.update(dict.fromkeys(seat.nodes, cores))
                assert max(cores_used.values()) <= 4
                most[0] = max(most[0], cores_used.total())
            time.sleep(seconds)
            with lock:
                held.difference_update(own)
                cores_used.subtract(dict.fromkeys(seat.nodes, cores))
        except (JobFailure, AssertionError) as error:  # a thread's own would go unseen
            failures.append(error)
        made.room.free(claim, Ending.FINISHED)

    plans = [
        (chance.randint(1, 3), chance.randint(1, 4), chance.randint(0, 2), chance.random() / 50) for _ in range(50)
    ]
    threads = [threading.Thread(target=run, args=plan) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures and not held and not cores_used.total() and most[0] > 8
    assert made.room.is_empty and made.room.usage().searches["s.tar.gz"].endings == {Ending.FINISHED: 50}


def test_what_is_asked_for(tmp_path: Path) -> None:
    made = Room(2, cores=4, gpus=2)
    free = made.room.wait_for_some(made.draining)
    assert free.request is not None and free.patience == math.inf and len(free.gpus) == 2
    assert [(o.nodes, o.cores) for o in free.request.now] == [(2, 4)]
    data = made.job(coreCount=3, hpoCampaign="mine")
    claim = made.room.reserve(data)
    waiting = threading.Thread(target=made.room.wait_for_some, args=[made.draining])
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()  # what came takes part of the room, and it is not known yet which
    made.take(data, claim, tmp_path)
    waiting.join(5)
    free = made.room.wait_for_some(made.draining)
    assert free.request is not None and free.patience == 1.0
    assert sorted((o.nodes, o.cores) for o in free.request.now) == [(1, 1), (1, 4)]
    made.room.free(claim)
    assert set(made.room.usage().searches) == {"mine"}


def test_no_more_steps_than_the_site_can_do(tmp_path: Path) -> None:
    made = Room(2, site=Site(launcher=SITE.launcher, job_steps=2))
    assert made.room.wait_for_some(made.draining).slots == 2
    data = made.job()
    made.take(data, made.room.reserve(data), tmp_path)
    assert made.room.wait_for_some(made.draining).slots == 1
    data = made.job()
    made.take(data, made.room.reserve(data), tmp_path)
    waiting = threading.Thread(target=made.room.wait_for_some, args=[made.draining])
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    made.draining.set()
    made.room.wake()
    waiting.join(5)
    assert not waiting.is_alive()


@pytest.mark.parametrize(
    ("data", "document", "why"),
    [
        ({}, {"nodes": 3}, "2 of the allocation's 2 are such"),
        ({"coreCount": 5}, {}, "0 of the allocation's 2 are such: ask for less"),
        ({"minRamCount": 9000}, {}, "9000 MB"),
        ({}, {"gpus": 1}, "with 1 GPUs"),
    ],
)
def test_what_cannot_fit_fails_alone(data: Any, document: Any, why: str, tmp_path: Path) -> None:
    made = Room(2)
    job = made.job(**data)
    claim = made.room.reserve(job)
    with pytest.raises(JobFailure, match=why) as caught:
        made.take(job, claim, tmp_path, **document)
    assert not caught.value.is_given_back
    made.room.free(claim)
    assert made.room.is_empty
    job = made.job()
    assert made.take(job, made.room.reserve(job), tmp_path).nodes == ("n1",)


def test_a_job_without_a_limit_has_an_hour_and_one_that_would_end_too_late_goes_back(tmp_path: Path) -> None:
    made = Room(1, seconds=7200)
    job = made.job()
    assert made.take(job, made.room.reserve(job), tmp_path).seconds == 3600
    job = made.job(maxWalltime=7300)
    with pytest.raises(GivenBack, match="would not end before"):
        made.take(job, made.room.reserve(job), tmp_path)


def test_the_end_gives_back_what_waits(tmp_path: Path) -> None:
    made = Room(1)
    first, second = made.job(coreCount=4), made.job(coreCount=4)
    made.take(first, made.room.reserve(first), tmp_path, minutes=5.0)
    claim, found = made.room.reserve(second), []

    def wait() -> None:
        try:
            made.take(second, claim, tmp_path, minutes=5.0)
        except GivenBack as failure:
            found.append(failure)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and made.room.counts() == (1, 1)
    made.room.drain()
    thread.join(5)
    assert found and made.room.counts() == (1, 0)
    made.room.free(claim, Ending.CUT)
    assert not made.room.is_empty  # the first goes on


def test_a_job_that_is_wanted_no_more_leaves_no_hole(tmp_path: Path) -> None:
    made = Room(1)
    first, second = made.job(coreCount=4), made.job(coreCount=4)
    claims = [made.room.reserve(first), made.room.reserve(second)]
    made.take(first, claims[0], tmp_path, minutes=5.0)
    job = parse_job(second)
    starting = Starting(job, tmp_path, made.draining)
    starting.stop(JobFailure(1144, "killed by the server"))  # type: ignore[arg-type]
    with pytest.raises(JobFailure, match="killed"):
        made.room.assign(claims[1], job, PayloadDocument(minutes=5.0), starting)
    made.room.free(claims[1])
    assert made.room.counts() == (1, 1)
    made.room.free(claims[0], Ending.FINISHED)
    assert made.room.counts() == (0, 0) and made.room.is_empty


def test_a_node_that_fails_launches_is_left_out(tmp_path: Path) -> None:
    made = Room(2)
    wide, small = made.job(coreCount=1), made.job(coreCount=4)
    wide_claim, claim = made.room.reserve(wide), made.room.reserve(small)
    made.take(wide, wide_claim, tmp_path, nodes=2, minutes=5.0)
    for _ in range(2):
        made.room.note_launch(wide_claim, ["n2"])
    ((panda_id, failure),) = made.lost
    assert panda_id == wide["PandaID"] and isinstance(failure, NodeLost) and "n2" in str(failure)
    made.room.free(wide_claim, Ending.LOST)
    assert made.take(small, claim, tmp_path, minutes=5.0).nodes == ("n1",)
    assert not made.room.is_gone
    made.room.lose("n1", "it does not answer")
    assert made.room.is_gone


def test_staging_is_no_run_time_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = Room(1), []
    ended = Scheduler.ended
    monkeypatch.setattr(Scheduler, "ended", lambda *given, **named: (told.append(named), ended(*given, **named)))
    for seconds in (12.5, 0.0):
        data = made.job()
        claim = made.room.reserve(data)
        made.take(data, claim, tmp_path, minutes=5.0)
        if seconds:
            made.room.note_staging(claim, seconds)
        made.room.free(claim, Ending.FINISHED)
    assert told == [{"staging": 12.5}, {"staging": 0.0}]


def test_a_lost_node_takes_its_own_jobs_along_and_the_others_come_back_as_theirs_end(tmp_path: Path) -> None:
    made = Room(6, keeps_cores=True)

    def begin(**document: Any) -> tuple[AllocationReservation, tuple[str, ...]]:
        data = made.job(coreCount=4)
        claim = made.room.reserve(data)
        return claim, made.take(data, claim, tmp_path, minutes=5.0, **document).nodes

    (stays, on), (wide, across) = begin(), begin(nodes=2)
    early, freed = begin()
    late, freed_late = begin()
    assert (on, across, freed, freed_late) == (("n1",), ("n2", "n3"), ("n4",), ("n5",))
    made.room.free(early, Ending.FINISHED)
    made.now = 200.0
    made.room.free(late, Ending.FINISHED)
    made.now = 210.0
    made.room.lose("n2", "gone", taken_since=150.0)
    made.room.lose("n2", "gone", taken_since=150.0)
    ((panda_id, failure),) = made.lost
    assert panda_id == wide.key[0] and isinstance(failure, NodeLost)
    assert made.room.blocked == ["n1", "n3", "n5"] and made.room.up == {"n4", "n6"} and not made.room.is_gone
    made.room.free(wide, Ending.LOST)
    claims = [begin(), begin()]
    assert {nodes for _, nodes in claims} == {("n4",), ("n6",)}
    made.room.free(stays, Ending.FINISHED)
    made.room.unblock(["n1", "n2", "n3"])
    assert made.room.blocked == ["n5"]
    assert {begin()[1], begin()[1]} == {("n1",), ("n3",)}


def test_a_node_that_the_launcher_calls_lost_is_so_at_once(tmp_path: Path) -> None:
    made = Room(3, keeps_cores=True)
    data = [made.job(coreCount=4) for _ in range(2)]
    claims = [made.room.reserve(one) for one in data]
    for one, claim in zip(data, claims, strict=True):
        made.take(one, claim, tmp_path, minutes=5.0)
    made.room.note_launch(claims[1], ["n2"], ["n2"])
    assert [panda_id for panda_id, _ in made.lost] == [claims[1].key[0]]
    assert made.room.blocked == ["n1"] and made.room.up == {"n3"}


def test_a_batch_system_that_keeps_no_cores_takes_the_lost_node_alone(tmp_path: Path) -> None:
    made = Room(2)
    data = made.job()
    made.take(data, made.room.reserve(data), tmp_path, minutes=5.0)
    made.room.lose("n2", "gone", taken_since=0.0)
    assert not made.lost and not made.room.blocked and made.room.up == {"n1"}
