"""Waiting for something to happen: pilots for jobs, clients for changes. All in the event loop, no polling."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable


class Waiter:
    """One pilot that waits at a queue."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.tried = 0  # the round in which it last looked for a job
        self.called_for = site  # the queue of the jobs that it was roused for
        self.wake: asyncio.Future[None] | None = None

    def rouse(self, called_for: str) -> None:
        """Calls it to look for a job at `called_for`."""
        self.called_for = called_for
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class WaitingPilots:
    """Pilots that wait for jobs, first come, first served.

    A job that comes to wait rouses one pilot, not all. A pilot that then finds nothing that fits passes the call on to
    the next that has not looked since, so no fitting pilot sleeps through a job and five hundred need no five hundred
    queries.
    """

    def __init__(self) -> None:
        self._round = 0
        self._waiters: deque[Waiter] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def enter(self, site: str) -> Waiter:
        """Joins the queue of those who wait; call before the first look, so that no job slips between."""
        waiter = Waiter(site)
        waiter.tried = self._round
        self._waiters.append(waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Ends waiting; a call that came meanwhile goes to the next."""
        self._waiters.remove(waiter)
        if waiter.tried < self._round:
            self._rouse(waiter.called_for, 1)

    def looks(self, waiter: Waiter) -> None:
        """Say so before looking for a job."""
        waiter.tried = self._round

    def found_nothing(self, waiter: Waiter) -> None:
        """Passes the call on."""
        self._rouse(waiter.called_for, 1)

    async def wait(self, waiter: Waiter, seconds: float) -> bool:
        """Waits until there may be a job.

        Returns:
            False: the time is over, or the server ends.
        """
        if self._closed or seconds <= 0:
            return False
        if waiter.tried < self._round:
            return True  # called while it was looking
        waiter.wake = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(waiter.wake, seconds)
        except TimeoutError:
            return False
        finally:
            waiter.wake = None
        return not self._closed

    def announce(self, activated: Counter[str]) -> None:
        """Jobs came to wait; queue "" means any."""
        self._round += 1
        for site, count in activated.items():
            self._rouse(site, count)

    def _rouse(self, site: str, count: int) -> None:
        for waiter in self._waiters:
            if count <= 0:
                return
            asleep = waiter.wake is not None and not waiter.wake.done()
            if asleep and waiter.tried < self._round and site in ("", waiter.site):
                waiter.rouse(site)
                count -= 1

    def close(self) -> None:
        """Sends everybody away."""
        self._closed = True
        for waiter in self._waiters:
            waiter.rouse("")


class Changes:
    """Clients that wait for a change to somebody's tasks."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._closed = False

    def listen(self, user_name: str) -> asyncio.Future[None]:
        """A future that is done with the next change to tasks of `user_name` (empty: of anybody)."""
        future = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_result(None)
        else:
            self._waiting[future] = user_name
        return future

    async def wait(self, future: asyncio.Future[None], seconds: float) -> bool:
        """Waits for what `listen` gave.

        Returns:
            False: the time is over, or the server ends.
        """
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(future, None)
        return not self._closed

    def forget(self, future: asyncio.Future[None]) -> None:
        """Ends listening without waiting."""
        self._waiting.pop(future, None)

    def announce(self, users: Iterable[str]) -> None:
        """Tasks of these users changed."""
        changed = set(users)
        for future, user_name in list(self._waiting.items()):
            if not user_name or user_name in changed:
                del self._waiting[future]
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """Sends everybody away."""
        self._closed = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()
