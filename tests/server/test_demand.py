"""What waits, by what it needs, and who could take it."""

from __future__ import annotations

from typing import Any

import pytest

from hpo_pilot.hpc.capacity import AllocationRequest, AllocationRoom
from hpo_pilot.jobs.resources import Room
from hpo_pilot.server import pilots as module
from hpo_pilot.server.brokerage import GpuOffer
from hpo_pilot.server.dispatch import JobRequest
from hpo_pilot.server.pilots import KnownPilots
from tests.server.conftest import RunningServer
from tests.task_parameters import make_params


def test_shapes_and_who_asked(server: RunningServer) -> None:
    api, pilot = server.api("me"), server.api("pilot")

    def demand(**arguments: Any) -> dict[str, Any]:
        reply = pilot.get("hpo_pilot/demand", **arguments)
        assert reply["success"], reply
        answer: dict[str, Any] = reply["data"]
        return answer

    small = api.submit(make_params("user.me.small/", 3, coreCount=2, ramCount=700, site=None))
    large = api.submit(make_params("user.me.large/", 2, nGPU=4, hpoNodes=6, hpoPayloadSeconds=5400, site="HERE"))
    elsewhere = api.submit(make_params("user.me.elsewhere/", 1, excludedSite=["HERE"], site=None))
    mine = [small, large, elsewhere]
    found = demand(queue="HERE", task_ids=mine)["waiting"]
    assert [(one["jobs"], one["nodes"], one["gpus"], one["cores"]) for one in found] == [(3, 1, 0, 2), (2, 6, 4, 1)]
    assert [one["queues"] for one in found] == [[], ["HERE"]]
    assert found[0]["memory_mb"] == 700 and found[1]["minutes"] == 90.0 and 0 <= found[0]["since"] < 60
    assert sum(one["jobs"] for one in demand(queue="THERE", task_ids=mine)["waiting"]) == 4
    assert sum(one["jobs"] for one in demand(task_ids=mine)["waiting"]) == 6
    assert sum(one["jobs"] for one in demand()["waiting"]) >= 6 and demand(task_ids=[10**9])["waiting"] == []
    (job,) = pilot.acquire(site_name="HERE", harvester_id="h", worker_id=1, memory=900, task_id=small)
    after = demand(queue="HERE", task_ids=mine)
    assert after["waiting"][0]["jobs"] == 2 and after["going"] == 1 and after["known_for"] >= 0
    (offer,) = after["offers"]
    assert (offer["queue"], offer["nodes"], offer["gpus"], offer["memory_mb"]) == ("HERE", 1, 0, 900)
    assert 0 <= offer["asked"] < 60 and offer["is_busy"]
    pilot.update(job["PandaID"], "finished")
    idle = demand(queue="HERE")
    assert idle["going"] == 0 and not idle["offers"][0]["is_busy"]
    for task_id in mine:  # other tests' pilots would take what may go anywhere
        api.post("task/kill", task_id=task_id)


def test_the_most_that_a_pilot_ever_had() -> None:
    now = [1000.0]
    book = KnownPilots(lambda: now[0])
    assert book.began == 1000.0 and book.offers("") == []
    gpu = GpuOffer(2, "NVIDIA", "A100")
    book.asked(JobRequest("A", worker_id="1", cores=8, gpus=(gpu,), memory=500), "")
    now[0] += 10
    book.asked(JobRequest("A", worker_id="1", cores=2), "")
    (offer,) = book.offers("A")
    assert (offer.asked, offer.nodes, offer.gpus, offer.cores, offer.memory_mb) == (1010.0, 1, 2, 8, 500)
    assert book.offers("B") == []
    openings = AllocationRoom([Room(3, (2, 2), 4, 800, 600.0), Room(1, (), 9, 100, 6000.0)])
    book.asked(JobRequest("B", worker_id="2", allocation=AllocationRequest(openings, (), {})), "")
    (offer,) = book.offers("B")
    assert (offer.nodes, offer.gpus, offer.cores, offer.memory_mb, offer.minutes) == (4, 4, 9, 800, 100.0)
    book.asked(JobRequest("B", worker_id="2", allocation=AllocationRequest(openings, (), {"s": 60.0})), "")
    assert book.offers("B")[0].minutes == 0.0  # of that search it knows better than the file
    now[0] += 3601
    assert book.offers("") == []


def test_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    book = KnownPilots()
    for worker in ("1", "2", "3", "1", "4"):
        book.asked(JobRequest("A", worker_id=worker, cores=int(worker)), "")
    assert sorted(offer.cores for offer in book.offers("A")) == [1, 3, 4]


def test_who_has_no_name_offers_room_but_is_on_no_page() -> None:
    book = KnownPilots()
    book.asked(JobRequest("A", cores=4), "curl/8")
    book.asked(JobRequest("A", node="slot1@wn7", cores=2, n_jobs=3), "hpo-pilot/0.1")
    book.asked(JobRequest("B", node="slot1@wn7", cores=6), "hpo-pilot/0.1")
    assert sorted(offer.cores for offer in book.offers("A")) == [2, 4]
    assert [(note.key, note.slots) for note in book.notes()] == [("wn7 at A", 3), ("wn7 at B", 1)]
