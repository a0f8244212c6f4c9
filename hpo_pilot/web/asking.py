"""Calls of clients that ask for trials: those of one search wait together, in one call at the embedded server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from hpo_pilot.errors import TryAgainError
from hpo_pilot.operations.asked_trials import ask_trials, asked_search
from hpo_pilot.operations.here import Here
from hpo_pilot.report.documents import AskedDocument

#: Seconds of one call at the embedded server: clients that come meanwhile are in the next one.
_TOGETHER = 0.5

#: Clients for which one call asks, those that came first.
_AT_ONCE = 50

#: Searches for which a call is under way at once, in threads beside those of other calls. They wait for a socket.
_THREADS = 32


@dataclass(eq=False)
class _Waiting:
    """A call that waits; `end` is on the monotonic clock."""

    here: Here
    ask: dict[str, Any]
    end: float
    request: Request
    answer: asyncio.Future[AskedDocument]


class AskCalls:
    """The waiting calls of all searches. Used in the event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = CapacityLimiter(_THREADS)

    async def next(
        self, here: Here, identity: str, ask: dict[str, Any], wait: float, request: Request
    ) -> AskedDocument:
        """Returns the answer to a client; `ask` and errors are those of `ask_trials`."""
        uid = (await run_in_threadpool(asked_search, here, identity)).uid
        answer: asyncio.Future[AskedDocument] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(uid, [])
        waiting.append(_Waiting(here, ask, time.monotonic() + wait, request, answer))
        if len(waiting) == 1:
            task = asyncio.create_task(self._ask(uid, identity))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await answer

    async def _ask(self, uid: str, identity: str) -> None:
        """Asks for the clients of a search until none waits."""
        while waiting := self._waiting[uid]:
            late = [one for one in waiting[_AT_ONCE:] if one.end <= time.monotonic()]
            asked = waiting[:_AT_ONCE] + late
            # A trial for a client that has gone would be out until its lease ends.
            gone = [one for one in asked if one.answer.done() or await one.request.is_disconnected()]
            asked = [one for one in asked if one not in gone]
            seconds = min(_TOGETHER, max([0.0, *(one.end - time.monotonic() for one in asked)]))
            try:
                asks = [one.ask for one in asked]
                found: list[AskedDocument] = []
                if asked:
                    call = partial(ask_trials, asked[0].here, identity, asks, seconds)
                    found = await anyio.to_thread.run_sync(call, limiter=self._threads)
            except Exception as error:  # noqa: BLE001 - each client gets it
                self._end(uid, asked, error)
            else:
                now = time.monotonic()
                for one, document in zip(asked, found, strict=True):
                    if document["trial"] is not None or document["over"] or now >= one.end:
                        self._end(uid, [one], document)
            self._end(uid, gone, ClientDisconnect())
        del self._waiting[uid]

    def _end(self, uid: str, calls: Iterable[_Waiting], answer: AskedDocument | Exception) -> None:
        for one in calls:
            with suppress(ValueError):  # the API ends
                self._waiting[uid].remove(one)
            if one.answer.done():
                continue
            if isinstance(answer, Exception):
                one.answer.set_exception(answer)
            else:
                one.answer.set_result(answer)

    def close(self) -> None:
        """Answers all calls, because the API ends."""
        for uid, calls in self._waiting.items():
            self._end(uid, list(calls), TryAgainError("the service ends or starts again"))
