from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.hpc.launchers import make_launcher
from hpo_pilot.hpc.scheduler import Scheduler
from hpo_pilot.hpc.usage import Ending
from hpo_pilot.jobs.resources import Node, NodeShape
from hpo_pilot.pilot.allocation import AllocatedNodes
from hpo_pilot.pilot.allocation_pool import AllocationPool, AllocationReservation, NodeHealth
from hpo_pilot.pilot.job import GivenBack, JobFailure, NodeLost, PilotErrorCode, parse_job
from hpo_pilot.pilot.machine import AssignedResources, FreeResources
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import Site
from hpo_pilot.transformation.job import PayloadSettings
from tests.pilot.conftest import in_background

SITE = Site(launcher=make_launcher({"name": "srun"}), gpu_kind="nvidia")


class Made:
    """A pool of an allocation's nodes, with what a test asks of it."""

    def __init__(
        self,
        nodes: int = 2,
        *,
        cores: int = 4,
        gpus: int = 0,
        seconds: float = 1e4,
        site: Site = SITE,
    ) -> None:
        self.lost: list[tuple[int, JobFailure]] = []
        shape = NodeShape(cores, 1000 * cores, gpus)
        named = tuple(Node(f"n{number}", shape) for number in range(1, nodes + 1))
        given = AllocatedNodes(named, seconds)
        self.now = 100.0
        self.pool = AllocationPool(
            given, site, margin=0.0, when_lost=lambda *what: self.lost.append(what), clock=lambda: self.now
        )
        self.draining = threading.Event()
        self._ids = iter(range(1, 1000))

    def reserve(self, **more: Any) -> tuple[dict[str, Any], AllocationReservation]:
        data = {"PandaID": next(self._ids), "attemptNr": 1, "jobPars": "-a s.tar.gz -p x", "coreCount": 1, **more}
        return data, self.pool.reserve(data)

    def assign(self, reserved: tuple[dict[str, Any], AllocationReservation], **document: Any) -> AssignedResources:
        data, reservation = reserved
        job = parse_job(data)
        return self.pool.assign(
            reservation, job, PayloadSettings(**document), StartingJob(job, Path("/nowhere"), self.draining)
        )

    def begin(
        self, document: dict[str, Any] | None = None, **job: Any
    ) -> tuple[AllocationReservation, AssignedResources]:
        reserved = self.reserve(**job)
        return reserved[1], self.assign(reserved, **{"minutes": 5.0, **(document or {})})

    def waits(self) -> Future[FreeResources]:
        """A thread that waits for free resources."""
        waiting = in_background(self.pool.wait_for_some, self.draining)
        wait([waiting], 0.1)
        assert not waiting.done()
        return waiting


def test_each_job_has_its_own():
    """Many jobs of many shapes, from many threads: nothing is lent twice."""
    made, chance = Made(3, cores=4, gpus=2), random.Random(4)
    used: set[tuple[str, str]] = set()
    cores_used: Counter[str] = Counter()
    most, lock = [0], threading.Lock()

    def run(nodes: int, cores: int, gpus: int, seconds: float) -> None:
        reserved = made.reserve(coreCount=cores)
        try:
            given = made.assign(reserved, nodes=nodes, gpus=gpus, minutes=5.0)
            own = {(node, gpu) for node in given.nodes for gpu in given.gpus[node]}
            assert len(set(given.nodes)) == nodes and len(own) == nodes * gpus and given.cores == cores
            with lock:
                assert not own & used
                used.update(own)
                cores_used.update(dict.fromkeys(given.nodes, cores))
                assert max(cores_used.values()) <= 4
                most[0] = max(most[0], cores_used.total())
            time.sleep(seconds)
            with lock:
                used.difference_update(own)
                cores_used.subtract(dict.fromkeys(given.nodes, cores))
        finally:
            made.pool.free(reserved[1], Ending.FINISHED)

    runs = [
        in_background(run, chance.randint(1, 3), chance.randint(1, 4), chance.randint(0, 2), chance.random() / 50)
        for _ in range(50)
    ]
    for one in runs:
        one.result(600)
    assert not used and not cores_used.total() and most[0] > 8
    assert made.pool.is_empty and made.pool.usage().endings == {Ending.FINISHED: 50}


