"""Runs the payload's process and ends every process that it leaves behind."""

import binascii
import os
import signal
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set

from hpo_pilot.transformation.job import ExitCode, TransformationFailure

# Processes that outlive their job: known by variables of their environment, and ended.
#
# A process may leave its parent's group and session, but keeps the environment that it was started with, in a
# container
# too. So whoever starts a job gives it variables that no other job has, and ends what bears them when the job is
# over.
# A keeper, a process of its own, does the same when the one that started the job was killed and can do nothing more.
# Only Linux shows environments; elsewhere nothing is found.

#: The variable that says who runs a job; with PanDA's own ones it tells one attempt from all others.
WORKER_MARK = "HPO_PILOT_WORKER"

#: Seconds between TERM and KILL where nobody has told the processes yet: more than the runner, which tells its payload,
#: gives it to save a checkpoint.
GRACE = 15.0

#: The same where they were told, or left over by a payload that has ended.
SHORT_GRACE = 2.0

_KILLED = 10.0  # seconds that the system gets to end what was killed
_PAUSES = (0.01, 0.02, 0.05, 0.1)  # seconds between looks, the last one again and again
_PROC = "/proc"
_ENDED = (b"Z", b"X")
_LOOKS = 5  # at the children: where some end each time, all processes are looked at


class _Process(NamedTuple):
    parent: int
    started: bytes


class Ended(NamedTuple):
    """What was done to leftovers.

    Attributes:
        found: how many processes there were.
        left: those that the system could not end, such as one that waits for a dead file server.
    """

    found: int
    left: List[int]


def end_leftovers(variables: Mapping[str, str], grace: float) -> Ended:
    """Ends all processes with these variables, and their descendants; returns when they are gone.

    The topmost are asked first, since runners and launchers end those below them in order.

    Args:
        variables: in the environment of each process; together no other job's.
        grace: seconds between TERM and KILL; 0: no TERM.
    """
    known, told = {}, set()  # type: Dict[int, bytes], Set[int]
    began, looks, clear = time.monotonic(), 0, 0
    while True:
        found = _find(variables, known)
        known.update((pid, process.started) for pid, process in found.items())
        clear = 0 if found else clear + 1
        passed = time.monotonic() - began
        # Twice: the environment of a process that is just starting a program cannot be read.
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
    """Whether a job that has ended may have left something: quicker than a look at all processes.

    Only for a process that adopts what loses its parent (a "subreaper") and whose other jobs have the same variables
    with other values: whatever outlived the job is then a child of this process, or below one.
    """
    wanted, mark, known = _entries(variables), WORKER_MARK.encode() + b"=", set()  # type: Set[bytes], bytes, Set[int]
    group = str(os.getpgrp()).encode()  # what this process has started for itself, or is just starting, is in it
    try:
        for _ in range(_LOOKS):
            ended = set()
            for child in _children():
                try:
                    fields, entries = _status(child), _environment(child)
                except OSError:
                    fields, entries = [_ENDED[0]], set()
                if fields[0] in _ENDED:
                    ended.add(child)
                elif fields[2] != group and (wanted <= entries or not any(each.startswith(mark) for each in entries)):
                    return True
            if ended <= known:
                return False
            known |= ended  # their children may have become ours since we looked
    except OSError:
        pass  # this system does not list children
    return True


class Keeper:
    """A process that ends a job's processes once the lifeline's other end is closed, however that came."""

    def __init__(self, variables: Mapping[str, str], lifeline: int) -> None:
        """Starts it.

        Args:
            variables: as for `end_leftovers`.
            lifeline: the reading end of a pipe whose other end this process holds.

        Raises:
            OSError: it cannot be started.
        """
        # From this package as it was found, be it a folder or a zip file.
        home = os.path.abspath(__file__)
        for _ in range(3):
            home = os.path.dirname(home)
        code = "import sys; sys.path.append(%r); from %s import keep; keep(sys.argv[1:])" % (home, __name__)
        words = [sys.executable, "-I", "-S", "-c", code, str(lifeline), *("%s=%s" % item for item in variables.items())]
        self._process = subprocess.Popen(
            words,
            cwd="/",
            env=dict(os.environ, **{WORKER_MARK: ""}),  # it is no job's; see has_orphans
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lifeline],
            start_new_session=True,  # what ends the group of this process shall not end it
        )

    def wait(self) -> None:
        """Waits for its end, after the lifeline was closed."""
        self._process.wait()


