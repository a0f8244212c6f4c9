"""The payload's process, for a transformation that a foreign pilot started."""

import os
import signal
import subprocess
import sys
import threading
from types import FrameType
from typing import Mapping, Optional, Sequence

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

#: Between TERM and KILL, in seconds: more than the payload runner gives its payload to save a checkpoint.
GRACE = 15.0


def run_payload(argv: Sequence[str], folder: str, environment: Mapping[str, str]) -> int:
    """Runs a command to its end, and ends what it left running.

    It gets a pipe that closes when this process dies, however it dies: the payload runner watches it. Signals that ask
    this process to end are passed on. Main thread only.

    Returns:
        Its exit status; 128 + signal where one ended it.

    Raises:
        TransformationFailure: it cannot be started.
    """
    lifeline, kept = os.pipe()
    env = dict(environment, HPO_PILOT_LIFELINE_FD=str(lifeline))
    sys.stdout.flush()
    try:
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
        _signal_group(process.pid, number)
        if insist.ident is None:
            insist.start()

    before = {which: signal.signal(which, pass_on) for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        insist.cancel()
        _signal_group(process.pid, signal.SIGKILL)
        status = process.wait()
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
        os.close(kept)
    return status if status >= 0 else 128 - status


def _signal_group(group: int, which: int) -> None:
    try:
        os.killpg(group, which)
    except OSError:
        return  # nobody is left in it
