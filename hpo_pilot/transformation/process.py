"""Runs the payload's process and ends every process that it leaves behind."""

import binascii
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

try:
    import ctypes
except ImportError:  # a Python that was built without it
    ctypes = None  # type: ignore[assignment]

from hpo_pilot.transformation.job import ExitCode, TransformationFailure

# A process of a job may leave its parent's group and session. Two things find it then, both only on Linux:
# - The process that starts a job is a "child subreaper" (prctl(2)), as is the payload's runner below it. So what
#   outlives the runner becomes a child of this process, also if its environment is gone.
# - Each job gets variables that no other job has. They are seen also where a process is not below this one, as in a
#   container, and when the process that started the job is killed: a separate process, the keeper, then ends them.

#: The variable that identifies the worker; with PanDA's own variables it identifies one attempt of a job.
WORKER_MARK = "HPO_PILOT_WORKER"

#: Seconds between TERM and KILL for processes that got no signal yet; longer than the runner's time for a checkpoint.
GRACE = 15.0

#: Seconds between TERM and KILL for processes that got a signal before, or that an ended payload left.
SHORT_GRACE = 2.0

_KILLED = 10.0  # seconds to wait for killed processes to end
_PAUSES = (0.01, 0.02, 0.05, 0.1)  # seconds between checks; the last value repeats
_PROC = "/proc"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_ENDED = (b"Z", b"X")
_END_OF_ENVIRONMENT = 48  # index in _status; 0 until the process has its environment
_LOOKS = 5  # checks of the children; if some end at each check, all processes are checked


class _Process(NamedTuple):
    parent: int
    started: bytes


class Ended(NamedTuple):
    """Result of `end_leftovers`.

    Attributes:
        found: number of processes found.
        left: PIDs that could not be ended, such as a process that waits for a dead file server.
    """

    found: int
    left: List[int]


def adopt_orphans(whether: bool = True) -> None:
    """Makes this process the parent of processes below it whose own parents have ended; only on Linux."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0)
    except (OSError, AttributeError):
        return


def end_leftovers(variables: Mapping[str, str], grace: float, adopted: bool = False) -> Ended:
    """Ends all processes with these variables, and their descendants; returns when they are gone.

    The topmost processes get TERM first, because runners and launchers end their own processes in order.

    Args:
        variables: identify the job; all of them are in the environment of each of its processes.
        grace: seconds between TERM and KILL; 0: no TERM.
        adopted: also end the children of this process that no job claims, see `has_orphans`.
    """
    known, told = {}, set()  # type: Dict[int, bytes], Set[int]
    began, looks, clear = time.monotonic(), 0, 0
    while True:
        found = _find(variables, known, adopted)
        known.update((pid, process.started) for pid, process in found.items())
        clear = 0 if found else clear + 1
        passed = time.monotonic() - began
        # Two clear checks: the environment of a process that is just starting a program cannot be read.
        if clear == 2 or passed > grace + _KILLED:
            return Ended(len(known), sorted(found))
        for pid, process in found.items():
            if passed >= grace:
                _signal(pid, signal.SIGKILL)
            elif process.parent not in found and pid not in told:
                told.add(pid)
                _signal(pid, signal.SIGTERM)
        time.sleep(_PAUSES[min(looks, len(_PAUSES) - 1)])
        looks += 1


def has_orphans(variables: Mapping[str, str]) -> bool:
    """Returns whether an ended job may have left processes; faster than a check of all processes.

    Only for a process that adopts orphans and gives its other jobs the same variables with other values. Processes that
    outlive their job are then descendants of this process. The runner of each job adopts orphans too, so that those
    of a job that runs are not children of this process.
    """
    wanted, known = _entries(variables), set()  # type: Set[bytes], Set[int]
    for _ in range(_LOOKS):
        ended = set()
        try:
            children = list(_children())
        except OSError:
            continue  # a thread has just ended, and another has its children; or this system does not list them
        for child in children:
            try:
                fields, entries = _status(child), _environment(child)
            except OSError:
                fields, entries = [_ENDED[0]], set()
            if fields[0] in _ENDED:
                ended.add(child)
            elif not _is_ours(fields) and (wanted <= entries or _is_unclaimed(fields, entries)):
                return True
        if ended <= known:
            return False
        known |= ended  # their children may have become ours since the last check
    return True


class Keeper:
    """A process that ends a job's processes when the other end of the lifeline pipe is closed."""

    def __init__(self, variables: Mapping[str, str], lifeline: int, grace: float) -> None:
        """Starts the keeper.

        Args:
            variables: as for `end_leftovers`.
            lifeline: reading end of a pipe; this process holds the other end.
            grace: as for `end_leftovers`.

        Raises:
            OSError: the keeper cannot be started.
        """
        # The keeper imports this package from the same folder or zip file.
        home = str(Path(__file__).absolute().parents[2])
        code = "import sys; sys.path.append(%r); from %s import keep; keep(sys.argv[1:])" % (home, __name__)
        words = [sys.executable, "-I", "-S", "-c", code, str(lifeline), str(grace)]
        words += ["%s=%s" % item for item in variables.items()]
        self._process = subprocess.Popen(
            words,
            cwd="/",
            env=dict(os.environ, **{WORKER_MARK: ""}),  # it belongs to no job; see has_orphans
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lifeline],
            start_new_session=True,  # a signal to the group of this process must not end it
        )

    def wait(self) -> None:
        """Waits for the keeper to end, after the lifeline was closed."""
        self._process.wait()


def keep(words: List[str]) -> None:
    """Runs the keeper; `words`: the number of the lifeline's file descriptor, the grace, then the variables."""
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, lambda *_: None)  # the keeper ends when its work is done
    while os.read(int(words[0]), 512):
        pass
    end_leftovers(dict(word.split("=", 1) for word in words[2:]), float(words[1]))


