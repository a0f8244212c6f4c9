"""Waiting pilots and clients, without a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hpo_pilot.server.pilots import WaitingClients, WaitingPilots


@pytest.fixture
def pilots() -> WaitingPilots:
    return WaitingPilots()


class Pilot:
    """A pilot that looks for jobs in a common list, and counts how often.

    Attributes:
        looked: number of its looks.
        got: the job that it found.
    """

    def __init__(self, pilots: WaitingPilots, site: str, wants: str = "") -> None:
        self.looked, self.got = 0, ""
        self._pilots, self._site, self._wants = pilots, site, wants or site

    async def run(self, jobs: list[str]) -> None:
        waiter = self._pilots.enter(self._site)
        try:
            while not self.got:
                called = self._pilots.looks(waiter)
                self.looked += 1
                await asyncio.sleep(0)
                if self._wants in jobs:
                    jobs.remove(self._wants)
                    self.got = self._wants
                    return
                if called:
                    self._pilots.found_nothing(waiter)
                if not await self._pilots.wait(waiter, 60):
                    return
        finally:
            self._pilots.leave(waiter)


async def settle() -> None:
    """Lets all tasks go on until they wait."""
    for _ in range(500):
        await asyncio.sleep(0)


@asynccontextmanager
async def waiting(pilots: WaitingPilots, *crowd: Pilot) -> AsyncIterator[Callable[..., Any]]:
    """Lets pilots wait; the value announces a job at a queue and returns when they have looked."""
    jobs: list[str] = []
    running = [asyncio.create_task(pilot.run(jobs)) for pilot in crowd]
    await settle()

    async def announce(job: str, site: str) -> None:
        jobs.append(job)
        pilots.announce(Counter({site: 1}))
        await settle()

    yield announce
    pilots.close()
    await asyncio.wait_for(asyncio.gather(*running), 60)


def test_a_job_wakes_the_pilot_that_came_first(pilots: WaitingPilots) -> None:
    async def scenario() -> None:
        crowd = [Pilot(pilots, "A") for _ in range(50)]
        async with waiting(pilots, *crowd) as announce:
            await announce("A", "A")
            assert crowd[0].got and sum(pilot.looked for pilot in crowd) == 51

    asyncio.run(scenario())


def test_a_job_that_does_not_fit_the_first_pilot_wakes_the_next_one(pilots: WaitingPilots) -> None:
    async def scenario() -> None:
        crowd = [*(Pilot(pilots, "A", "small") for _ in range(5)), Pilot(pilots, "A", "big")]
        async with waiting(pilots, *crowd) as announce:
            await announce("big", "A")
            assert crowd[-1].got and [pilot.looked for pilot in crowd] == [2] * 6

    asyncio.run(scenario())


def test_a_pilot_that_comes_and_finds_nothing_wakes_nobody(pilots: WaitingPilots) -> None:
    async def scenario() -> None:
        crowd = [Pilot(pilots, "A") for _ in range(50)]
        async with waiting(pilots, *crowd) as announce:
            await announce("A", "A")
            async with waiting(pilots, Pilot(pilots, "A")):
                assert sum(pilot.looked for pilot in crowd) == 51

    asyncio.run(scenario())


def test_a_job_for_any_queue_wakes_pilots_of_all_queues(pilots: WaitingPilots) -> None:
    async def scenario() -> None:
        one, other = Pilot(pilots, "A"), Pilot(pilots, "B", "for B")
        async with waiting(pilots, one, other) as announce:
            await announce("for B", "")
            assert other.got
            await announce("x", "B")  # no pilot waits there
            assert one.looked == 2

    asyncio.run(scenario())


def test_a_woken_pilot_that_leaves_wakes_the_next_one(pilots: WaitingPilots) -> None:
    async def scenario() -> None:
        leaving, stays = pilots.enter("A"), Pilot(pilots, "A")
        woken = asyncio.create_task(pilots.wait(leaving, 60))
        async with waiting(pilots, stays) as announce:
            await announce("A", "A")
            assert await woken and not stays.got
            pilots.leave(leaving)
            await settle()
            assert stays.got

    asyncio.run(scenario())


def test_a_job_announced_during_a_look_is_not_missed(pilots: WaitingPilots) -> None:
    async def scenario() -> None:
        waiter = pilots.enter("A")
        pilots.looks(waiter)
        pilots.announce(Counter({"A": 1}))
        assert await pilots.wait(waiter, 60) is True
        pilots.looks(waiter)
        assert await pilots.wait(waiter, 0.01) is False

    asyncio.run(scenario())


def test_changes_wake_clients_of_their_user_and_of_any_user() -> None:
    async def scenario() -> None:
        clients = WaitingClients()
        mine, yours, anybodys = (clients.listen(user) for user in ("me", "you", ""))
        clients.announce({"me"})
        assert [await clients.wait(one, 0.01) for one in (mine, anybodys, yours)] == [True, True, False]
        late = clients.listen("me")
        clients.close()
        assert [await clients.wait(one, 1) for one in (late, clients.listen("me"))] == [False, False]

    asyncio.run(scenario())
