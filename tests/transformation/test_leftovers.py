"""No process of a job that a foreign pilot started outlives the transformation."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from hpo_pilot.transformation.process import end_leftovers
from tests import outliving
from tests.transformation.test_transformation import Job

GRACE = 2.0

#: Runs a command as the transformation does, with a short grace.
RUN = f"""
import os, sys
from hpo_pilot.transformation.process import run_payload
sys.exit(run_payload(lambda env: sys.argv[1:], os.getcwd(), os.environ, {GRACE}))
"""

#: Asks often whether there are orphans, while threads end at any moment; there is none.
ASK = """
import threading, time
from hpo_pilot.transformation.process import has_orphans

def run_threads():
    while asking:
        each = threading.Thread(target=time.sleep, args=[0.0005])
        each.start()
        each.join()

asking = True
threading.Thread(target=run_threads).start()
print(sum(has_orphans({"HPO_PILOT_WORKER": "nobody"}) for _ in range(1000)))
asking = False
"""


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "lives"
    found.mkdir()
    yield found
    (found / "over").touch()


@pytest.fixture
def start(tmp_path, folder, until):
    """Runs a payload whose processes try to outlive it."""

    def begin(kind: str) -> psutil.Popen:
        (tmp_path / outliving.NAME).write_text(outliving.SCRIPT)
        words = [sys.executable, outliving.NAME, str(folder), kind]
        process = psutil.Popen([sys.executable, "-c", RUN, *words], cwd=tmp_path)
        until(lambda: outliving.runs(folder))
        return process

    return begin


def payload_of(process: psutil.Process) -> psutil.Process:
    """The process that the transformation started, beside its keeper."""
    return next(child for child in process.children() if outliving.NAME in child.cmdline())


@pytest.mark.parametrize("kind", outliving.KINDS)
def test_a_killed_payload(start, folder, kind):
    """Its status is told when nothing runs any more: the pilot then reports the failure."""
    process = start(kind)
    payload_of(process).kill()
    assert process.wait(600) == 137
    assert not outliving.left(folder)


@pytest.mark.parametrize("with_payload", [False, True])
def test_a_killed_transformation(start, folder, with_payload, until):
    process = start("stubborn")
    outliving.kill_at_once([process, *([payload_of(process)] if with_payload else [])])
    process.wait()
    until(lambda: not outliving.left(folder))


def test_a_killed_transformation_of_one_file(tmp_path, folder, panda, until):
    """The file that a Pilot 3 gets can start the process that ends the others."""
    panda.add_job(outliving.command(folder, "daemon"), {outliving.NAME: outliving.SCRIPT})
    process = Job(tmp_path).start(panda.waiting[0]["jobPars"])
    until(lambda: outliving.runs(folder))
    runner = next(c for c in psutil.Process(process.pid).children() if "hpo_pilot_runner.py" in " ".join(c.cmdline()))
    outliving.kill_at_once([psutil.Process(process.pid), runner])
    process.wait()
    until(lambda: not outliving.left(folder))


def test_told_to_end(start, folder):
    process, began = start("stubborn"), time.monotonic()
    process.terminate()
    assert process.wait(600) == 137 and time.monotonic() - began >= GRACE
    assert not outliving.left(folder)


def test_a_process_that_hides_below_one_that_is_known():
    """Its own environment says nothing."""
    marks = {"HPO_PILOT_WORKER": f"test {os.getpid()}"}
    words = ["sh", "-c", "env -i setsid sleep 300 & wait"]
    with subprocess.Popen(words, env={**os.environ, **marks}, start_new_session=True) as process:
        below: list[psutil.Process] = []
        while not below or "sleep" not in below[0].cmdline():
            below = psutil.Process(process.pid).children(recursive=True)
        ended = end_leftovers(marks, 5)
        assert (ended.found, ended.left) == (2, [])
        assert not below[0].is_running() or below[0].status() == psutil.STATUS_ZOMBIE


def test_a_process_is_told_to_end_once(tmp_path, until):
    """A second signal would interrupt a program that saves its state."""
    marks = {"HPO_PILOT_WORKER": f"once {os.getpid()}"}
    save = f"echo told >> {tmp_path}/told; left=20"  # it ends a second later
    wait = "until [ $left = 0 ]; do sleep 0.05; left=$((left-1)); done"
    script = f"left=-1; trap '{save}' TERM; touch {tmp_path}/ready; {wait}"
    with subprocess.Popen(["sh", "-c", script], env={**os.environ, **marks}, start_new_session=True):
        until((tmp_path / "ready").exists)
        assert end_leftovers(marks, 60.0).left == []
    assert (tmp_path / "told").read_text() == "told\n"


def test_a_thread_that_ends_is_no_orphan():
    """A pilot has threads for each job; it would end the kept interpreter and look at all processes."""
    assert subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True).stdout == b"0\n"
