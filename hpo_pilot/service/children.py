"""Child processes that end with us, whatever ends us, and are started again when something ends them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpo_pilot.errors import GiveUpError
from hpo_pilot.logs import LogFile

#: A child that ends this many times within `_WINDOW` seconds is not started again.
_TRIES = 5
_WINDOW = 30.0

log = logging.getLogger(__name__)


class Child:
    """One supervised process.

    It inherits the reading end of a pipe that this process holds open: the lifeline. When this process ends, by
    whatever signal, the pipe closes, and the child ends itself.
    """

    def __init__(
        self, name: str, argv: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Prepares.

        Args:
            name: for messages.
            argv: the command; ``{lifeline}`` stands for the file descriptor's number.
            log_file: its output is appended there; it is bounded, see `LogFile`.
            environment: variables beside ours.
        """
        self.name = name
        self._argv = list(argv)
        self._log = LogFile(log_file)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._starts: list[float] = []

    def start(self) -> None:
        """Starts the process; its end is noticed by `check`."""
        self._close_lifeline()
        reading, self._lifeline = os.pipe()
        try:
            with self._log.opened() as log_file:
                self._process = subprocess.Popen(
                    [part.replace("{lifeline}", str(reading)) for part in self._argv],
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    pass_fds=[reading],
                    start_new_session=True,  # a Ctrl-C in the terminal reaches us alone: we then end it in order
                )
        finally:
            os.close(reading)
        self._starts = [*(t for t in self._starts if time.monotonic() - t < _WINDOW), time.monotonic()]

    @property
    def log_file(self) -> Path:
        """Where its output is."""
        return self._log.path

    @property
    def exit_code(self) -> int | None:
        """What it ended with; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def check(self) -> bool:
        """Starts it again if it has ended; keeps its log from growing while it runs.

        Returns:
            True if it was started again.

        Raises:
            GiveUpError: it ends again and again; the message has the end of its log.
        """
        if self._process is None or self._process.poll() is None:
            self.bound_log()
            return False
        code = self._process.returncode
        if len(self._starts) >= _TRIES:
            raise GiveUpError(
                f"the {self.name} ended {_TRIES} times within {_WINDOW:.0f} s (status {code}): {self.last_line()}; "
                f"its log is {self.log_file}"
            )
        log.warning("the %s ended (status %s) and is started again", self.name, code)
        self.start()
        return True

    def last_line(self) -> str:
        """The last line of its log."""
        try:
            lines = self._log.end(4096).decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def bound_log(self) -> None:
        """Keeps its log from growing."""
        self._log.bound()

    def stop(self, seconds: float = 10.0) -> None:
        """Ends it: asks first, insists after `seconds`."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._close_lifeline()

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
