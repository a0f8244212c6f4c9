"""Starting the server as a process of its own, and knowing when it is ready."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.server.auth import Role, hash_token

_START_SECONDS = 30.0


def write_tokens(path: Path, callers: Mapping[str, tuple[str, Role]]) -> None:
    """Writes a token file, for its owner alone, whole or not at all.

    Args:
        path: of the file.
        callers: name and role by token; only hashes of the tokens are written.
    """
    content = {hash_token(token): {"name": name, "role": role.value} for token, (name, role) in callers.items()}
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream)
    part.replace(path)


class ServerProcess:
    """A server in a process that ends with this one: it holds the other end of the server's lifeline."""

    def __init__(
        self,
        *,
        database: str,
        files: Path,
        tokens: Path,
        port: int = 0,
        host: str = "127.0.0.1",
        heartbeat_timeout: float = 60.0,
        stderr: Path | None = None,
    ) -> None:
        """Starts the server and waits until it is ready.

        Args:
            database: SQLAlchemy URL.
            files: folder of sandboxes and outputs.
            tokens: token file, as `write_tokens` writes it.
            port: 0: any free one; `url` says which.
            host: address to listen on.
            heartbeat_timeout: seconds of silence that make a job lost.
            stderr: where its log goes; this process's own by default.

        Raises:
            TryAgainError: port or database are taken.
            GiveUpError: it did not start; the message is its own.
        """
        end, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "hpo_pilot.server", "--database", database, "--files", str(files)]
        command += ["--tokens", str(tokens), "--host", host, "--port", str(port)]
        command += ["--heartbeat-timeout", str(heartbeat_timeout), "--lifeline-fd", str(end)]
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
            return line.rsplit(" ", 1)[1]
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