def keep(words: List[str]) -> None:
    """The keeper's own program: the lifeline's number and the variables."""
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, _ignore)
    while os.read(int(words[0]), 512):
        pass
    end_leftovers(dict(word.split("=", 1) for word in words[1:]), GRACE)


def _ignore(number: int, frame: Optional[FrameType]) -> None:
    """It ends when its work is done."""


def _find(variables: Mapping[str, str], known: Mapping[int, bytes]) -> Dict[int, _Process]:
    """The processes with these variables, those known before, and all below them; not what has ended already."""
    wanted, everyone, found = _entries(variables), {}, set()  # type: Set[bytes], Dict[int, _Process], Set[int]
    for name in os.listdir(_PROC) if os.path.isdir(_PROC) else ():
        if not name.isdigit():
            continue
        try:
            pid = int(name)
            fields = _status(pid)
            if fields[0] in _ENDED:
                continue
            everyone[pid] = process = _Process(int(fields[1]), fields[19])
            if known.get(pid) == process.started or wanted <= _environment(pid):
                found.add(pid)
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    own = os.getpid()
    while own in everyone:  # never this process, nor what started it, whose environment somebody may have copied
        found.discard(own)
        own = everyone[own].parent
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
    """What proc(5) lists in `stat`, from the state on; the name before it may have brackets."""
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
        return  # it ended meanwhile, or is somebody else's


#: What the payload runner ends with; anything else was done to it.
_OWN_STATUS = (0, 1)


def run_payload(command: Callable[[Dict[str, str]], Sequence[str]], folder: str, environment: Mapping[str, str]) -> int:
    """Runs a command to its end, and ends all that it left running, in sessions of their own too.

    It gets a pipe that closes when this process dies, however it dies: the payload runner watches it, and a keeper ends
    what is left then. Signals that ask this process to end are passed on. Main thread only.

    Args:
        command: makes the words from the environment that the command will get.
        folder: where it runs.
        environment: to which the variables are added that tell its processes from all others.

    Returns:
        Its exit status; 128 + signal where one ended it.

    Raises:
        TransformationFailure: it cannot be started.
    """
    lifeline, kept = os.pipe()
    marks = {WORKER_MARK: "%s %d %s" % (folder, os.getpid(), binascii.hexlify(os.urandom(8)).decode())}
    env = dict(environment, HPO_PILOT_LIFELINE_FD=str(lifeline), **marks)
    argv = command(env)
    sys.stdout.flush()
    try:
        keeper = Keeper(marks, lifeline)
        process = subprocess.Popen(
            list(argv), cwd=folder, env=env, stdin=subprocess.DEVNULL, pass_fds=[lifeline], start_new_session=True
        )
    except OSError as error:
        os.close(kept)
        raise TransformationFailure(ExitCode.EXECUTION_FAILED, "%s cannot be started: %s" % (argv[0], error)) from error
    finally:
        os.close(lifeline)

    insist = threading.Timer(GRACE, _signal_group, (process.pid, signal.SIGKILL))
    insist.daemon = True

    def pass_on(number: int, _: Optional[FrameType]) -> None:
        if process.returncode is not None:
            return  # what is left is being ended; the number may be another's by now
        _signal_group(process.pid, number)
        if insist.ident is None:
            insist.start()

    before = {which: signal.signal(which, pass_on) for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        insist.cancel()
        _signal_group(process.pid, signal.SIGKILL)
        status = process.wait()
        was_told = insist.ident is not None
        end_leftovers(marks, SHORT_GRACE if was_told or status in _OWN_STATUS else GRACE)
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        os.close(kept)
    keeper.wait()
    return status if status >= 0 else 128 - status


def _signal_group(group: int, which: int) -> None:
    try:
        os.killpg(group, which)
    except OSError:
        return  # nobody is left in it
