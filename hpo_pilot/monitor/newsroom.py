"""Waiting for something in the store to change: many waiters, one look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

#: Seconds between two looks at the store for one topic, however many wait for its news, where nothing else is said.
_LOOK_SECONDS = 0.5

#: A look that takes long is made more rarely: it takes at most one part in so many of the time.
_PARTS = 3

#: Seconds for which news are kept that nobody asks for.
_KEEP = 10.0

_Content = TypeVar("_Content")


@dataclass(frozen=True)
class News(Generic[_Content]):
    """What there is to say of a topic.

    Attributes:
        content: what is said.
        tag: changes when that does.
    """

    content: _Content
    tag: str


class Newsroom(Generic[_Content]):
    """The latest news of the topics that somebody watches."""

    def __init__(self, look: Callable[[str], News[_Content]], seconds: float = _LOOK_SECONDS) -> None:
        """Looks at a topic with `look`, in a thread, every so many `seconds`."""
        self._look = look
        self._seconds = seconds
        self._latest: dict[str, tuple[float, float, News[_Content]]] = {}
        """By topic: when it was looked at, how long that is good, and what was there."""
        self._looking: dict[str, asyncio.Lock] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Answers all who wait with what there is."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is waited for."""
        return self._closed.is_set()

    async def next(self, topic: str, seen: str | None, seconds: float) -> News[_Content]:
        """The news of a topic as soon as they are not `seen`; as they are after `seconds`.

        Raises:
            Whatever the look at the store raises.
        """
        end = time.monotonic() + seconds
        while True:
            news = await self._now(topic)
            left = end - time.monotonic()
            if news.tag != seen or left <= 0 or self._closed.is_set():
                return news
            await self.pause(min(left, self._seconds))

    async def pause(self, seconds: float) -> None:
        """Waits, unless it closes meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return

    async def _now(self, topic: str) -> News[_Content]:
        async with self._looking.setdefault(topic, asyncio.Lock()):
            known = self._latest.get(topic)
            if known is not None and time.monotonic() - known[0] < known[1]:
                return known[2]
            begun = time.monotonic()
            try:
                news = await run_in_threadpool(self._look, topic)
            finally:
                # Whoever waits for the lock has it; names that nobody asks for any more are not kept.
                self._latest.pop(topic, None)
                self._looking.pop(topic, None)
            self._latest = {name: kept for name, kept in self._latest.items() if time.monotonic() - kept[0] < _KEEP}
            now = time.monotonic()
            # A waiter comes back after `seconds`, no sooner: a moment less, and it is not sent away for nothing.
            self._latest[topic] = (now, max(0.9 * self._seconds, (_PARTS - 1) * (now - begun)), news)
            return news
