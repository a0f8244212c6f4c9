"""Further processes of a server, at the same port and database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence

log = logging.getLogger(__name__)

_TRIES, _WINDOW = 5, 30.0  # ends of one process within these seconds that end the server
_PAUSE = 1.0  # seconds before a process is started again
_END_SECONDS = 5.0


class Helpers:
    """Starts processes of a server, and starts them again when they end. They end with this process.

    Each has a listening socket of its own, which this process keeps open: the kernel spreads connections over them, and
    those that come while a process starts again wait.
    """

    def __init__(self, command: Sequence[str], listeners: Sequence[socket.socket]) -> None:
        """Starts nothing yet.

        Args:
            command: of a process, without its descriptors.
            listeners: the sockets, one for each process.
        """
        self._command = command
        self._listeners = listeners

    async def run(self) -> None:
        """Keeps them running until cancelled; then it ends them."""
        lifeline, held = os.pipe()
        try:
            await asyncio.gather(*(self._keep(listener.fileno(), lifeline) for listener in self._listeners))
        finally:
            os.close(held)
            os.close(lifeline)

    async def _run(self, *command: str, keep: tuple[int, int]) -> None:
        """Runs a process to its end; `keep`: its descriptors.

        Raises:
            OSError: it cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            pass_fds=keep,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,  # the line that it is ready
        )
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            raise
        log.error("process %d of the server ended (status %s) and is started again", process.pid, code)

    async def _keep(self, listener: int, lifeline: int) -> None:
        descriptors = ("--listener-fd", str(listener), "--lifeline-fd", str(lifeline))
        starts: list[float] = []
        while True:
            starts = [*starts[-_TRIES + 1 :], time.monotonic()]
            try:
                await self._run(*self._command, *descriptors, keep=(listener, lifeline))
            except OSError as error:
                log.error("a process of the server could not be started: %s", error)
            if len(starts) == _TRIES and time.monotonic() - starts[0] < _WINDOW:
                log.critical("it ended %d times within %.0f s: the server ends", _TRIES, _WINDOW)
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(_PAUSE)
