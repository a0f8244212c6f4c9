"""No process of a job that a foreign pilot started outlives the transformation."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from hpo_pilot.transformation.process import end_leftovers
from tests import outliving
from tests.transformation.test_transformation import Job


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "lives"
    yield found
    found.mkdir(exist_ok=True)
    (found / "over").touch()


@pytest.fixture
def start(tmp_path, folder, panda, until):
    """Starts a job whose processes try to outlive it."""

    def begin(kind: str) -> subprocess.Popen[str]:
        panda.add_job(outliving.command(folder, kind), {outliving.NAME: outliving.SCRIPT})
        process = Job(tmp_path).start(panda.waiting[0]["jobPars"])
        until(lambda: outliving.runs(folder))
        return process

    return begin


def runner_of(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    return next(child for child in children if "hpo_pilot_runner.py" in " ".join(child.cmdline()))


@pytest.mark.parametrize("kind", ["session", "stubborn"])
def test_a_killed_runner(start, folder, kind):
    """Its status is told when nothing runs any more: the pilot then reports the failure."""
    process = start(kind)
    runner_of(process).kill()
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert not outliving.left(folder)


@pytest.mark.parametrize("kind", ["daemon", "stubborn"])
@pytest.mark.parametrize("with_runner", [False, True])
def test_a_killed_transformation(start, folder, kind, with_runner, until):
    process = start(kind)
    outliving.kill_at_once([psutil.Process(process.pid), *([runner_of(process)] if with_runner else [])])
    process.wait()
    until(lambda: not outliving.left(folder), 40)


def test_told_to_end(start, folder):
    process = start("stubborn")
    process.terminate()
    process.communicate(timeout=60)
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
