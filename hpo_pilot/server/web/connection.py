"""A connection of uvicorn's that bounds what a stranger can cost: its own has no limits before a request is whole."""

from __future__ import annotations

import asyncio

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes that a request's head may have, about: what one read brings is not split.
HEAD_LIMIT = 256 * 1024

#: Seconds: for the whole head of a request, from the connection or its first byte; and for the next part of a body.
_HEAD_SECONDS = 30.0
_BODY_SECONDS = 120.0

_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedConnection(HttpToolsProtocol):
    """Ends connections whose request's head is endless, or that leave a request unfinished for long."""

    head_seconds = _HEAD_SECONDS
    body_seconds = _BODY_SECONDS

    _in_head = False
    _head_size = 0
    _deadline: float | None = None
    _timer: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect(self.head_seconds)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline = None
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        began_before = self._in_head
        super().data_received(data)
        if began_before and self._in_head:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT and not self.transport.is_closing():
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0
        self._expect(self.head_seconds)

    @override
    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect(self.body_seconds)
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._expect(self.body_seconds)
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._deadline = None
        super().on_message_complete()

    def _expect(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None or self.transport.is_closing():
            return
        left = self._deadline - self.loop.time()
        if left <= 0 and not self.flow.read_paused:
            self.transport.close()
        else:  # where reading is paused, it is we who are slow
            self._timer = self.loop.call_later(max(left, 1.0), self._look)
