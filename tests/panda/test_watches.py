"""How often a server that cannot tell of changes is asked."""

from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

from hpo_pilot.panda.tasks import INTERVAL, SPACING, WHOLE_SECONDS, Watches
from tests.clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watches(clock):
    return Watches(clock, random.Random(1))


def looks(watches, clock, seconds, visible="the same", *, unready=False, **wishes):
    """When task 7 is looked at and read, if a caller looks whenever it is due."""
    looked, read = [], []
    end = clock.now + seconds
    while clock.now < end:
        if watches.wait(0):
            looked.append(clock.now)
            if watches.looked(7, visible, {1}, **wishes):
                watches.read(7, visible, (), unready=unready)
                read.append(clock.now)
        clock.now += 1.0
    return looked, read


def pauses(times):
    return [b - a for a, b in pairwise(times)]


def test_values_of_running_jobs_are_read_every_fifteen_seconds(watches, clock):
    watches.begin(7)
    found = pauses(looks(watches, clock, 3600, values=True)[1])
    assert max(found) <= 15 and min(found) >= 8


def test_every_task_is_looked_at_within_a_minute(watches, clock):
    watches.begin(7)
    assert max(pauses(looks(watches, clock, 7200)[0])) <= 60


def test_tasks_that_nobody_looks_at_any_more_delay_no_other(watches, clock):
    for task in range(400, 1000):
        watches.begin(task)
    clock.now += 60
    assert len(watches.wait(0)) == 600
    watches.begin(7)
    assert max(pauses(looks(watches, clock, 7200)[0])) <= 60


@pytest.mark.parametrize("values", [False, True])
def test_many_tasks_are_looked_at_less_often(watches, clock, values):
    for task in range(400):
        watches.begin(task)
    looks_at_all = 0
    for second in range(3600):
        clock.now += 1.0
        for task in watches.wait(0):
            looks_at_all += second >= 1800
            if watches.looked(task, "the same", {1}, values=values):
                watches.read(task, "the same", ())
    assert looks_at_all < 1.1 * 1800 / SPACING


def test_looks_grow_rare_while_nothing_happens_and_a_change_brings_them_back(watches, clock):
    watches.begin(7)
    found = pauses(looks(watches, clock, 7200)[0])
    assert found[0] < 2 * INTERVAL[0] and found[-1] > 0.7 * max(INTERVAL)
    changed = clock.now
    after = looks(watches, clock, 600, "another")[0]
    assert after[0] - changed <= 1.2 * max(INTERVAL) + 1
    assert after[1] - after[0] < 2 * INTERVAL[0]


def test_a_job_that_stays_unready_for_hours_is_not_asked_for_all_the_time(watches, clock):
    watches.begin(7)
    looked, read = looks(watches, clock, 7200, unready=True)
    assert looked == read and looked[3] - looked[0] < 60
    assert len(looked) < 7200 / (0.7 * max(INTERVAL))


def test_many_tasks_do_not_come_at_once(watches, clock):
    for number in range(100):
        watches.begin(number)
    due = set()
    for _ in range(8):
        clock.now += 1.0
        due |= watches.wait(0)
    assert not due
    clock.now += 1.5
    assert 0 < len(watches.wait(0)) < 100


def test_a_due_task_is_told_once_until_it_is_looked_at(watches, clock):
    watches.begin(7)
    clock.now += 100
    assert watches.wait(0) == {7}
    clock.now += 1000
    assert watches.wait(0) == set()
    watches.looked(7, "x", ())
    clock.now += 100
    assert watches.wait(0) == {7}


def test_a_task_is_read_whole_when_it_changed_and_now_and_then(watches, clock):
    assert watches.looked(7, "running", {1, 2})
    watches.read(7, "running", {2})
    assert not watches.looked(7, "running", {1})
    assert watches.looked(7, "running", {1, 2}), "the caller lacks what was told once: its store had been away"
    assert watches.looked(7, "done", {1})
    watches.read(7, "done", (), unready=True)
    assert watches.looked(7, "done", {1}), "something was not ready"
    watches.read(7, "done", ())
    clock.now += WHOLE_SECONDS + 1
    assert watches.looked(7, "done", {1})


def test_a_wait_can_be_ended_from_elsewhere():
    watches = Watches()
    threading.Timer(0.2, watches.wake).start()
    assert watches.wait(600.0) == set()
