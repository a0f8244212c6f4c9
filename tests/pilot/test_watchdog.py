"""The watchdog's look at the children of its process."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.watchdog import Watchdog


@pytest.fixture
def watchdog():
    """One in this process, no job of which runs."""
    thread = Watchdog()
    thread.start()
    yield thread
    thread.stop()
    thread.join(600)
    assert not thread.is_alive()


def test_an_attempt_that_ends_leaves_the_next_one_watched():
    """The server takes the first one for lost after an outage of the network, and sends the job again."""
    watchdog = Watchdog()
    ended: list[int] = []
    first, second = (
        SimpleNamespace(job=SimpleNamespace(panda_id=7, attempt=number), stop=lambda _, n=number: ended.append(n))
        for number in (1, 2)
    )
    for attempt in (first, second):
        watchdog.add(attempt)
    watchdog.remove(first)
    assert watchdog.running() == [second]
    watchdog.stop_job(7, JobFailure("killed", PilotErrorCode.PANDA_KILL))
    assert ended == [2]
    watchdog.remove(second)
    assert watchdog.running() == []


def test_the_end_of_a_program_is_left_to_whoever_started_it(watchdog, until):
    """Reaped by the watchdog, a download that failed would have ended with 0."""
    program = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    orphan = int(subprocess.check_output(["sh", "-c", "setsid sh -c 'sleep 0.1 >&- & echo $!'"]))
    until(lambda: psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE)
    watchdog._wake.set()
    until(lambda: not psutil.pid_exists(orphan))  # it has looked at all of them
    assert program.wait() == 3
