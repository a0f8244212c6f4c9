"""Waiting for a search to change: many waiters, one look at the store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from hpo_pilot.client.documents import ProgressDocument

#: Seconds between two looks at the store for one search, however many wait for its news.
_LOOK_SECONDS = 0.5

#: Seconds for which news are kept that nobody asks for.
_KEEP = 10.0


@dataclass(frozen=True)
class News:
    """How far a search is.

    Attributes:
        content: a `ProgressDocument` as JSON.
        tag: changes when that does; an ETag.
    """

    content: bytes
    tag: str


class Newsroom:
    """The latest progress of the searches that somebody watches."""

    def __init__(self, look: Callable[[str], ProgressDocument]) -> None:
        """Looks at a search with `look`, in a thread."""
        self._look = look
        self._latest: dict[str, tuple[float, News]] = {}
        self._looking: dict[str, asyncio.Lock] = {}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """Answers all who wait with what there is."""
        self._closed.set()

    async def next(self, identity: str, seen: str | None, seconds: float) -> News:
        """The progress of a search as soon as it is not `seen`; as it is after `seconds`.

        Raises:
            UnknownSearchError: there is no such search.
            TryAgainError: the store is out of reach.
        """
        end = time.monotonic() + seconds
        while True:
            news = await self._now(identity)
            left = end - time.monotonic()
            if news.tag != seen or left <= 0 or self._closed.is_set():
                return news
            try:
                async with asyncio.timeout(min(left, _LOOK_SECONDS)):
                    await self._closed.wait()
            except TimeoutError:
                continue

    async def _now(self, identity: str) -> News:
        async with self._looking.setdefault(identity, asyncio.Lock()):
            known = self._latest.get(identity)
            if known is not None and time.monotonic() - known[0] < _LOOK_SECONDS:
                return known[1]
            try:
                document = await run_in_threadpool(self._look, identity)
            finally:
                # Whoever waits for the lock has it; names that nobody asks for any more are not kept.
                self._latest.pop(identity, None)
                self._looking.pop(identity, None)
            content = json.dumps(document, allow_nan=False).encode()
            news = News(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
            self._latest = {name: kept for name, kept in self._latest.items() if time.monotonic() - kept[0] < _KEEP}
            self._latest[identity] = (time.monotonic(), news)
            return news
