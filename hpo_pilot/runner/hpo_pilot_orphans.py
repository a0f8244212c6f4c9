#!/usr/bin/env python3
"""Ends the processes that a command leaves behind, whatever their session, process group and environment.

    python3 -I -S hpo_pilot_orphans.py COMMAND...

As a program it runs the command, ends what the command has left, and ends as the command did. Pilots put it before
commands that are not started by hpo_pilot_runner.py: containers, and the ranks that a batch system starts.

It uses that Linux gives processes whose parent has ended to their nearest ancestor that is a "child subreaper"
(prctl(2)). hpo_pilot_runner.py is one too, and loads this file if its payload has left something. Standard library
only, Python 3.6 syntax.
"""

import os
import signal
import sys
import time

try:
    import ctypes
except ImportError:  # a Python that was built without it
    ctypes = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List

GRACE = 2.0  # seconds between TERM and KILL
KILLED = 10.0  # seconds to wait for killed processes to end; one may wait for a dead file server
PAUSE = 0.01  # seconds between looks
FLUX_PASSES_ON = 1.0  # seconds; Flux collects output for 0.5 s, and drops it if a rank fails (src/shell/output/kvs.c)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
#: The system's own, which stop or continue this process together with the command, and those of its children.
NOT_CAUGHT = ("SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD")


def control(option: int, value: int) -> None:
    """Call prctl; does nothing on other systems than Linux."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError) as error:
        del error


def below() -> "Dict[int, int]":
    """Return the running descendants of this process: PID -> PID of the parent."""
    parents = {}  # type: Dict[int, int]
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        try:
            with open("/proc/%s/stat" % name, "rb") as file:  # proc(5); the name in brackets may hold brackets
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has just ended
        if state not in (b"Z", b"X"):
            parents[int(name)] = int(parent)
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in found}
        found |= new
    return {pid: parents[pid] for pid in found}


def end_all(grace: float = GRACE) -> None:
    """End all descendants of this process, which has adopted orphans; returns when it has no child any more.

    The topmost get TERM first, because they may end their own children in order. A process that is started meanwhile
    becomes a child of this one at the latest when its parent ends, so the next look finds it.

    Args:
        grace: seconds between TERM and KILL.
    """
    began, told = time.monotonic(), set()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        found, passed = below(), time.monotonic() - began
        if passed > grace + KILLED:
            return
        for pid, parent in found.items():
            if passed >= grace:
                send(pid, signal.SIGKILL)
            elif parent not in found and pid not in told:
                told.add(pid)
                send(pid, signal.SIGTERM)
        time.sleep(PAUSE)


def send(pid: int, which: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, which)
    except OSError as error:
        del error


def survive() -> None:
    """Catch the signals that would end this process: launchers send them to the command too, by its process group."""
    for which in signal.Signals:
        if which.name not in NOT_CAUGHT and signal.getsignal(which) == signal.SIG_DFL:
            signal.signal(which, lambda *_: None)


def meter() -> "Callable[[], None]":
    """Start to measure the energy of a rank on its node; returns a function that saves it."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hpo_pilot_energy.py")
    told = [os.environ.get("HPO_PILOT_" + name) for name in ("CORES", "GPUS", "MEASURED")]  # by the runner
    if None in told or told[0] == "0" or not os.path.exists(path):
        return lambda: None
    import runpy  # noqa: PLC0415  only here

    return runpy.run_path(path)["meter_of_rank"]()  # type: ignore[no-any-return]


def run(words: "List[str]") -> int:
    """Run a command to its end, then end what it has left; returns its wait status."""
    control(PR_SET_CHILD_SUBREAPER, 1)
    survive()  # the command starts without these handlers, as exec has it
    pid = os.fork()
    if not pid:
        try:
            control(PR_SET_PDEATHSIG, signal.SIGKILL)  # a signal that kills this process is for the command
            for which in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would pass that on
                signal.signal(which, signal.SIG_DFL)
            os.execvp(words[0], words)  # noqa: S606
        except OSError as error:
            print("%s: %s" % (words[0], error.strerror), file=sys.stderr, flush=True)
        finally:
            os._exit(127)
    save = meter()
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            save()
            end_all()
            return status


def main(words: "List[str]") -> None:
    """Run the command and end as it did."""
    status = run(words)
    if status and "FLUX_TASK_RANK" in os.environ:
        time.sleep(FLUX_PASSES_ON)
    if os.WIFSIGNALED(status):
        import resource  # noqa: PLC0415  only here

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1:])
