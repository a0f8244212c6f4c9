"""Which jobs a pilot gets."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from hpo_pilot.hpc.capacity import AllocationRequest, AllocationRoom, TimeLeft
from hpo_pilot.jobs.resources import JobNeeds, Room
from hpo_pilot.server.brokerage import GpuOffer, parse_needs
from hpo_pilot.server.database import Database
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.server.queues import Queue as QueueFact
from tests.server.queue_driver import OPERATOR, Queue


def test_order_is_priority_then_id(queue: Queue) -> None:
    low = queue.submit(2, taskPriority=100)
    high = queue.submit(2, taskPriority=900)
    capped = queue.submit(1, taskPriority=5000)  # a user's priority is capped …
    boss = queue.submit(1, caller=OPERATOR, taskPriority=5000)  # … an operator's is not
    got = task_ids(queue.acquire(10))
    assert got == [boss, capped, high, high, low, low]


def test_brokerage(queue: Queue) -> None:
    big = queue.submit(1, coreCount=4, ramCount=16000, hpoWalltime=7200, taskPriority=900)
    small = queue.submit(1, taskPriority=100)
    fits = {"memory": 4000, "cores": 1, "remaining_time": 3600}
    for name, value in fits.items():
        assert queue.acquire(site="ELSEWHERE") == []
        (job,) = queue.acquire(**{name: value})
        assert job["taskID"] == small, name
        queue.report(job["PandaID"], "failed")
    assert queue.acquire(resource_type="SCORE_HIMEM") == []
    assert queue.acquire(label="managed") == []
    assert queue.acquire(task_id=777) == []
    assert queue.acquire(resource_type="MCORE_HIMEM", label="unified", task_id=big)[0]["taskID"] == big


def test_tasks_for_several_queues(queue: Queue) -> None:
    anywhere = queue.submit(1, site=None)
    some = queue.submit(1, site=None, includedSite="A,B_1")
    most = queue.submit(1, site=None, excludedSite=["A"])
    single = queue.submit(1, site=None, includedSite=["C"], taskPriority=10)
    taken = queue.acquire(9, site="BX1")
    assert task_ids(taken) == [anywhere, most]
    for job in taken:
        queue.report(job["PandaID"], "failed")
    assert task_ids(queue.acquire(9, site="A")) == [some, anywhere]
    assert task_ids(queue.acquire(9, site="C")) == [most, single]


def described(**fields: Any) -> QueueFact:
    return QueueFact.model_validate(fields)


def task_ids(found: list[dict[str, Any]]) -> list[int]:
    return [job["taskID"] for job in found]


def test_a_later_search_is_not_starved(queue: Queue) -> None:
    """Thousands of waiting jobs of one search; the first pilot that is free goes to the one that came later."""
    first = queue.submit(3000, campaign="big.1")
    running = queue.acquire(20)
    assert set(task_ids(running)) == {first}
    second = queue.submit(50, campaign="small.2")
    queue.clock.now += 1
    assert set(task_ids(queue.acquire(20))) == {second}  # until it has as many
    assert sorted(task_ids(queue.acquire(10))) == [first] * 5 + [second] * 5  # then in turn
    for job in running:
        queue.report(job["PandaID"], "finished")
    queue.clock.now += 1
    assert set(task_ids(queue.acquire(15))) == {first}


def test_tasks_of_one_campaign_share_one_share(queue: Queue) -> None:
    mine = [queue.submit(10, campaign="many.1") for _ in range(5)]
    other = queue.submit(10, campaign="one.2")
    alien = queue.submit(10)  # without a campaign: on its own
    got = task_ids(queue.acquire(9))
    assert [sum(t in mine for t in got), got.count(other), got.count(alien)] == [3, 3, 3]
    assert {t for t in got if t in mine} == {mine[0]}  # the oldest task first


def test_nobody_joins_the_campaign_of_another_user(queue: Queue) -> None:
    mine = queue.submit(10, campaign="same.1")
    name = "user.boss.same/"
    theirs = queue.submit(10, caller=OPERATOR, name=name, campaign="same.1", userName="boss", taskPriority=1000)
    got = task_ids(queue.acquire(4))
    assert (got.count(mine), got.count(theirs)) == (2, 2)


def test_shares_are_counted_in_cores(queue: Queue) -> None:
    wide = queue.submit(20, campaign="wide.1", coreCount=4)
    narrow = queue.submit(20, campaign="narrow.2")
    got = task_ids(queue.acquire(10))
    assert (got.count(wide), got.count(narrow)) == (2, 8)


def test_short_jobs_take_turns(queue: Queue) -> None:
    """Jobs that are over before the next pilot asks: nobody has cores at pilots, so turns count."""
    ids = [queue.submit(5, campaign=f"turn.{i}") for i in range(3)]
    got = []
    for _ in range(9):
        (job,) = queue.acquire()
        got.append(job["taskID"])
        queue.report(job["PandaID"], "finished")
        queue.clock.now += 2
    assert got == ids * 3


def test_priority_comes_before_shares(queue: Queue) -> None:
    low = queue.submit(5, campaign="low.1", taskPriority=10)
    high = queue.submit(5, campaign="high.2", taskPriority=20)
    assert task_ids(queue.acquire(6)) == [high] * 5 + [low]


def test_a_rolled_back_acquisition_leaves_the_jobs_to_others(queue: Queue) -> None:
    task_id = queue.submit(1)
    with pytest.raises(RuntimeError), queue.database.writing() as tx:
        assert task_ids(acquire(tx, JobRequest("LOCAL"))) == [task_id]
        raise RuntimeError("the disk is full")
    assert task_ids(queue.acquire()) == [task_id]


def test_what_waits_is_found_after_a_restart(queue: Queue, place: Path | str) -> None:
    task_id = queue.submit(2, campaign="x.1")
    queue.acquire()
    queue.database.close()
    queue.database = Database(place, clock=queue.clock)
    assert task_ids(queue.acquire(5)) == [task_id]
    queue.database.close()


@pytest.mark.parametrize(
    ("required", "fact", "fits"),
    [
        ({"coreCount": 4}, {"cores": 3}, False),
        ({"coreCount": 4}, {"cores": 4}, True),
        ({"ramCount": 4000}, {"memory_mb": 3999}, False),
        ({"hpoWalltime": 3600}, {"minutes": 59}, False),
        ({"hpoWalltime": 3600}, {"minutes": 60}, True),
        ({"workDiskCount": 2, "workDiskUnit": "GB"}, {"disk_mb": 2000}, False),
        ({"workDiskCount": 2000}, {"disk_mb": 2000}, True),
        ({"container_name": "image"}, {"containers": []}, False),
        ({"container_name": "image"}, {"containers": ["apptainer"]}, True),
        ({"container_name": "image"}, {}, True),
        ({"architecture": "#aarch64"}, {"architecture": "x86_64"}, False),
        ({"architecture": "@el9"}, {"platforms": ["centos7"]}, False),
        ({"architecture": "@el9"}, {"platforms": ["el9", "centos7"]}, True),
        ({"architecture": '{"gpu_spec": {"vendor": "nvidia"}}'}, {"gpus": 1}, True),
        ({"architecture": '{"gpu_spec": {"vendor": "nvidia", "vram": ">=1"}}'}, {"gpus": 1}, False),
        ({}, {"status": "offline"}, False),
        ({}, {"status": "brokeroff"}, True),
        ({"site": None}, {"status": "brokeroff"}, False),
        ({"site": None}, {"status": "online"}, True),
        ({}, {"status": "test"}, False),
        ({"prodSourceLabel": "test"}, {"status": "test"}, True),
    ],
)
def test_what_the_queue_file_says_counts(
    queue: Queue, required: dict[str, Any], fact: dict[str, Any], fits: bool
) -> None:
    queue.submit(1, **required)
    assert bool(queue.acquire(queue=described(**fact))) is fits


def test_the_lesser_of_pilot_and_queue_counts(queue: Queue) -> None:
    queue.submit(1, ramCount=4000)
    assert queue.acquire(memory=8000, queue=described(memory_mb=3000)) == []
    assert queue.acquire(memory=3000, queue=described(memory_mb=8000)) == []
    assert len(queue.acquire(memory=4000, queue=described(memory_mb=8000))) == 1


def test_looking_costs_the_same_with_many_waiting(queue: Queue) -> None:
    """One statement per look, however many jobs, tasks and searches wait."""
    for i in range(20):
        queue.submit(200, campaign=f"crowd.{i}")
    queue.acquire()
    statements: list[str] = []
    engine = queue.database._engine
    listener = lambda conn, cursor, statement, *rest: statements.append(statement)  # noqa: E731
    event.listen(engine, "before_cursor_execute", listener)
    queue.acquire()
    event.remove(engine, "before_cursor_execute", listener)
    reading = [s for s in statements if s.startswith("SELECT") and "FROM jobs" in s]
    assert len(reading) == 1
    if queue.database.is_postgresql:
        return  # another language of plans
    with queue.database.reading() as tx:
        plan = tx.connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT panda_id FROM jobs WHERE jobs.status = 'activated' AND task_id = 1 "
            "AND queue = 'LOCAL' AND panda_id > 0 ORDER BY panda_id LIMIT 1"
        ).all()
    assert "ix_jobs_waiting" in plan[0][-1]


def test_an_answer_holds_no_more_than_the_pilot_has(queue: Queue) -> None:
    wide = queue.submit(5, coreCount=3, taskPriority=900)
    narrow = queue.submit(5, taskPriority=100)
    assert task_ids(queue.acquire(5, cores=8)) == [wide, wide, narrow, narrow]
    gpu = queue.submit(5, nGPU=2, taskPriority=950)
    offer = (GpuOffer(1, "NVIDIA"), GpuOffer(2, "NVIDIA"))
    assert task_ids(queue.acquire(3, gpus=offer, cores=3)) == [gpu, narrow, narrow]


def test_shares_of_gpus_are_handed_out_up_to_the_whole(queue: Queue) -> None:
    whole = queue.submit(5, nGPU=1, taskPriority=100)
    thirds = queue.submit(5, nGPU=1, hpoGpuShare=3, taskPriority=900)
    open_gpu = GpuOffer(1, "NVIDIA", left=Fraction(2, 3))
    assert task_ids(queue.acquire(9, gpus=(open_gpu,))) == [thirds] * 2
    shared = room(Room(1, (1, Fraction(1, 3)), 9, 64_000, 1e6))
    assert task_ids(queue.acquire(9, allocation=shared)) == [thirds] * 3
    assert task_ids(queue.acquire(9, gpus=(open_gpu,))) == []
    assert task_ids(queue.acquire(9, gpus=(open_gpu, GpuOffer(2, "NVIDIA")))) == [whole] * 2


def test_plain_pilots_get_no_jobs_of_several_nodes(queue: Queue) -> None:
    many = queue.submit(2, hpoNodes=2, coreCount=4, taskPriority=900)
    one = queue.submit(1)
    assert task_ids(queue.acquire(9, cores=64)) == [one]
    assert task_ids(queue.acquire(9, cores=64, site="OTHER")) == []
    (job, _) = queue.acquire(9, allocation=room(Room(4, (), 4, 8000, 1e6)))
    assert (job["taskID"], job["coreCount"]) == (many, 4)


def test_a_site_profile_keeps_pilots_of_other_sites_away(queue: Queue) -> None:
    """Pilots that state none, as a Pilot 3, take what waits at their queue."""
    there, anywhere = queue.submit(3, hpoSite="summit", taskPriority=900), queue.submit(1)
    assert task_ids(queue.acquire(9, profile="local")) == [anywhere]
    assert task_ids(queue.acquire(1, profile="summit")) == [there]
    assert task_ids(queue.acquire(9)) == [there, there]


def test_a_pilot_without_the_launcher_of_a_search_gets_others(queue: Queue) -> None:
    first = queue.submit(2, campaign="ranks.1", userName="me", taskPriority=900)
    second = queue.submit(2, campaign="ranks.1", userName="me", taskPriority=900)
    other = queue.submit(1)
    assert task_ids(queue.acquire(9, avoids=(first, 10**9))) == [other]
    assert task_ids(queue.acquire(9)) == [first, first, second, second]


def room(
    *now: Room,
    later: tuple[Room, ...] = (),
    seconds: dict[str, float] | None = None,
    blocks: tuple[Room, ...] = (),
    left: TimeLeft = TimeLeft(),  # noqa: B008 - frozen
) -> AllocationRequest:
    return AllocationRequest(AllocationRoom(now, blocks), later, seconds or {}, left)


def test_an_allocation_gets_what_it_has_room_for(queue: Queue) -> None:
    large = queue.submit(3, hpoNodes=4, nGPU=6, coreCount=6, taskPriority=900)
    small = queue.submit(30, nGPU=1, coreCount=7, taskPriority=100)
    told = room(Room(9, (3, 3), 42, 512_000, 7200.0))
    # Its own words for all cores and GPUs do not count: the openings do.
    got = queue.acquire(99, allocation=told, cores=1, gpus=(GpuOffer(6, "nvidia"),))
    assert task_ids(got) == [large] * 2 + [small] * 6
    assert [job["taskID"] for job in queue.acquire(1, allocation=told)] == [large], "no more than it asks for"
    assert len(list(told.now)) == 1, "the request may be looked at again"
    assert sum(opening.nodes for opening in told.now) == 9
    assert queue.acquire(9, allocation=room()) == []
    assert queue.acquire(9, allocation=room(Room(9, (), 42, 512_000, 7200.0))) == []
    assert queue.acquire(9, allocation=room(Room(9, (3,), 6, 512_000, 7200.0))) == []
    assert queue.acquire(9, allocation=room(Room(9, (3,), 42, 1999, 7200.0))) == []
    assert task_ids(queue.acquire(9, allocation=room(Room(1, (2,), 13, 512_000, 7200.0)))) == [small]


def test_measured_times_decide_what_ends_in_time(queue: Queue) -> None:
    slow = queue.submit(2, hpoWalltime=7200, campaign="slow.1")
    quick = queue.submit(2, hpoWalltime=7200, campaign="quick.2", userName="me")
    opening = Room(9, (), 4, 8000, 600.0)
    assert queue.acquire(9, allocation=room(opening)) == []
    (first, second) = queue.acquire(9, allocation=room(opening, seconds={"me/quick.2": 590.0, "me/slow.1": 601.0}))
    assert {first["taskID"], second["taskID"]} == {quick}
    assert {first["hpoCampaign"], second["hpoCampaign"]} == {"me/quick.2"}
    # It has waited for an answer since.
    assert queue.acquire(9, allocation=room(opening, seconds={"me/slow.1": 590.0}), waited=11.0) == []
    assert queue.acquire(9, allocation=room(opening, seconds={"me/slow.1": 1e6})) == [], "no longer than its limit"
    assert len(queue.acquire(9, allocation=room(opening, seconds={"me/slow.1": 590.0}), waited=10.0)) == 2
    assert queue.status(slow) == "running"


def test_jobs_that_may_not_end_in_time_start_if_enough_is_left_for_them(queue: Queue) -> None:
    quarter = queue.submit(1, hpoWalltime=2400, taskPriority=900)
    queue.submit(1, hpoWalltime=2404, taskPriority=500)
    kept = queue.submit(1, hpoWalltime=36_000, hpoCheckpoints=True, taskPriority=100)
    left, reserved = TimeLeft(600.0, 0.25, 590.0), Room(1, (), 4, 8000, 599.0)
    assert queue.acquire(9, allocation=room(reserved, left=left)) == [], "others wait for these nodes"
    told = room(reserved, Room(1, (), 1, 8000, 600.0), left=left)
    assert task_ids(queue.acquire(9, allocation=told)) == [quarter]
    assert queue.acquire(9, allocation=told, waited=10.5) == []
    assert task_ids(queue.acquire(9, allocation=told, waited=9.7)) == [kept]


def test_in_an_allocation_a_job_takes_what_its_payload_may_and_no_margin(queue: Queue) -> None:
    queue.submit(1, hpoWalltime=900, hpoPayloadSeconds=600)
    assert queue.acquire(1, allocation=room(Room(1, (), 4, 8000, 599.0)), remaining_time=899) == []
    assert len(queue.acquire(1, allocation=room(Room(1, (), 4, 8000, 600.0)), remaining_time=700)) == 1


def test_room_is_made_for_the_first_that_has_none(queue: Queue) -> None:
    wide = queue.submit(2, hpoNodes=8, taskPriority=900, hpoWalltime=3600)
    small = queue.submit(9, taskPriority=100, hpoWalltime=600)
    now = Room(3, (), 1, 8000, 7200.0)
    later = Room(8, (), 1, 8000, 5000.0)
    assert task_ids(queue.acquire(9, allocation=room(now, later=(later,)))) == [wide], "and nothing after it"
    # A job waits there already: others fill the gaps.
    assert task_ids(queue.acquire(9, allocation=room(now))) == [small] * 3
    # What could never run there is passed over; the first that could waits.
    late = Room(8, (), 1, 8000, 3000.0)
    assert task_ids(queue.acquire(9, allocation=room(now, later=(late, Room(7, (), 1, 8000, 5000.0))))) == [small] * 4


def test_nodes_that_a_large_job_left_go_to_one_on_as_many(queue: Queue) -> None:
    large = queue.submit(3, hpoNodes=4, nGPU=6, coreCount=6, taskPriority=100)
    small = queue.submit(30, nGPU=1, coreCount=7, taskPriority=900)
    told = room(blocks=(Room(4, (3, 3), 42, 512_000, 7200.0),) * 2)
    assert task_ids(queue.acquire(9, allocation=told)) == [large] * 2
    told = room(Room(1, (3,), 42, 512_000, 7200.0), blocks=(Room(4, (3, 3), 42, 512_000, 7200.0),))
    assert task_ids(queue.acquire(9, allocation=told)) == [small] * 3 + [large]


def test_jobs_of_several_nodes_weigh_as_much(queue: Queue) -> None:
    wide = queue.submit(9, hpoNodes=10, coreCount=2, campaign="wide")
    small = queue.submit(99, coreCount=2, campaign="small")
    told = room(Room(400, (), 2, 8000, 1e6))
    got = task_ids(queue.acquire(33, allocation=told))
    assert (got.count(wide), got.count(small)) == (3, 30)
    queue.clock.now += 5
    assert task_ids(queue.acquire(1, allocation=told)) == [wide]
    queue.clock.now += 5  # counted anew, from the database
    assert set(task_ids(queue.acquire(9, allocation=told))) == {small}


def test_room_is_made_only_for_a_job_with_all_its_minutes(queue: Queue) -> None:
    """The pilot would give it back, whatever was measured of its search."""
    limited = queue.submit(2, hpoWalltime=7200, campaign="wide.1", userName="me")
    for seconds, expected in ((7199.0, []), (7200.0, [limited])):
        told = room(later=(Room(8, (), 4, 8000, seconds),), seconds={"me/wide.1": 60.0})
        assert task_ids(queue.acquire(9, allocation=told)) == expected


def test_a_lot_with_fewer_jobs_than_room_leaves_the_rest_to_others(queue: Queue) -> None:
    few = queue.submit(2, nGPU=1, taskPriority=900)
    others = queue.submit(20, nGPU=1, taskPriority=100)
    assert sorted(task_ids(queue.acquire(99, allocation=room(Room(2, (3, 3), 42, 512_000, 1e6))))) == sorted(
        [few] * 2 + [others] * 10
    )


def test_stored_needs_keep_their_text() -> None:
    stored = (
        '{"architecture":"","checkpoints":true,"container":false,"cores":2,"disk_mb":5,"gpus":1,"nodes":3,'
        '"payload_seconds":5400,"ram_mb":700,"seconds":5700,"site":"x"}'
    )
    assert str(parse_needs(stored)) == stored
    assert parse_needs(stored).job == JobNeeds(3, 1, 2, 700, 90.0, checkpoints=True)
    by_walltime = stored.replace("5400", "0")
    assert (str(parse_needs(by_walltime)), parse_needs(by_walltime).job.minutes) == (by_walltime, 95.0)
    shared = stored.replace('"gpus":1,', '"gpus":1,"gpu_share":3,')
    assert (str(parse_needs(shared)), parse_needs(shared).job.gpus_per_node) == (shared, Fraction(1, 3))
    earlier = parse_needs(stored.replace(',"site":"x"', "").replace('"checkpoints":true,', ""))  # without these keys
    assert (earlier.site, earlier.job.checkpoints) == ("", False)


def test_a_look_is_left_out_only_while_nothing_waits_for_a_queue(queue: Queue) -> None:
    def may_have() -> tuple[bool, ...]:
        return tuple(queue.database.waiting.may_have(site) for site in ("LOCAL", "B"))

    assert may_have() == (True, True)  # nothing is known yet
    assert not queue.acquire() and may_have() == (False, False)
    queue.submit(site="B")
    assert may_have() == (True, True)
    assert not queue.acquire() and may_have() == (False, True)
    assert queue.acquire(site="B") and not queue.acquire(site="B") and may_have() == (False, False)
    queue.submit(site=None)  # at any queue
    assert queue.acquire(n_jobs=1, site="B") and may_have() == (True, True)
    assert not queue.acquire() and may_have() == (False, False)
