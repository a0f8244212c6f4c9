"""A request's body, counted as it comes in: for bodies whose length nobody announced."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive


class LimitedBody:
    """A `receive` that ends where a body is too large."""

    def __init__(self, receive: Receive, limit: int, problem: str) -> None:
        """Counts what comes from `receive`; above `limit` bytes it raises a 413 that says `problem`."""
        self._receive = receive
        self._limit = limit
        self._problem = problem
        self._size = 0

    async def __call__(self) -> Message:
        """The next message.

        Raises:
            HTTPException: the body is above the limit.
        """
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise HTTPException(413, self._problem)
        return message