def _is_ours(fields: List[bytes]) -> bool:
    """Returns whether a child was started by this process for itself: it is in the same group then."""
    return int(fields[2]) == os.getpgrp()


def _is_unclaimed(fields: List[bytes], entries: Set[bytes]) -> bool:
    """Returns whether an adopted child belongs to no job; `fields`, `entries`: its status and environment."""
    if fields[_END_OF_ENVIRONMENT] == b"0" or entries == _environment(os.getpid()):
        return False  # it was started here, and is just starting its program
    return not any(each.startswith(WORKER_MARK.encode() + b"=") for each in entries)


def _find(variables: Mapping[str, str], known: Mapping[int, bytes], adopted: bool) -> Dict[int, _Process]:
    """Returns the running processes with these variables, the known ones, and the descendants of both."""
    wanted, everyone, found = _entries(variables), {}, set()  # type: Set[bytes], Dict[int, _Process], Set[int]
    this = os.getpid()
    for name in os.listdir(_PROC) if os.path.isdir(_PROC) else ():
        if not name.isdigit():
            continue
        try:
            pid = int(name)
            fields = _status(pid)
            if fields[0] in _ENDED:
                continue
            everyone[pid] = process = _Process(int(fields[1]), fields[19])
            if known.get(pid) == process.started:
                found.add(pid)
                continue
            entries, may_be_unclaimed = _environment(pid), adopted and process.parent == this and not _is_ours(fields)
            if wanted <= entries or (may_be_unclaimed and _is_unclaimed(fields, entries)):
                found.add(pid)
        except OSError:
            continue  # it has ended, or belongs to another user
    while this in everyone:  # never this process or its ancestors, which may have a copied environment
        found.discard(this)
        this = everyone[this].parent
    new = found
    while new:
        new = {pid for pid, process in everyone.items() if process.parent in new and pid not in found}
        found |= new
    return {pid: everyone[pid] for pid in found}


def _entries(variables: Mapping[str, str]) -> Set[bytes]:
    return {os.fsencode("%s=%s" % item) for item in variables.items()}


def _children() -> Iterator[int]:
    ours = os.path.join(_PROC, "self", "task")
    for thread in os.listdir(ours):
        for child in _read(os.path.join(ours, thread, "children")).split():
            yield int(child)


def _status(pid: int) -> List[bytes]:
    """Returns the fields of /proc/PID/stat from the state on (proc(5)); the name before it may have brackets."""
    return _read(os.path.join(_PROC, str(pid), "stat")).rpartition(b")")[2].split()


def _environment(pid: int) -> Set[bytes]:
    return set(_read(os.path.join(_PROC, str(pid), "environ")).split(b"\0"))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _signal(pid: int, which: int) -> None:
    try:
        os.kill(pid, which)
    except OSError:
        return  # it has ended, or belongs to another user


#: Exit statuses of the payload runner itself; any other status means that it was killed.
OWN_STATUS = (0, 1)


def run_payload(
    command: Callable[[Dict[str, str]], Sequence[str]],
    folder: str,
    environment: Mapping[str, str],
    grace: float = GRACE,
) -> int:
    """Runs a command to its end, then ends every process that it left, also in other sessions.

    The command gets a pipe that closes when this process dies. The payload runner watches the pipe, and a keeper ends
    the remaining processes. Signals that ask this process to end are passed on. Main thread only.

    Args:
        command: returns the command's words, given its environment.
        folder: where it runs.
        environment: environment of the command; variables that identify its processes are added.
        grace: seconds between TERM and KILL.

    Returns:
        Its exit status; 128 + signal if a signal ended it.

    Raises:
        TransformationFailure: the command cannot be started.
    """
    lifeline, kept = os.pipe()
    marks = {WORKER_MARK: "%s %d %s" % (folder, os.getpid(), binascii.hexlify(os.urandom(8)).decode())}
    env = dict(environment, HPO_PILOT_LIFELINE_FD=str(lifeline), **marks)
    argv = command(env)
    sys.stdout.flush()
    adopt_orphans()
    try:
        keeper = Keeper(marks, lifeline, grace)
        process = subprocess.Popen(
            list(argv), cwd=folder, env=env, stdin=subprocess.DEVNULL, pass_fds=[lifeline], start_new_session=True
        )
    except OSError as error:
        os.close(kept)
        raise TransformationFailure(ExitCode.EXECUTION_FAILED, "%s cannot be started: %s" % (argv[0], error)) from error
    finally:
        os.close(lifeline)

    insist = threading.Timer(grace, signal_group, (process.pid, signal.SIGKILL))
    insist.daemon = True

    def pass_on(number: int, _: Optional[FrameType]) -> None:
        if process.returncode is not None:
            return  # leftovers are being ended; another process may have this PID by now
        signal_group(process.pid, number)
        if insist.ident is None:
            insist.start()

    before = {which: signal.signal(which, pass_on) for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        _wait_for(process.pid)
        insist.cancel()
        signal_group(process.pid, signal.SIGKILL)
        status = process.wait()
        was_told = insist.ident is not None
        end_leftovers(marks, SHORT_GRACE if was_told or status in OWN_STATUS else grace, adopted=True)
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        os.close(kept)
    keeper.wait()
    return status if status >= 0 else 128 - status


def _wait_for(pid: int) -> None:
    """Waits until a child has ended and does not reap it; reaps the adopted processes that end meanwhile."""
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_pid == pid:
            return
        os.waitpid(ended.si_pid, 0)


def signal_group(group: int, which: int) -> None:
    """Sends a signal to a process group that may be empty."""
    try:
        os.killpg(group, which)
    except OSError:
        return  # the group is empty