def test_what_is_asked_for():
    made = Made(2, cores=4, gpus=2)
    free = made.pool.wait_for_some(made.draining)
    assert free.request is not None and free.patience == math.inf and len(free.gpus) == 2
    assert [(o.nodes, o.cores) for o in free.request.now] == [(2, 4)]
    reserved = made.reserve(coreCount=3, hpoCampaign="mine")
    waiting = made.waits()  # the job takes a part of the nodes that is not known yet
    made.assign(reserved)
    waiting.result(600)
    free = made.pool.wait_for_some(made.draining)
    assert free.request is not None and free.patience == 1.0
    assert sorted((o.nodes, o.cores) for o in free.request.now) == [(1, 1), (1, 4)]
    made.pool.free(reserved[1])
    assert reserved[1].search == "mine"


def test_no_more_steps_than_the_site_can_do():
    made = Made(2, site=Site(launcher=SITE.launcher, job_steps=2))
    for slots in (2, 1):
        assert made.pool.wait_for_some(made.draining).slots == slots
        made.begin()
    waiting = made.waits()
    made.draining.set()
    made.pool.wake()
    waiting.result(600)


def test_jobs_that_agents_start_on_several_nodes_take_no_steps():
    """Their nodes get no other jobs before the agents' processes have ended."""
    site = Site(launcher=make_launcher({"name": "torchrun", "starter": "srun"}), job_steps=1)
    made, wide = Made(4, cores=1, site=site), {"nodes": 2, "ranks_per_node": 1}
    made.pool.spread = ("starter",)
    (first, given), (second, _) = made.begin(wide), made.begin(wide)
    assert given.spread == ("starter",) and not first.takes_step and not second.takes_step
    ended = threading.Event()
    assert [share.node for share in made.pool.spread_over(first.key, ended)] == list(given.nodes)
    freeing = in_background(made.pool.free, first)
    wait([freeing], 0.1)
    assert not freeing.done()
    ended.set()
    freeing.result(600)
    made.pool.spread = ()  # no agents could be started
    assert made.begin(wide)[0].takes_step
    with pytest.raises(LookupError):
        made.pool.spread_over(first.key, ended)


@pytest.mark.parametrize(
    ("job", "document", "why"),
    [
        ({}, {"nodes": 3}, "2 of the allocation's 2 nodes have this"),
        ({"coreCount": 5}, {}, "0 of the allocation's 2 nodes have this: ask for less"),
        ({"minRamCount": 9000}, {}, "9000 MB"),
        ({}, {"gpus": 1}, "with 1 GPUs"),
    ],
)
def test_what_cannot_fit_fails_alone(job, document, why):
    made = Made(2)
    reserved = made.reserve(**job)
    with pytest.raises(JobFailure, match=why) as caught:
        made.assign(reserved, **document)
    assert not caught.value.is_given_back
    made.pool.free(reserved[1])
    assert made.pool.is_empty
    assert made.begin()[1].nodes == ("n1",)


def test_jobs_share_a_gpu_and_are_told_their_part():
    site = Site(launcher=make_launcher({"name": "mpirun"}), gpu_kind="nvidia", gpu_memory_mb=40_000, mps=True)
    made = Made(1, cores=8, gpus=1, site=site)
    given = [made.begin({"gpus": 1, "gpu_share": 4})[1] for _ in range(4)]
    assert [one.gpus for one in given] == [{"n1": ("0",)}] * 4
    assert given[0].variables == {
        "HPO_PILOT_GPU_MEMORY_MB": "10000",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10000M",
    }
    request = made.pool.wait_for_some(made.draining).request
    assert request is not None and [room.gpus for room in request.now] == [()]
    with pytest.raises(JobFailure, match="srun gives each job GPUs of its own"):
        Made(1, cores=8, gpus=1).begin({"gpus": 1, "gpu_share": 4})


def test_a_job_without_a_limit_has_an_hour_and_one_that_would_end_too_late_goes_back():
    made = Made(1, seconds=7200)
    assert made.begin({"minutes": 0.0})[1].seconds == 3600
    assert Made(1, seconds=7200).begin({"minutes": 0.0}, maxWalltime=1800)[1].seconds == 1800
    with pytest.raises(GivenBack, match="would not end before"):
        made.begin({"minutes": 0.0}, maxWalltime=4 * 7300)


def test_a_job_may_have_fewer_minutes_than_its_payload():
    """As those of a low level have."""
    made = Made(1, seconds=7200)
    with pytest.raises(GivenBack, match="would not end before"):
        made.begin({"minutes": 600.0})
    assert made.begin({"minutes": 600.0}, maxWalltime=900)[1].seconds == 900
    assert made.begin({"minutes": 5.0}, maxWalltime=3600)[1].seconds == 300


