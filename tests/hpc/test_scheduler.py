"""The decisions of the scheduler, and the run times that it assumes."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.scheduler import Policy, RunTimes, Scheduler
from hpo_pilot.hpc.usage import Ending, ScheduledJob, Start
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape, Room

SUMMIT = NodeShape(cores=42, memory_mb=512_000, gpus=6, close=3)
WHOLE = JobNeeds(nodes=1, gpus_per_node=6, cores=42, memory_mb=400_000, minutes=60)
SMALL = JobNeeds(nodes=1, gpus_per_node=1, cores=7, memory_mb=60_000, minutes=10)


def _nodes(count: int, shape: NodeShape = SUMMIT) -> list[Node]:
    return [Node(f"n{number}", shape) for number in range(count)]


def _scheduler(count: int, **options: object) -> Scheduler:
    return Scheduler(_nodes(count), **options)  # type: ignore[arg-type]


def _job(key: str, needs: JobNeeds = SMALL, *, search: str = "s", **changes: float) -> ScheduledJob:
    return ScheduledJob(key, search, replace(needs, **changes))  # type: ignore[arg-type]


def _add(scheduler: Scheduler, *jobs: ScheduledJob) -> None:
    for job in jobs:
        scheduler.add(job)


def _places(starts: list[Start]) -> dict[object, list[str]]:
    return {start.job.key: [share.node for share in start.shares] for start in starts}


def test_small_jobs_share_a_node_and_leave_the_others_whole() -> None:
    scheduler = _scheduler(3)
    for key in "abcdefg":
        scheduler.add(_job(key))
    starts = scheduler.starts(0.0)
    assert [start.shares[0].node for start in starts] == ["n0"] * 6 + ["n1"]
    assert sorted(start.shares[0].gpus for start in starts[:6]) == [(number,) for number in range(6)]
    assert len({core for start in starts[:6] for core in start.shares[0].cores}) == 42
    scheduler.add(_job("large", WHOLE))
    assert _places(scheduler.starts(1.0)) == {"large": ["n2"]}


def test_a_large_job_gets_neighbours_and_what_ends_is_free_at_once() -> None:
    scheduler = _scheduler(12)
    for key in range(6):
        scheduler.add(_job(str(key), WHOLE, nodes=2))
    assert _places(scheduler.starts(0.0))["3"] == ["n6", "n7"]
    scheduler.ended("0", Ending.FINISHED, 5.0)
    scheduler.ended("3", Ending.FINISHED, 5.0)
    scheduler.ended("4", Ending.FINISHED, 5.0)
    _add(scheduler, _job("four", WHOLE, nodes=4), _job("two", WHOLE, nodes=2))
    assert _places(scheduler.starts(5.0)) == {"four": ["n6", "n7", "n8", "n9"], "two": ["n0", "n1"]}


def test_a_job_larger_than_the_allocation_is_refused_alone() -> None:
    scheduler = _scheduler(4)
    scheduler.lose_node("n1", 0.0)
    with pytest.raises(InputError, match=r"needs 4 nodes with 6 GPUs.*; 3 of the allocation's 4 nodes have this"):
        scheduler.add(_job("a", WHOLE, nodes=4))
    with pytest.raises(InputError, match=r"needs 1 nodes with 7 GPUs.*; 0 of"):
        scheduler.add(_job("b", gpus_per_node=7))
    with pytest.raises(InputError, match="must be positive"):
        scheduler.add(_job("c", minutes=math.inf))
    scheduler.add(_job("d", WHOLE, nodes=3))
    with pytest.raises(InputError, match="waits or runs already"):
        scheduler.add(_job("d"))
    assert _places(scheduler.starts(0.0)) == {"d": ["n0", "n2", "n3"]}
    with pytest.raises(InputError, match="does not run"):
        scheduler.ended("a", Ending.FINISHED, 0.0)


def test_an_allocation_that_makes_no_sense() -> None:
    with pytest.raises(InputError, match="one node at least"):
        Scheduler([])
    with pytest.raises(InputError, match="2 nodes have 1 names"):
        Scheduler(_nodes(1) * 2)
    with pytest.raises(InputError, match="1 or more"):
        NodeShape(cores=0, memory_mb=1)


def _with_a_waiting_job(policy: Policy | None = None) -> Scheduler:
    """Two of three nodes run for 60 minutes; a job waits for all three."""
    scheduler = _scheduler(3, policy=policy)
    _add(scheduler, _job("running", WHOLE, nodes=2), _job("waits", WHOLE, nodes=3))
    assert list(_places(scheduler.starts(0.0))) == ["running"]
    return scheduler


def test_short_jobs_run_before_one_that_waits_long_ones_do_not() -> None:
    scheduler = _with_a_waiting_job()
    assert scheduler.reserved == (_job("waits", WHOLE, nodes=3), 3600.0)
    _add(scheduler, _job("long", minutes=61), _job("short", minutes=60))
    assert list(_places(scheduler.starts(0.0))) == ["short"]
    scheduler.add(_job("later", minutes=60))
    assert not scheduler.starts(1.0)
    scheduler.ended("short", Ending.FINISHED, 10.0)
    scheduler.ended("running", Ending.FINISHED, 20.0)
    assert list(_places(scheduler.starts(20.0))) == ["waits"]
    assert scheduler.reserved is not None
    assert scheduler.reserved[0].key == "long"


def test_a_promise_holds_when_run_times_do_not() -> None:
    """The nodes that are kept stay empty from the promised start on, whatever else would fit."""
    scheduler = _with_a_waiting_job()
    assert not scheduler.starts(3700.0)  # `running` should have ended
    scheduler.add(_job("short", minutes=1))
    assert not scheduler.starts(3700.0)
    scheduler.ended("running", Ending.FAILED, 3800.0)
    assert list(_places(scheduler.starts(3800.0))) == ["waits"]


def test_nodes_that_come_free_take_the_place_of_those_kept() -> None:
    scheduler = _scheduler(4)
    for key, minutes in (("a", 10), ("b", 20), ("c", 60), ("d", 60)):
        scheduler.add(_job(key, WHOLE, minutes=minutes))
    scheduler.add(_job("two", WHOLE, nodes=2))
    scheduler.starts(0.0)
    assert scheduler.reserved is not None
    assert scheduler.reserved[1] == 1200.0
    scheduler.ended("d", Ending.FAILED, 30.0)
    assert not scheduler.starts(30.0)
    scheduler.add(_job("long", WHOLE, minutes=60))
    assert not scheduler.starts(31.0)  # n3 is kept now
    scheduler.add(_job("later", WHOLE, minutes=60))
    assert not scheduler.starts(301.0)
    assert scheduler.reserved[1] == 600.0  # a quarter of the time on, an earlier start is found
    scheduler.ended("c", Ending.FINISHED, 310.0)
    assert _places(scheduler.starts(310.0)) == {"two": ["n2", "n3"]}


def test_what_keeps_checkpoints_starts_while_two_of_them_are_left() -> None:
    scheduler = _scheduler(2, ends=7320.0)
    scheduler.add(_job("long", WHOLE, minutes=6000, checkpoints=True))
    assert list(_places(scheduler.starts(0.0))) == ["long"]
    scheduler.add(_job("next", WHOLE, minutes=6000, checkpoints=True))
    assert not scheduler.starts(6601.0)
    assert [job.key for job in scheduler.hand_back(6601.0)] == ["next"]
    scheduler.ended("long", Ending.CHECKPOINTED, 6601.0)
    scheduler.add(_job("next", WHOLE, minutes=6000, checkpoints=True))
    assert list(_places(scheduler.starts(6600.0))) == ["next"]


def test_nodes_are_not_kept_for_a_job_that_may_not_end_there_and_others_do_not_delay_it() -> None:
    """A reservation is for all minutes, and what may take longer than until then starts elsewhere."""
    scheduler = _scheduler(2, ends=7200.0, policy=Policy(margin=0.0))
    _add(scheduler, _job("a", WHOLE, minutes=30), _job("both", WHOLE, nodes=2, minutes=60))
    assert list(_places(scheduler.starts(0.0))) == ["a"]
    assert scheduler.reserved[1] == 1800.0
    long = _job("long", WHOLE, minutes=100, checkpoints=True, search="new")  # type: ignore[arg-type]
    request = scheduler.request_jobs(0.0)
    assert not request.now.take(long.needs, request.needed("new", long.needs))
    scheduler.add(long)
    assert not scheduler.starts(0.0)
    scheduler.ended("a", Ending.FINISHED, 10.0)
    assert list(_places(scheduler.starts(10.0))) == ["both"]
    other = _scheduler(2, ends=7200.0)
    _add(other, _job("a", WHOLE, minutes=30), _job("two", WHOLE, nodes=2, minutes=600, checkpoints=True))
    assert list(_places(other.starts(0.0))) == ["a"]
    assert other.reserved is None


def test_the_run_time_of_a_job_that_went_on_from_a_checkpoint_is_not_measured() -> None:
    scheduler = _scheduler(1)
    scheduler.add(_job("rest"))
    scheduler.starts(0.0)
    scheduler.ended("rest", Ending.RESUMED, 10.0)
    assert not scheduler.request_jobs(10.0).seconds
    assert scheduler.usage(10.0).nodes.used == 10.0


def test_nothing_starts_that_would_not_end_in_time() -> None:
    scheduler = _scheduler(2, ends=3600.0, policy=Policy(margin=300.0))
    _add(scheduler, _job("fits", minutes=55), _job("a quarter fits", minutes=220), _job("late", minutes=221))
    assert list(_places(scheduler.starts(0.0))) == ["fits", "a quarter fits"]
    assert [job.key for job in scheduler.hand_back(0.0)] == ["late"]
    assert scheduler.waiting == 0
    assert {opening.seconds for opening in scheduler.request_jobs(100.0).now} == {3200.0}
    assert not scheduler.request_jobs(3300.0).now


def test_measured_run_times_decide_once_there_are_enough() -> None:
    scheduler = _scheduler(1, ends=7200.0, policy=Policy(margin=0.0, measurements=5))
    for number in range(5):
        scheduler.add(_job(str(number), minutes=60))
        assert scheduler.starts(100.0 * number)
        scheduler.ended(str(number), Ending.FINISHED, 100.0 * number + 100.0)
    assert 100.0 <= scheduler.request_jobs(500.0).seconds["s"] < 110.0
    scheduler.add(_job("now", minutes=60))
    scheduler.add(_job("other", minutes=60, search="t"))  # type: ignore[arg-type]
    assert list(_places(scheduler.starts(7000.0))) == ["now"]
    assert [job.key for job in scheduler.hand_back(7000.0)] == ["other"]


def _measured() -> Scheduler:
    """Two nodes; jobs of a search took 100 seconds each, and one on each node starts, at 500 and at 600."""
    scheduler = _scheduler(2, policy=Policy(measurements=5))
    for number in range(5):
        scheduler.add(_job(str(number), minutes=60))
        scheduler.starts(100.0 * number)
        scheduler.ended(str(number), Ending.FINISHED, 100.0 * number + 100.0)
    for key, now in (("a", 500.0), ("b", 600.0)):
        scheduler.add(_job(key, WHOLE))
        scheduler.starts(now)
    return scheduler


def test_a_promise_is_not_put_off() -> None:
    scheduler = _measured()
    scheduler.add(_job("both", WHOLE, nodes=2))
    scheduler.starts(601.0)
    assert scheduler.reserved is not None
    promised = scheduler.reserved[1]
    assert 700.0 <= promised < 710.0
    scheduler.add(_job("other"))
    scheduler.starts(690.0)  # `a` should have ended long since, and would now be taken to end at 785
    assert scheduler.reserved[1] == promised


def test_a_job_that_lasts_longer_than_was_likely_is_given_half_as_long_again() -> None:
    scheduler = _measured()
    scheduler.add(_job("one", WHOLE))
    scheduler.starts(800.0)
    assert scheduler.reserved is not None
    assert scheduler.reserved[1] == 600.0 + 1.5 * 200.0  # of `b`; `a` would be later
    scheduler.ended("b", Ending.FINISHED, 801.0)
    assert list(_places(scheduler.starts(801.0))) == ["one"]
    scheduler.add(_job("more", WHOLE))
    scheduler.starts(4099.0)
    assert scheduler.reserved[1] == 500.0 + 3600.0  # no later than its limit


def test_a_large_job_for_which_there_is_no_time_left_holds_nothing() -> None:
    scheduler = _scheduler(2, ends=7200.0, policy=Policy(margin=0.0))
    _add(
        scheduler, _job("a", WHOLE, minutes=70), _job("both", WHOLE, nodes=2, minutes=60), _job("b", WHOLE, minutes=119)
    )
    assert list(_places(scheduler.starts(0.0))) == ["a", "b"]
    assert [job.key for job in scheduler.hand_back(0.0)] == ["both"]


def test_a_lost_node_takes_its_jobs_and_stays_out() -> None:
    scheduler = _scheduler(3)
    _add(scheduler, _job("two", WHOLE, nodes=2), _job("one", WHOLE))
    scheduler.starts(0.0)
    assert [job.key for job in scheduler.lose_node("n1", 10.0)] == ["two"]
    assert scheduler.lose_node("n1", 11.0) == ()
    scheduler.add(_job("next", WHOLE))
    assert not scheduler.starts(12.0)  # n0 stays with `two` until its processes are gone
    scheduler.ended("two", Ending.LOST, 13.0)
    assert _places(scheduler.starts(13.0)) == {"next": ["n0"]}
    scheduler.ended("one", Ending.FINISHED, 20.0)
    scheduler.ended("next", Ending.FINISHED, 20.0)
    with pytest.raises(InputError, match="2 of the allocation's 3"):
        scheduler.add(_job("three", WHOLE, nodes=3))
    usage = scheduler.usage(20.0)
    assert usage.nodes.gone == 10.0
    assert usage.nodes.lost == 10.0 + 13.0
    assert usage.nodes.used == 20.0 + 7.0
    assert usage.nodes.total == 60.0


def test_jobs_that_lost_nodes_leave_no_room_for_go_back() -> None:
    scheduler = _with_a_waiting_job()
    scheduler.lose_node("n2", 1.0)
    assert [job.key for job in scheduler.hand_back(1.0)] == ["waits"]
    assert scheduler.reserved is None


def test_a_drained_allocation_starts_and_wants_nothing_and_gives_back() -> None:
    scheduler = _scheduler(1)
    scheduler.add(_job("a"))
    scheduler.starts(0.0)
    scheduler.add(_job("b"))
    scheduler.drain()
    assert not scheduler.starts(0.0)
    assert not scheduler.request_jobs(0.0).now
    assert not scheduler.request_jobs(0.0).later
    assert [job.key for job in scheduler.hand_back(0.0)] == ["b"]
    assert scheduler.running == 1


def test_the_request_says_what_is_free_and_what_could_wait() -> None:
    scheduler = _scheduler(4, ends=10_120.0)
    for key in "abcdefg":
        scheduler.add(_job(key))
    scheduler.starts(0.0)
    request = scheduler.request_jobs(0.0)
    assert set(request.now) == {
        Room(1, (3, 2), 35, 452_000, 10_000.0),
        Room(2, (3, 3), 42, 512_000, 10_000.0),
    }
    assert Room(4, (3, 3), 42, 512_000, 9400.0) in request.later  # the small ones end by then
    assert Room(2, (3, 3), 42, 512_000, 10_000.0) in request.later
    scheduler.add(_job("all", WHOLE, nodes=4))
    scheduler.starts(1.0)
    assert not scheduler.request_jobs(1.0).later
    assert {opening.seconds for opening in scheduler.request_jobs(1.0).now} == {599.0}


def test_gpu_pairs_of_different_nodes_are_kept_whole() -> None:
    shape = NodeShape(cores=56, memory_mb=512_000, gpus=8, close=2)
    scheduler = Scheduler(_nodes(2, shape))
    for key in ("a", "b"):
        scheduler.add(_job(key, gpus_per_node=7))
    scheduler.starts(0.0)
    scheduler.ended("a", Ending.FINISHED, 1.0)
    _add(scheduler, _job("one"), _job("pair", gpus_per_node=2))
    starts = scheduler.starts(1.0)
    assert [(start.shares[0].node, start.shares[0].gpus) for start in starts] == [("n1", (7,)), ("n0", (0, 1))]


def test_cpu_jobs_go_where_no_gpu_is_left_behind() -> None:
    scheduler = Scheduler([*_nodes(2), Node("cpu", NodeShape(cores=64, memory_mb=256_000))])
    _add(scheduler, _job("a", gpus_per_node=0), _job("b", gpus_per_node=0, cores=60))
    assert _places(scheduler.starts(0.0)) == {"a": ["cpu"]}
    with pytest.raises(InputError, match="60 cores"):
        scheduler.add(_job("c", cores=60))


def test_node_seconds_are_shared_by_what_jobs_have_of_the_node() -> None:
    scheduler = _scheduler(2)
    _add(
        scheduler,
        _job("half", gpus_per_node=3, cores=7, search="h"),
        _job("sixth", gpus_per_node=1, cores=7, search="s"),
    )
    scheduler.starts(0.0)
    scheduler.ended("sixth", Ending.FAILED, 40.0)
    usage = scheduler.usage(100.0)
    assert usage.nodes.running == pytest.approx(40.0 * 3 / 4 + 60.0)
    assert usage.nodes.lost == pytest.approx(40.0 / 4)
    assert (usage.nodes.idle, usage.nodes.total) == pytest.approx((100.0, 200.0))
    assert (usage.gpus.running, usage.gpus.lost, usage.gpus.idle) == (300.0, 40.0, 860.0)
    assert usage.endings == {Ending.FAILED: 1}


def test_what_was_handed_back_is_not_requested_again_at_once() -> None:
    scheduler = _scheduler(2, ends=3600.0, policy=Policy(margin=0.0))
    assert max(opening.nodes for opening in scheduler.request_jobs(0.0).later) == 2
    wide = _job("a", WHOLE, nodes=2, minutes=40)
    scheduler.add(wide)
    assert scheduler.starts(1.0)
    scheduler.add(replace(wide, key="b"))
    assert not scheduler.starts(1.0) and scheduler.hand_back(1.0)
    limit = wide.needs.seconds
    assert not [
        opening for opening in scheduler.request_jobs(1.0).later if opening.nodes == 2 and opening.seconds >= limit
    ]


def test_a_job_starts_before_the_end_if_it_has_a_quarter_of_the_usual_time() -> None:
    scheduler = _scheduler(1, ends=10_000.0, policy=Policy(margin=0.0))
    for number in range(20):
        scheduler.add(_job(str(number), WHOLE))
        scheduler.starts(400.0 * number)
        scheduler.ended(str(number), Ending.FINISHED, 400.0 * number + 10.0 * (number + 1))
    likely = scheduler.request_jobs(8000.0).seconds["s"]
    assert 150.0 <= likely <= 170.0
    left = likely / 4 + 1.0
    assert scheduler.request_jobs(10_000.0 - left).needed("s", WHOLE) == pytest.approx(left)
    assert scheduler.request_jobs(10_000.0 - left + 2.0).needed("s", WHOLE) == math.inf
    late = 10_000.0 - likely / 4 + 1.0
    scheduler.add(_job("late", WHOLE))
    assert not scheduler.starts(late)
    assert [job.key for job in scheduler.hand_back(late)] == ["late"]
    scheduler.add(_job("in time", WHOLE))
    assert list(_places(scheduler.starts(late - 2.0))) == ["in time"]


def test_nodes_are_kept_only_for_a_job_that_has_all_its_minutes_there() -> None:
    """The jobs of its search take ten minutes of the hour that they may take."""
    scheduler = _scheduler(2, ends=7200.0, policy=Policy(margin=0.0))
    scheduler.add(_job("measured", WHOLE, nodes=2))
    scheduler.starts(0.0)
    scheduler.ended("measured", Ending.FINISHED, 600.0)
    for key, begins in (("kept", 2900.0), ("late", 3100.0)):
        scheduler.add(_job(f"before {key}", WHOLE, search="other", minutes=10))
        scheduler.starts(begins)
        assert (
            max(opening.seconds for opening in scheduler.request_jobs(begins).later if opening.nodes == 2)
            == 6600.0 - begins
        )
        scheduler.add(_job(key, WHOLE, nodes=2))
        assert not scheduler.starts(begins)
        assert [job.key for job in scheduler.hand_back(begins)] == (["late"] if key == "late" else [])
        scheduler.ended(f"before {key}", Ending.FAILED, begins + 1.0)
        assert len(scheduler.starts(begins + 1.0)) == (key == "kept")
        if key == "kept":
            scheduler.ended(key, Ending.FINISHED, 3000.0)


# --- run times ---


def test_too_few_measurements_say_nothing() -> None:
    times = RunTimes(0.5, 3)
    for end in (10.0, 20.0):
        times.started(0.0)
        times.ended(0.0, end, finished=True)
    assert times.quantile(20.0) is None
    times.started(0.0)
    times.ended(0.0, 30.0, finished=True)
    assert times.quantile(30.0) == pytest.approx(20.0, rel=0.05)


def test_jobs_that_still_run_count_as_longer() -> None:
    """Of a hundred that start together, the first twenty to end are the shortest: no quantile of all is known."""
    times = RunTimes(0.75)
    for _ in range(100):
        times.started(0.0)
    for number in range(1, 101):
        now = 60.0 * number
        times.ended(0.0, now, finished=True)
        known = times.quantile(now)
        assert (known is None) == (number < 25) or number in range(25, 30)
        # Before most have ended it is an estimate, and longer than all that was measured.
        assert known is None or known > now or number > 70
    assert known == pytest.approx(4500.0, rel=0.06)


def test_the_first_run_time_counts() -> None:
    """The next job is longer than the only one in half of all cases, than the longest of three in a quarter."""
    times, found = RunTimes(0.75), []
    for number in range(3):
        times.started(1000.0 * number)
        times.ended(1000.0 * number, 1000.0 * number + 600.0, finished=True)
        found.append(times.quantile(1000.0 * number + 600.0))
    assert found == pytest.approx([900.0, 700.0, 600.0], rel=0.05)


def test_failures_are_no_measurements() -> None:
    times = RunTimes(0.5, 10)
    for number in range(200):
        times.started(float(number))
        times.ended(float(number), number + (1.0 if number % 2 else 1000.0), finished=number % 2 == 0)
    assert times.quantile(1200.0) == pytest.approx(1000.0, rel=0.05)


def test_the_quantile_of_log_normal_run_times_in_a_steady_stream() -> None:
    dice = random.Random(3)
    times = RunTimes(0.75, 20)
    now, running = 0.0, sorted((dice.lognormvariate(7.0, 0.7), 0.0) for _ in range(200))
    for _ in running:
        times.started(0.0)
    for _ in range(3000):
        now, start = running.pop(0)
        times.ended(start, now, finished=True)
        times.started(now)
        running.append((now + dice.lognormvariate(7.0, 0.7), now))
        running.sort()
    assert times.quantile(now) == pytest.approx(1758.0, rel=0.1)  # exp(7 + 0.7 x 0.6745)


def test_staging_is_no_measurement() -> None:
    """The first job copies for ten minutes what the others find: their run time is what is left of it."""
    times = RunTimes(0.5, 2)
    for staging in (600.0, 0.0):
        times.started(0.0)
        times.ended(0.0, 100.0 + staging, finished=True, staging=staging)
    assert times.quantile(700.0) == pytest.approx(100.0, rel=0.05)


def _left_by_a_large_job(policy: Policy | None = None) -> Scheduler:
    """Three of four nodes have run one job until 1000.0; six small jobs run on the other, and one waits."""
    scheduler = _scheduler(4, policy=policy)
    _add(scheduler, _job("large", WHOLE, nodes=3), *(_job(f"small {n}", search="small", minutes=100) for n in range(7)))
    assert len(scheduler.starts(0.0)) == 7
    scheduler.ended("large", Ending.FINISHED, 1000.0)
    return scheduler


def test_the_nodes_that_a_large_job_leaves_are_kept_for_the_next_one() -> None:
    scheduler = _left_by_a_large_job()
    assert not scheduler.starts(1000.0)
    now = scheduler.request_jobs(1000.0).now
    assert (list(now), now.blocks) == ([], [Room(3, (3, 3), 42, 512_000, math.inf)])
    scheduler.add(_job("next", WHOLE, nodes=3))
    assert list(_places(scheduler.starts(1003.0))) == ["next"]
    assert not scheduler.request_jobs(1003.0).now


def test_they_are_kept_for_a_fiftieth_of_its_time_and_a_minute_at_most() -> None:
    scheduler = _left_by_a_large_job()
    assert not scheduler.starts(1019.0)
    assert not list(scheduler.request_jobs(1019.0).now)
    assert list(_places(scheduler.starts(1020.0))) == ["small 6"]
    assert sum(opening.nodes for opening in scheduler.request_jobs(1020.0).now) == 3

    scheduler = _scheduler(2)
    scheduler.add(_job("day", WHOLE, nodes=2, minutes=2000))
    scheduler.starts(0.0)
    scheduler.ended("day", Ending.FINISHED, 86_400.0)
    assert scheduler.request_jobs(86_459.0).now.blocks
    assert not scheduler.request_jobs(86_460.0).now.blocks


def test_a_policy_without_blocks() -> None:
    assert list(_places(_left_by_a_large_job(Policy(block=0.0)).starts(1000.0))) == ["small 6"]


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_job_that_waits_and_is_not_smaller_takes_what_a_large_job_leaves(nodes: int) -> None:
    scheduler = _scheduler(4)
    _add(scheduler, _job("large", WHOLE, nodes=3), _job("beside", WHOLE), _job("waits", WHOLE, nodes=nodes))
    scheduler.starts(0.0)
    scheduler.ended("large", Ending.FINISHED, 1000.0)
    assert bool(scheduler.starts(1000.0)) == (nodes == 3)
    assert bool(scheduler.request_jobs(1000.0).now.blocks) == (nodes == 2)
    scheduler.ended("beside", Ending.FINISHED, 1001.0)
    assert bool(scheduler.starts(1001.0)) == (nodes == 4)


def test_a_smaller_job_that_waits_is_not_given_back_while_all_nodes_are_kept_for_large_ones() -> None:
    scheduler = _scheduler(2)
    _add(scheduler, _job("large", WHOLE, nodes=2), _job("small"))
    scheduler.starts(0.0)
    scheduler.ended("large", Ending.FINISHED, 1000.0)
    assert not scheduler.starts(1000.0)
    assert not scheduler.hand_back(1000.0)
    assert list(_places(scheduler.starts(1020.0))) == ["small"]


def test_nodes_are_not_kept_together_when_one_of_them_is_lost() -> None:
    scheduler = _left_by_a_large_job()
    scheduler.lose_node("n0", 1001.0)
    assert list(_places(scheduler.starts(1001.0))) == ["small 6"]
