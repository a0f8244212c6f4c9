"""The watchdog's look at the children of its process."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from hpo_pilot.pilot.settings import WorkDir
from hpo_pilot.pilot.watchdog import Watchdog


@pytest.fixture
def watchdog(make_settings):
    """One in this process, no job of which runs."""
    thread = Watchdog(WorkDir(make_settings()))
    thread.start()
    yield thread
    thread.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_the_end_of_a_program_is_left_to_whoever_started_it(watchdog, until):
    """Reaped by the watchdog, a download that failed would have ended with 0."""
    program = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    orphan = int(subprocess.check_output(["sh", "-c", "setsid sh -c 'sleep 0.1 >&- & echo $!'"]))
    until(lambda: psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE)
    watchdog._wake.set()
    until(lambda: not psutil.pid_exists(orphan))  # it has looked at all of them
    assert program.wait() == 3
