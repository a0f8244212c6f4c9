"""Starting the server as a process of its own, and knowing when it is ready."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from hpo_pilot.errors import GiveUpError, TryAgainError

_START_SECONDS = 600.0


class ServerProcess:
    """A server in a process that ends with this one: it holds the other end of the server's lifeline."""

    def __init__(
        self,
        *,
        database: Path | str,
        files: Path,
        tokens: Path,
        port: int = 0,
        host: str = "127.0.0.1",
        heartbeat_timeout: float = 60.0,
        options: Sequence[str] = (),
        stderr: Path | None = None,
    ) -> None:
        """Starts the server and waits until it is ready.

        Args:
            database: its SQLite file, or the URL of a PostgreSQL database.
            files: folder of sandboxes and outputs.
            tokens: token folder, as `authority.Authority` keeps it.
            port: 0: any free one; `url` says which.
            host: address to listen on.
            heartbeat_timeout: seconds of silence that make a job lost.
            options: further options of ``python -m hpo_pilot.server``.
            stderr: where its log goes; this process's own by default.

        Raises:
            TryAgainError: port or database are taken.
            GiveUpError: it did not start; the message is its own.
        """
        end, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "hpo_pilot.server", "--database", str(database), "--files", str(files)]
        command += ["--tokens", str(tokens), "--host", host, "--port", str(port)]
        command += ["--heartbeat-timeout", str(heartbeat_timeout), "--lifeline-fd", str(end)]
        command += options
        log = stderr.open("ab") if stderr else None
        try:
            # Its own session: Ctrl-C goes to whoever started it, who ends it in order.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[end],
                start_new_session=True,
            )
        finally:
            os.close(end)
            if log:
                log.close()
        self.url = self._wait_until_ready()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def _wait_until_ready(self) -> str:
        assert self.process.stdout is not None  # tells the type checker
        timer = threading.Timer(_START_SECONDS, self.process.kill)
        timer.start()
        try:
            line = self.process.stdout.readline().decode().strip()
        finally:
            timer.cancel()
        if " ready on " in line:
            return _reachable(line.rsplit(" ", 1)[1])
        code = self.process.wait()
        os.close(self._lifeline)
        self.process.stdout.close()
        if code == TryAgainError.exit_code:
            raise TryAgainError("the PanDA server could not start: port or database taken; its log says which")
        raise GiveUpError(f"the PanDA server ended with code {code} before it was ready; its log says why")

    def stop(self, seconds: float = 10.0) -> int:
        """Ends the server in order, and by force where that takes longer than `seconds`.

        Returns:
            Its exit code.
        """
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _reachable(url: str) -> str:
    """The URL for clients on this machine: one does not call the wildcard address."""
    parts = urlsplit(url)
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(parts.hostname or "")  # noqa: S104  # replaced, not listened on
    return url if host is None else f"{parts.scheme}://{host}:{parts.port}"
