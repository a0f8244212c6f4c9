"""Calls panda-client in processes of its own, with a deadline and metrics.

panda-client has a time-out of 600 s, ends its process on some failures, and reads its environment at import. So
worker processes call it: if a call does not end in time, its worker is ended, and the next call starts a new
one. Each server has a few workers, so that a slow call of one search delays no other search.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from hpo_pilot.errors import TryAgainError
from hpo_pilot.logs import LogFile

#: httpx's errors for requests that were not sent.
_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "ProxyError"})

#: HTTP statuses of a server or proxy that refuses a request without acting on it.
_BUSY = frozenset({429, 503})
_DENIED = frozenset({401, 403})
_NO_SUCH_CALL = 404

#: From this HTTP status on it is unknown whether the server has acted.
_SERVER_FAILED = 500

#: Most worker processes for one server.
MOST_WORKERS = 8

#: Seconds that a call waits for a busy worker before it starts another one; most calls are shorter.
_PATIENCE = 0.25


class NoAnswerError(TryAgainError):
    """A call has no answer, or no usable one: the server may have acted on it or not."""


class RefusedError(TryAgainError):
    """The server refuses for now or cannot be reached; nothing was done."""


class DeniedError(RefusedError):
    """The server refuses the token or proxy, or there is none: the user must get a new one."""


class MissingCallError(RefusedError):
    """The server has no such call."""


class ClientProcess:
    """Calls functions of panda-client's `Client` module by name; from any thread, a few at a time."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        """Starts no process yet: `start` or the first call starts one, and calls that find all of them busy start more.

        Args:
            environment: the whole environment of the processes, with PANDA_URL_SSL and panda-client's other variables.
            log: the file for panda-client's output; its size is bounded, see `LogFile`.
        """
        self._environment = dict(environment)
        self._log = LogFile(log)
        self._workers: list[_Worker] = []
        self._idle: list[_Worker] = []
        self._freed = threading.Condition()
        self._held = threading.local()

    @property
    def url(self) -> str:
        """The server's URL, for messages."""
        return self._environment.get("PANDA_URL_SSL", "the default PanDA server").removesuffix("/server/panda")

    def start(self) -> None:
        """Starts the first process and sends it nothing: it loads panda-client while a server starts."""
        with self.one_process(), contextlib.suppress(OSError):  # the first call reports the reason
            self._held.worker.running()

    def call(self, name: str, *arguments: Any, deadline: float = 60.0) -> Any:
        """Returns the result of ``Client.<name>(*arguments)`` as JSON (tuples as lists).

        Args:
            name: one of `client_worker.CALLS`, or one of the worker's own functions.
            arguments: positional arguments for JSON.
            deadline: seconds.

        Raises:
            NoAnswerError: no usable result; the call may have had its effect.
            RefusedError: the server cannot be reached or is busy; nothing was done.
            DeniedError: the server refuses the token or proxy.
            MissingCallError: the server has no such call.
            TryAgainError: panda-client failed.
        """
        with self.one_process(), time_call(name):
            return self._result(name, arguments, deadline)

    @contextlib.contextmanager
    def one_process(self) -> Iterator[None]:
        """Makes all calls of this thread in one process: panda-client chooses a file cache per process."""
        if getattr(self._held, "worker", None) is not None:
            yield
            return
        self._held.worker = worker = self._taken()
        try:
            yield
        finally:
            self._held.worker = None
            with self._freed:
                self._idle.append(worker)
                self._freed.notify()

    def _taken(self) -> _Worker:
        """Returns an idle worker: the last one used, so that few processes are used if few suffice."""
        with self._freed:
            if self._workers and not self._idle:
                self._freed.wait(_PATIENCE)
            if not self._idle and len(self._workers) < MOST_WORKERS:
                self._workers.append(worker := _Worker(self._environment, self._log))
                return worker
            while not self._idle:  # ends, because each call has a deadline
                self._freed.wait()
            return self._idle.pop()

    def _result(self, name: str, arguments: Sequence[Any], deadline: float) -> Any:
        answer = self._held.worker.exchange({"call": name, "args": arguments}, deadline)
        if "login" in answer:
            raise DeniedError(f"{self.url}: {answer['login']}; {_LOGIN}")
        self._check(answer.get("transport") or {})
        if "error" in answer:
            raise TryAgainError(f"panda-client: {name}: {answer['error']}")
        return answer["result"]

    def _check(self, transport: dict[str, Any]) -> None:
        """Raises if the call failed on its way; callers judge the server's own answer."""
        error, status, text = transport.get("error"), transport.get("status", 200), transport.get("text", "")
        if error in _NOT_SENT:
            raise RefusedError(f"the PanDA server {self.url} cannot be reached: {text or error}")
        if error:
            raise NoAnswerError(f"the connection to {self.url} was lost: {text or error}")
        if status in _DENIED:
            raise DeniedError(f"the PanDA server {self.url} refuses your credentials ({status}: {text}); {_LOGIN}")
        if status in _BUSY:
            raise RefusedError(f"the PanDA server {self.url} is busy ({status}: {text})")
        if status == _NO_SUCH_CALL:
            raise MissingCallError(f"the PanDA server {self.url} has no such call ({status}: {text})")
        if status >= _SERVER_FAILED:
            raise NoAnswerError(f"the PanDA server {self.url} fails ({status}: {text})")

    def interrupt(self) -> None:
        """Makes waiting calls in other threads fail at once; later calls work."""
        for worker in list(self._workers):
            worker.interrupt()

    def close(self) -> None:
        """Ends the worker processes."""
        for worker in list(self._workers):
            worker.close()


