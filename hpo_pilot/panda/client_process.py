"""panda-client in a process of its own, under our deadline.

panda-client has a time-out of 600 s, ends its process on some failures, and reads its environment at import. One worker
process per server keeps all that away from the steering loop: a call that does not end in time ends the worker, and the
next call starts a new one.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpo_pilot.errors import TryAgainError


class NoAnswerError(TryAgainError):
    """A call was sent and nothing came back in time: whether the server acted on it is unknown."""


class ClientProcess:
    """Calls functions of panda-client's `Client` module by name."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        """Prepares; the process starts with the first call.

        Args:
            environment: PANDA_URL_SSL and whatever else panda-client reads; tokens by file only.
            log: where what panda-client prints is appended.
        """
        self._environment = {**os.environ, **environment}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def call(self, name: str, *arguments: Any, deadline: float = 60.0) -> Any:
        """The result of ``Client.<name>(*arguments)``, as JSON gives it back (tuples as lists).

        Args:
            name: one of `client_worker.CALLS`.
            arguments: JSON-ready positional arguments.
            deadline: seconds.

        Raises:
            NoAnswerError: no result in time; the call may have had its effect.
            TryAgainError: panda-client refused the call (no token, …).
        """
        process = self._running()
        request = json.dumps({"call": name, "args": arguments}).encode() + b"\n"
        try:
            assert process.stdin is not None
            process.stdin.write(request)
            process.stdin.flush()
            line = self._read_line(process, deadline)
        except OSError as error:
            self.close()
            raise NoAnswerError(f"panda-client's process ended during {name}; see {self._log}") from error
        answer = json.loads(line)
        if "error" in answer:
            raise TryAgainError(f"panda-client: {name}: {answer['error']}")
        return answer["result"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._buffer = b""
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "hpo_pilot.panda.client_worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + deadline
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(end - time.monotonic()) or time.monotonic() > end:
                    self.close()
                    raise NoAnswerError(f"the PanDA server did not answer within {deadline:.0f} s")
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    self.close()
                    raise NoAnswerError(f"panda-client's process ended; see {self._log}")
                self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def interrupt(self) -> None:
        """Makes a call that waits in another thread fail at once; the next call works."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Ends the process, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.kill()
        process.wait()