def test_a_job_with_checkpoints_need_not_end_before_the_allocation():
    made = Made(1, seconds=7200)
    assert made.begin({"minutes": 6000.0, "checkpoint": ["ckpt"]})[1].nodes == ("n1",)
    assert not made.begin()[1].is_late
    made.now += 3601
    assert made.begin()[1].is_late


def test_the_end_gives_back_what_waits():
    made = Made(1)
    made.begin(coreCount=4)
    reserved = made.reserve(coreCount=4)
    waiting = in_background(made.assign, reserved, minutes=5.0)
    wait([waiting], 0.1)
    assert not waiting.done() and made.pool.counts() == (1, 1)
    made.pool.drain()
    assert isinstance(waiting.exception(600), GivenBack) and made.pool.counts() == (1, 0)
    made.pool.free(reserved[1], Ending.CUT)
    assert not made.pool.is_empty  # the first goes on


def test_a_job_that_is_wanted_no_more_leaves_no_hole():
    made = Made(1)
    first, _ = made.begin(coreCount=4)
    data, second = made.reserve(coreCount=4)
    job = parse_job(data)
    starting = StartingJob(job, Path("/nowhere"), made.draining)
    starting.stop(JobFailure("killed by the server", PilotErrorCode.PANDA_KILL))
    with pytest.raises(JobFailure, match="killed"):
        made.pool.assign(second, job, PayloadSettings(minutes=5.0), starting)
    made.pool.free(second)
    assert made.pool.counts() == (1, 1)
    made.pool.free(first, Ending.FINISHED)
    assert made.pool.counts() == (0, 0) and made.pool.is_empty


def test_a_node_that_fails_launches_is_left_out():
    made = Made(2)
    wide, _ = made.begin({"nodes": 2})
    small = made.reserve(coreCount=4)
    for _ in range(2):
        made.pool.note_launch(wide, ["n2"])
    ((panda_id, failure),) = made.lost
    assert panda_id == wide.key[0] and isinstance(failure, NodeLost) and "n2" in str(failure)
    made.pool.free(wide, Ending.LOST)
    assert made.assign(small, minutes=5.0).nodes == ("n1",)
    assert made.pool.up
    made.pool.lose("n1", "it does not answer")
    assert not made.pool.up


def test_staging_is_no_run_time_of_the_search(monkeypatch):
    made, told = Made(1), []
    ended = Scheduler.ended
    monkeypatch.setattr(Scheduler, "ended", lambda *given, **named: (told.append(named), ended(*given, **named)))
    for seconds in (12.5, 0.0):
        reservation, _ = made.begin()
        if seconds:
            made.pool.note_staging(reservation, seconds)
        made.pool.free(reservation, Ending.FINISHED)
    assert told == [{"staging": 12.5}, {"staging": 0.0}]


def test_a_node_that_the_launcher_calls_lost_is_so_at_once():
    made = Made(3)
    (first, _), (second, _) = made.begin(coreCount=4), made.begin(coreCount=4)
    made.pool.note_launch(second, ["n2"], ["n2"])
    ((panda_id, failure),) = made.lost
    assert panda_id == second.key[0] and isinstance(failure, NodeLost) and made.pool.up == {"n1", "n3"}
    made.pool.free(second, Ending.LOST)
    made.pool.free(first, Ending.FINISHED)
    assert {made.begin(coreCount=4)[1].nodes for _ in range(2)} == {("n1",), ("n3",)}


def test_a_node_that_is_named_twice_in_a_row_is_bad():
    health = NodeHealth()
    assert health.failed(["n1", "n2"], ["n2"]) == []
    health.worked(["n2"])
    assert health.failed(["n1", "n2"], ["n2"]) == []
    assert health.failed(["n2", "n3"], ["n2"]) == ["n2"]


def test_without_names_launches_must_work_elsewhere():
    health = NodeHealth()
    for _ in range(5):  # a site whose launcher is set up wrongly loses no nodes by it
        assert health.failed(["n1"], []) == [] and health.failed(["n2"], []) == []
    health.worked(["n2"])
    assert health.failed(["n2"], []) == []
    assert health.failed(["n1"], []) == ["n1"]


def test_in_a_row_means_in_a_row():
    health = NodeHealth()
    for _ in range(3):
        assert health.failed(["n1"], []) == [] and health.failed(["n1"], []) == []
        health.worked(["n1"])
        health.worked(["n2"])