class _Worker:
    """One worker process with panda-client; one thread at a time uses it."""

    def __init__(self, environment: Mapping[str, str], log: LogFile) -> None:
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def exchange(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Sends a call and waits for its answer.

        Raises:
            NoAnswerError: there is no answer in time; the process is ended.
        """
        process = self.running()
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = self._read_line(process, deadline)
        except (OSError, ValueError) as error:
            self.close()
            ended = f"panda-client's process ended during {request['call']}; see {self._log.path}"
            raise NoAnswerError(ended) from error
        found: dict[str, Any] = json.loads(line)
        if found.get("ended"):
            self.close()
        return found

    def running(self) -> subprocess.Popen[bytes]:
        """Returns the process, started if it does not run."""
        if self._process is None or self._process.poll() is not None:
            with self._log.opened() as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "hpo_pilot.panda.client_worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
        self._log.bound()
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytearray:
        assert process.stdout is not None
        end = time.monotonic() + deadline
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):  # one call, one line
                if not selector.select(end - time.monotonic()) or time.monotonic() > end:
                    self.close()
                    raise NoAnswerError(f"the PanDA server did not answer within {deadline:.0f} s")
                chunk = os.read(process.stdout.fileno(), 1 << 20)
                if not chunk:
                    self.close()
                    raise NoAnswerError(f"panda-client's process ended; see {self._log.path}")
                line += chunk
        return line

    def interrupt(self) -> None:
        """Makes a waiting call in another thread fail at once; the next call works."""
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
                with contextlib.suppress(OSError):  # unsent data no longer matters
                    stream.close()
        process.kill()
        process.wait()


_LOGIN = (
    "nothing is lost: get a new token or proxy (`pbook` logs in and keeps one, `voms-proxy-init` makes one), "
    "and the search goes on"
)


CALL_METRICS = CollectorRegistry()

_SECONDS = Histogram(
    "hpo_pilot_panda_call_seconds",
    "How long calls of panda-client took, by its name for them.",
    ["call"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=CALL_METRICS,
)
_ERRORS = Counter(
    "hpo_pilot_panda_call_errors",
    "Failed calls of panda-client, by kind of error.",
    ["call", "error"],
    registry=CALL_METRICS,
)


@contextmanager
def time_call(call: str) -> Iterator[None]:
    """Measures the time of a call, and counts its failure."""
    with _SECONDS.labels(call).time():
        try:
            yield
        except Exception as error:
            _ERRORS.labels(call, type(error).__name__).inc()
            raise
