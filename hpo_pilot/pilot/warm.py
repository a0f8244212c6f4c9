"""Interpreters that are kept between jobs: each has loaded the runner and the payload's function.

The start of an interpreter and the import of a training's modules may take longer than the training. So jobs without a
container and a launcher are forked from an interpreter that has done both. One job at a time is forked from each, so
that a process which outlives its job is known by the interpreter that it came from.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.logs import last_line
from hpo_pilot.pilot.isolation import Confinement
from hpo_pilot.pilot.settings import PilotSettings, worker_mark
from hpo_pilot.transformation.job import without_secrets

log = logging.getLogger(__name__)

#: The variable that identifies the interpreter that a process was forked from.
WARM_MARK = "HPO_PILOT_WARM"

_HEADER = struct.Struct("!Q")  # as in hpo_pilot_function.py
_PROGRAM = Path(__file__).parent.parent / "runner" / "hpo_pilot_function.py"
_IDLE = 60.0  # seconds that an interpreter is kept without a job
_ANSWER = 30.0  # seconds within which it forks a job
_LOG = "interpreter.log"


def last_line_or_error(path: Path) -> str:
    """Returns the last line of a log, or why it cannot be read."""
    try:
        return last_line(path)
    except OSError as error:
        return str(error)


@dataclass(frozen=True)
class WarmKind:
    """Jobs of one kind may be forked from the same interpreter.

    Attributes:
        archive: name of the sandbox.
        function: the payload's function; empty: the payload is a command.
        python: the interpreter, with its options.
        environment: environment in which the function is imported.
        confinement: how it and its jobs are confined.
    """

    archive: str
    function: str
    python: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    confinement: Confinement = field(default_factory=Confinement)


class WarmInterpreter:
    """A running interpreter. One thread at a time uses it."""

    def __init__(self, kind: WarmKind, folder: Path, environment: Mapping[str, str], mark: str) -> None:
        """Starts it.

        Args:
            kind: the kind of its jobs.
            folder: an unpacked sandbox; it is removed with the interpreter.
            environment: environment of the process.
            mark: identifies the processes that are forked from it.

        Raises:
            OSError: it cannot be started.
        """
        self.kind, self.mark, self._folder = kind, mark, folder
        self._connection, theirs = socket.socketpair()
        with theirs, (folder / _LOG).open("wb") as output:
            self._process = subprocess.Popen(
                [*kind.confinement.words, *kind.python, str(_PROGRAM), "--serve", str(theirs.fileno()), kind.function],
                cwd=folder,
                env={**environment, WARM_MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
            )

    def is_ready(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Waits until it has imported the function.

        Args:
            seconds: time limit.
            is_over: whether the job is not needed any more.
        """
        end, looks = time.monotonic() + seconds, select.poll()
        looks.register(self._connection, select.POLLIN)
        while time.monotonic() < end and not is_over():
            if looks.poll(min(500.0, 1000 * max(0.0, end - time.monotonic()))):
                return len(self._connection.recv(_HEADER.size)) == _HEADER.size
        return False

    def fork(self, argv: Sequence[str], folder: Path, env: Mapping[str, str], output: int, lifeline: int) -> int:
        """Forks a process that runs the runner, and returns its PID; it is a child of this process.

        Args:
            argv: the runner's file and its arguments.
            folder: where it runs.
            env: its environment.
            output: file descriptor for what it prints.
            lifeline: reading end of a pipe that closes when this process dies.

        Raises:
            OSError: it has ended or does not answer.
        """
        request = json.dumps({"argv": list(argv), "folder": str(folder), "env": dict(env)}).encode()
        self._connection.settimeout(_ANSWER)
        socket.send_fds(self._connection, [_HEADER.pack(len(request))], [output, lifeline])
        self._connection.sendall(request)
        answer = self._connection.recv(_HEADER.size, socket.MSG_WAITALL)
        pid: int = _HEADER.unpack(answer)[0] if len(answer) == _HEADER.size else 0
        if not pid:
            raise OSError(f"the kept interpreter forks no job: {self.last_line()}")
        if not self._has_forked(pid):
            raise OSError(f"the kept interpreter names process {pid}, which is no job of it")
        return pid

    def _has_forked(self, pid: int) -> bool:
        """Returns whether this process is a job's: code of the payload in the interpreter may answer for it."""
        try:
            parent, group = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1:3]
        except OSError:
            return False
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except ProcessLookupError:
            environment = b""
        # One that ends or has ended shows none: an empty file, or an error of newer kernels.
        is_marked = not environment or f"{WARM_MARK}={self.mark}".encode() in environment.split(b"\0")
        return is_marked and (int(parent), int(group)) == (os.getpid(), pid)

    def last_line(self) -> str:
        """Returns the last line that it printed."""
        return last_line_or_error(self._folder / _LOG)

    def end(self) -> None:
        """Ends it; jobs that were forked from it go on."""
        self._connection.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class WarmInterpreters:
    """The interpreters of a pilot. Any thread may call any method."""

    def __init__(self, settings: PilotSettings, folder: Path, most: int) -> None:
        """Makes an empty collection.

        Args:
            settings: settings of the pilot.
            folder: for folders of the interpreters.
            most: number of interpreters that are kept without a job.
        """
        self._settings, self._folder, self._most = settings, folder, most
        self._lock = threading.Lock()
        self._idle: list[tuple[float, WarmInterpreter]] = []  # since when, oldest first
        self._numbers = itertools.count(1)
        self._timer: threading.Timer | None = None
        self._is_over = False
        shutil.rmtree(folder, ignore_errors=True)

    def take(
        self, kind: WarmKind, fill: Callable[[Path], object], seconds: float, is_over: Callable[[], bool]
    ) -> WarmInterpreter | None:
        """Returns an idle interpreter of this kind, or a new one.

        Args:
            kind: the kind of the job.
            fill: fills a folder with the sandbox.
            seconds: time limit for the import of the function.
            is_over: whether the job is not needed any more.

        Returns:
            None: there is none; the job starts an interpreter of its own, and its log says what is wrong.
        """
        with self._lock:
            for entry in reversed(self._idle):
                if entry[1].kind == kind:
                    self._idle.remove(entry)
                    return entry[1]
            number = next(self._numbers)
        folder = self._folder / kind.confinement.name / str(number)
        mark = f"{os.getpid()}-{number}"
        environment = (dict(kind.environment) or without_secrets(os.environ)) | worker_mark(self._settings)
        try:
            folder.mkdir(parents=True)
            fill(folder)
            found = WarmInterpreter(kind, folder, kind.confinement.environment(environment), mark)
        except (OSError, HpoPilotError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            log.info("no interpreter is kept for %s: %s", kind.archive, error)
            return None
        if found.is_ready(seconds, is_over):
            return found
        log.info("no interpreter is kept for %s: %s", kind.archive, found.last_line())
        found.end()
        return None

    def give_back(self, interpreter: WarmInterpreter) -> None:
        """Keeps an interpreter whose job and all its processes have ended; ends the oldest if there are too many."""
        with self._lock:
            if self._is_over:
                ended = [interpreter]
            else:
                self._idle.append((time.monotonic(), interpreter))
                ended = self._taken_out(len(self._idle) - self._most)
                self._end_later()
        for each in ended:
            each.end()

    def close(self) -> None:
        """Ends all interpreters."""
        with self._lock:
            self._is_over = True
            ended = self._taken_out(len(self._idle))
        for each in ended:
            each.end()

    def _end_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_IDLE, self._end_idle)
            self._timer.daemon = True
            self._timer.start()

    def _end_idle(self) -> None:
        with self._lock:
            self._timer = None
            old = time.monotonic() - _IDLE
            ended = self._taken_out(sum(since <= old for since, _ in self._idle))
            if self._idle:
                self._end_later()
        for each in ended:
            each.end()

    def _taken_out(self, count: int) -> list[WarmInterpreter]:
        ended = [each for _, each in self._idle[: max(0, count)]]
        del self._idle[: max(0, count)]
        return ended
