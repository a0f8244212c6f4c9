"""The payload's process, for a transformation that a foreign pilot started."""

import binascii
import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Callable, Dict, Mapping, Optional, Sequence

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure
from hpo_pilot.transformation.leftovers import GRACE, SHORT_GRACE, WORKER_MARK, Keeper, end_leftovers

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
