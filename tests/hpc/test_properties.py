"""What must hold whatever jobs come, however long they run, and whichever nodes are lost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.capacity import AllocationRequest, AllocationRoom
from hpo_pilot.hpc.scheduler import Policy, Scheduler
from hpo_pilot.hpc.usage import Ending, ScheduledJob
from hpo_pilot.jobs.resources import JobNeeds, Node, NodeShape
from tests.hpc.checker import Checker, Event

SHAPES = (
    NodeShape(cores=8, memory_mb=100, gpus=6, close=3),
    NodeShape(cores=8, memory_mb=100, gpus=4, close=2),
    NodeShape(cores=12, memory_mb=300),
)
NEEDS = st.builds(
    JobNeeds,
    nodes=st.integers(1, 5),
    gpus_per_node=st.integers(0, 6) | st.sampled_from([Fraction(1, share) for share in (2, 3, 4, 8)]),
    cores=st.integers(1, 9),
    memory_mb=st.integers(1, 120),
    minutes=st.sampled_from([5.0, 20.0, 60.0, 200.0]),
    checkpoints=st.booleans(),
)


@dataclass
class Driver:
    """A caller of the scheduler that draws what happens, and has every event checked."""

    data: st.DataObject
    lose: bool = True
    ends: float = 100_000.0
    now: float = 0.0
    running: dict[str, tuple[ScheduledJob, float]] = field(default_factory=dict)
    waiting: dict[str, ScheduledJob] = field(default_factory=dict)
    returned: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        shapes = self.data.draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=9))
        self.nodes = [Node(f"n{number}", shape) for number, shape in enumerate(shapes)]
        self.shapes = [self.data.draw(NEEDS) for _ in range(self.data.draw(st.integers(1, 5)))]
        policy = Policy(margin=0.0, measurements=2, quantile=0.5, depth=self.data.draw(st.sampled_from([2, 64])))
        self.scheduler = Scheduler(self.nodes, ends=self.ends, policy=policy)
        self.checker = Checker(self.nodes)
        self.jobs = 0
        self.promised: dict[object, float] = {}

    def new_job(self, needs: JobNeeds) -> ScheduledJob:
        self.jobs += 1
        return ScheduledJob(f"j{self.jobs}", f"s{needs.minutes}", needs)

    def add(self, job: ScheduledJob) -> bool:
        try:
            self.scheduler.add(job)
        except InputError as error:
            assert "ask for less" in str(error)
            self.refused += 1
            return False
        self.waiting[str(job.key)] = job
        return True

    def starts(self) -> list[str]:
        found = self.scheduler.starts(self.now)
        for start in found:
            key = str(start.job.key)
            self.checker.replay([Event(self.now, start)])
            self.running[key] = (self.waiting.pop(key), self.now)
            if key in self.promised:
                # From the promise on, only jobs that began before it are in the way, each to its limit at most.
                assert self.now <= self.promised[key] + max(60.0 * one.minutes for one in self.shapes)
        if (reserved := self.scheduler.reserved) is not None:
            job, start_at = reserved
            assert str(job.key) in self.waiting
            if not self.lose:  # else another promise may be needed
                assert start_at <= self.promised.setdefault(str(job.key), start_at)
        return [str(start.job.key) for start in found]

    def end(self, key: str, ending: Ending = Ending.FINISHED) -> None:
        del self.running[key]
        self.scheduler.ended(key, ending, self.now)
        self.checker.replay([Event(self.now, ended=key, ending=ending)])

    def pass_time(self, seconds: float) -> None:
        """Time goes on; jobs are ended at their limits, and what is free then is used at once."""
        until = self.now + seconds
        while self.running:
            limit, key = min((began + job.needs.seconds, key) for key, (job, began) in self.running.items())
            if limit > until:
                break
            self.now = max(self.now, limit)
            self.end(key, Ending.FAILED)
            self.starts()
        self.now = until

    def lose_node(self, node: Node) -> None:
        self.checker.replay([Event(self.now, lost=node.name)])
        for job in self.scheduler.lose_node(node.name, self.now):
            self.end(str(job.key), Ending.LOST)

    def hand_back(self) -> None:
        for job in self.scheduler.hand_back(self.now):
            del self.waiting[str(job.key)]
            self.returned += 1

    def step(self) -> None:
        losing = "lose" if self.lose else "end"
        what = self.data.draw(st.sampled_from(["add", "add", "end", "time", losing, "back"]))
        if what == "add":
            self.add(self.new_job(self.data.draw(st.sampled_from(self.shapes))))
        elif what == "end" and self.running:
            self.end(self.data.draw(st.sampled_from(sorted(self.running))))
        elif what == "time":
            self.pass_time(self.data.draw(st.sampled_from([1.0, 100.0, 1000.0, 5000.0])))
        elif what == "lose":
            self.lose_node(self.data.draw(st.sampled_from(self.nodes)))
        elif what == "back":
            self.hand_back()
        self.starts()


@settings(max_examples=60)
@given(st.data())
def test_nothing_is_given_twice_and_everything_is_given_back(data: st.DataObject) -> None:
    driver = Driver(data)
    for _ in range(data.draw(st.integers(1, 40))):
        driver.step()
    usage = driver.scheduler.usage(driver.now)
    assert abs(usage.nodes.total - driver.now * len(driver.nodes)) < 1e-6 * (1.0 + driver.now)
    assert usage.nodes.idle > -1e-6
    assert usage.gpus.idle > -1e-6
    driver.scheduler.drain()
    driver.hand_back()
    for key in sorted(driver.running):
        driver.end(key)
    driver.checker.finish()
    assert not driver.waiting
    assert driver.scheduler.running == driver.scheduler.waiting == 0
    started = sum(driver.scheduler.usage(driver.now).endings.values())
    assert started + driver.returned + driver.refused == driver.jobs


@settings(max_examples=60)
@given(st.data())
def test_the_oldest_job_starts_by_what_it_was_promised(data: st.DataObject) -> None:
    driver = Driver(data, lose=False)
    for _ in range(data.draw(st.integers(1, 40))):
        driver.step()
    longest = max(60.0 * one.minutes for one in driver.shapes)
    # However many wait: each is the oldest one day, and starts no later than two longest jobs after that.
    for _ in range(2 * len(driver.waiting) + 2):
        driver.pass_time(longest)
        driver.starts()
        driver.hand_back()
    assert not driver.waiting


@settings(max_examples=80)
@given(st.data())
def test_what_is_handed_out_for_a_request_starts_at_once(data: st.DataObject) -> None:
    driver = Driver(data, ends=data.draw(st.sampled_from([100_000.0, 8000.0])))
    for _ in range(data.draw(st.integers(0, 25))):
        driver.step()
    request = driver.scheduler.request_jobs(driver.now)
    assert list(AllocationRequest.from_text(request.to_text()).now) == [
        replace(room, seconds=math.floor(room.seconds)) for room in request.now if room.seconds >= 1
    ]
    openings = AllocationRoom(list(request.now))
    expected = []
    for _ in range(data.draw(st.integers(1, 12))):
        job = driver.new_job(data.draw(st.one_of(st.sampled_from(driver.shapes), NEEDS)))
        if openings.take(job.needs, request.needed(job.search, job.needs)):
            assert driver.add(job)
            expected.append(str(job.key))
    assert sorted(driver.starts()) == sorted(expected)


@settings(max_examples=60)
@given(st.data())
def test_a_job_that_is_said_to_fit_later_is_not_refused(data: st.DataObject) -> None:
    driver = Driver(data)
    for _ in range(data.draw(st.integers(0, 25))):
        driver.step()
    request = driver.scheduler.request_jobs(driver.now)
    for opening in request.later:
        assert 0 < opening.nodes <= len(driver.nodes)
        needs = JobNeeds(opening.nodes, sum(opening.gpus), opening.cores, opening.memory_mb, 1.0)
        assert not driver.scheduler.waiting
        assert driver.add(driver.new_job(needs))
        driver.scheduler.hand_back(driver.now)
        driver.starts()
        break
