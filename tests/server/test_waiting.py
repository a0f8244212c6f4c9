"""Waiting pilots and clients, without a server."""

from __future__ import annotations

import asyncio
from collections import Counter

from hpo_pilot.server.pilots import Waiter, WaitingClients, WaitingPilots


class Pilot:
    """A pilot that looks for jobs in a common pile, and counts how often."""

    def __init__(self, pilots: WaitingPilots, pile: list[str], site: str, wants: str = "") -> None:
        self.looked = 0
        self.got: str | None = None
        self._pilots, self._pile, self._site, self._wants = pilots, pile, site, wants or site

    async def run(self, seconds: float = 5) -> None:
        waiter: Waiter = self._pilots.enter(self._site)
        try:
            while True:
                self._pilots.looks(waiter)
                self.looked += 1
                await asyncio.sleep(0)
                if self._wants in self._pile:
                    self._pile.remove(self._wants)
                    self.got = self._wants
                    return
                self._pilots.found_nothing(waiter)
                if not await self._pilots.wait(waiter, seconds):
                    return
        finally:
            self._pilots.leave(waiter)


def test_one_job_rouses_one_pilot() -> None:
    async def scenario() -> None:
        pilots, pile = WaitingPilots(), list[str]()
        crowd = [Pilot(pilots, pile, "A") for _ in range(50)]
        running = [asyncio.create_task(pilot.run()) for pilot in crowd]
        await asyncio.sleep(0.01)
        pile.append("A")
        pilots.announce(Counter({"A": 1}))
        await asyncio.sleep(0.01)
        assert crowd[0].got == "A"  # the first who came
        assert sum(pilot.looked for pilot in crowd) == 51
        pilots.close()
        await asyncio.wait_for(asyncio.gather(*running), 2)

    asyncio.run(scenario())


def test_the_call_is_passed_on_to_whom_the_job_fits() -> None:
    async def scenario() -> None:
        pilots, pile = WaitingPilots(), list[str]()
        crowd = [Pilot(pilots, pile, "A", wants="small") for _ in range(5)] + [Pilot(pilots, pile, "A", wants="big")]
        running = [asyncio.create_task(pilot.run()) for pilot in crowd]
        await asyncio.sleep(0.01)
        pile.append("big")
        pilots.announce(Counter({"A": 1}))
        await asyncio.sleep(0.01)
        assert crowd[-1].got == "big"
        assert [pilot.looked for pilot in crowd] == [2] * 6
        pilots.close()
        await asyncio.gather(*running)

    asyncio.run(scenario())


def test_a_job_for_any_queue_finds_its_pilot_at_any_queue() -> None:
    async def scenario() -> None:
        pilots, pile = WaitingPilots(), list[str]()
        crowd = [Pilot(pilots, pile, "A"), Pilot(pilots, pile, "B", wants="for B")]
        running = [asyncio.create_task(pilot.run()) for pilot in crowd]
        await asyncio.sleep(0.01)
        pile.append("for B")
        pilots.announce(Counter({"": 1}))
        await asyncio.sleep(0.01)
        assert crowd[1].got == "for B"
        pilots.announce(Counter({"B": 1}))  # nobody is left there
        await asyncio.sleep(0.01)
        assert crowd[0].looked == 2
        pilots.close()
        await asyncio.gather(*running)

    asyncio.run(scenario())


def test_a_woken_pilot_that_leaves_passes_the_call_on() -> None:
    async def scenario() -> None:
        pilots, pile = WaitingPilots(), list[str]()
        leaving = pilots.enter("A")
        stays = Pilot(pilots, pile, "A")
        running = asyncio.create_task(stays.run())
        waiting = asyncio.create_task(pilots.wait(leaving, 5))
        await asyncio.sleep(0.01)
        pile.append("A")
        pilots.announce(Counter({"A": 1}))
        assert await waiting is True
        pilots.leave(leaving)
        await asyncio.wait_for(running, 5)
        assert stays.got == "A"

    asyncio.run(scenario())


def test_a_call_while_one_is_looking_is_not_missed() -> None:
    async def scenario() -> None:
        pilots = WaitingPilots()
        waiter = pilots.enter("A")
        pilots.looks(waiter)
        pilots.announce(Counter({"A": 1}))
        assert await pilots.wait(waiter, 5) is True
        pilots.looks(waiter)
        assert await pilots.wait(waiter, 0.01) is False

    asyncio.run(scenario())


def test_changes_reach_whom_they_concern() -> None:
    async def scenario() -> None:
        changes = WaitingClients()
        mine, yours, anybodys = changes.listen("me"), changes.listen("you"), changes.listen("")
        changes.announce({"me"})
        assert await changes.wait(mine, 1) is True
        assert await changes.wait(anybodys, 1) is True
        assert await changes.wait(yours, 0.01) is False
        late = changes.listen("me")
        changes.close()
        assert await changes.wait(late, 1) is False
        assert await changes.wait(changes.listen("me"), 1) is False

    asyncio.run(scenario())
