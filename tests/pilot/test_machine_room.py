from __future__ import annotations

import math
import random
import threading
import time
from concurrent.futures import wait
from dataclasses import replace
from fractions import Fraction

from hpo_pilot.pilot.machine import FreeResources, MachineGpu, MachinePool, MachineReservation
from tests.pilot.conftest import in_background

GPUS = (MachineGpu("0", "NVIDIA"), MachineGpu("1", "NVIDIA"))
NEVER = threading.Event()


def test_what_is_claimed_is_offered_no_more():
    room = MachinePool(4, 8, GPUS)
    assert room.wait_for_some(NEVER) == FreeResources(4, 8, GPUS)
    first = room.reserve({"coreCount": 6})
    assert room.enter(first, NEVER) and room.take_gpus(first, 1, NEVER)
    assert room.wait_for_some(NEVER) == FreeResources(3, 2, GPUS[1:], 0.5)
    room.free(first)
    assert room.wait_for_some(NEVER) == FreeResources(4, 8, GPUS)


def test_jobs_share_a_gpu_up_to_the_whole():
    room = MachinePool(8, 8, GPUS)
    held = []
    for share in (2, 4, 2, 4):
        held.append(room.reserve({"coreCount": 1}))
        held[-1].share = share
        assert room.take_gpus(held[-1], 1, NEVER)
    assert [job.gpus for job in held] == [GPUS[:1], GPUS[:1], GPUS[1:], GPUS[:1]]
    assert room.wait_for_some(NEVER).gpus == (replace(GPUS[1], left=Fraction(1, 2)),)
    whole = room.reserve({"coreCount": 1})
    waiting = in_background(room.take_gpus, whole, 1, NEVER)
    room.free(held[0])
    room.free(held[1])
    wait([waiting], 0.05)
    assert not waiting.done()
    room.free(held[3])
    assert waiting.result(600) and whole.gpus == GPUS[:1]


def test_a_part_of_the_machine_is_not_offered_for_long():
    room = MachinePool(4, 4)
    first = room.reserve({"coreCount": 1})
    assert room.wait_for_some(NEVER).patience == 5.0
    second = room.reserve({"coreCount": 2})
    assert room.wait_for_some(NEVER).patience == 0.5
    room.free(first)
    room.free(second)
    assert room.wait_for_some(NEVER).patience == math.inf


def test_nothing_is_offered_while_slots_or_cores_are_gone_or_somebody_waits():
    for room, claims in ((MachinePool(1, 8), [1]), (MachinePool(4, 2), [2]), (MachinePool(4, 4), [3, 2])):
        held = [room.reserve({"coreCount": cores}) for cores in claims]
        offered = in_background(room.wait_for_some, NEVER)
        wait([offered], 0.05)
        assert not offered.done()
        room.free(held[0])
        assert offered.result(600)


def test_more_than_there_is_means_all_of_it_alone():
    room = MachinePool(3, 4, GPUS)
    small, large = room.reserve({"coreCount": 1}), room.reserve({"coreCount": 64})
    assert small.granted and not large.granted and large.cores == 4
    room.free(small)
    assert room.enter(large, NEVER) and room.take_gpus(large, 5, NEVER) and large.gpus == GPUS
    assert not MachinePool(1, 1).take_gpus(MachineReservation(1), 1, NEVER)


def test_first_come_first_served():
    room = MachinePool(8, 4)
    running, large, small = (room.reserve({"coreCount": cores}) for cores in (2, 4, 1))
    assert not large.granted and not small.granted  # or a large job might wait for ever
    room.free(running)
    assert large.granted and not small.granted
    room.free(large)
    assert small.granted


def test_who_waits_can_be_told_to_stop():
    room, stop = MachinePool(2, 1, GPUS[:1]), threading.Event()
    first, second = room.reserve({"coreCount": 1}), room.reserve({"coreCount": 1})
    assert room.take_gpus(first, 1, stop)
    waiting = [in_background(room.enter, second, stop), in_background(room.take_gpus, second, 1, stop)]
    stop.set()
    room.wake()
    assert [one.result(600) for one in waiting] == [False, False]
    room.free(second)
    room.free(first)
    assert room.wait_for_some(NEVER) == FreeResources(2, 1, GPUS[:1])


def test_nothing_is_lent_twice():
    room, chance = MachinePool(6, 5, GPUS), random.Random(3)
    used, most, lock = [0, 0], [0, 0], threading.Lock()

    def job(cores: int, gpus: int, seconds: float) -> None:
        claim = room.reserve({"coreCount": cores})
        assert room.enter(claim, NEVER)
        if gpus:
            assert room.take_gpus(claim, gpus, NEVER)
        with lock:
            used[0] += claim.cores
            used[1] += len(claim.gpus)
            most[:] = [max(a, b) for a, b in zip(most, used, strict=True)]
        time.sleep(seconds)
        with lock:
            used[0] -= claim.cores
            used[1] -= len(claim.gpus)
        room.free(claim)

    jobs = [in_background(job, chance.randint(1, 5), chance.randint(0, 2), chance.random() / 100) for _ in range(60)]
    for one in jobs:
        one.result(600)
    assert used == [0, 0] and most == [5, 2]
    free = room.wait_for_some(NEVER)
    assert (free.slots, free.cores, len(free.gpus)) == (6, 5, 2)
