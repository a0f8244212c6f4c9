"""No process of a job outlives it, whatever is killed, and no attempt begins beside the one before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from tests import outliving
from tests.pilot.conftest import GOOD, FakePanda, PilotProcess

OPTIONS = ("--worker-id", "2", "--grace", "3")


class Bench:
    """A job whose processes try to outlive it."""

    def __init__(self, panda: FakePanda, pilot: PilotProcess, until: Any, folder: Path) -> None:
        self.panda, self.pilot, self.until, self.folder = panda, pilot, until, folder
        self.job: dict[str, Any] = {}

    def start(self, kind: str) -> subprocess.Popen[bytes]:
        command = outliving.command(self.folder, kind)
        self.panda.add_job(command, {outliving.NAME: outliving.SCRIPT})
        self.job = self.panda.waiting[-1]
        process = self.pilot.start(*OPTIONS)
        self.until(lambda: outliving.runs(self.folder))
        return process

    def again(self) -> None:
        """PanDA sends the job out again."""
        with self.panda.changed:
            self.panda.waiting.append(dict(self.job, attemptNr=2))
            self.panda.changed.notify_all()

    def runner(self, process: subprocess.Popen[bytes]) -> psutil.Process:
        return next(outliving.runners(psutil.Process(process.pid).children()))

    def is_clear(self) -> bool:
        return not outliving.left(self.folder)

    def second_attempt_ends_well(self) -> None:
        """And did not begin beside the first."""
        self.until(lambda: outliving.runs(self.folder, 2))
        assert not outliving.overlap(self.folder)
        (self.folder / "over").touch()
        self.until(lambda: self.panda.of(self.job["PandaID"], "finished"))


@pytest.fixture
def bench(panda, pilot, until, tmp_path):
    made = Bench(panda, pilot, until, tmp_path / "lives")
    yield made
    made.folder.mkdir(exist_ok=True)
    (made.folder / "over").touch()


@pytest.mark.parametrize("kind", ["daemon", "stubborn", "hidden"])
def test_a_killed_runner(bench, kind):
    process = bench.start(kind)
    bench.runner(process).kill()
    report = bench.panda.final(bench.job["PandaID"])
    assert report["job_status"] == "failed" and report["trans_exit_code"] == 137
    assert bench.is_clear(), "the failure is reported when nothing of the attempt runs any more"
    bench.again()
    bench.second_attempt_ends_well()


@pytest.mark.parametrize(("kind", "with_runner"), [("stubborn", False), ("hidden", False), ("daemon", True)])
def test_a_killed_pilot(bench, kind, with_runner):
    """No other pilot comes."""
    process = bench.start(kind)
    runner = bench.runner(process)
    outliving.kill_at_once([psutil.Process(process.pid), *([runner] if with_runner else [])])
    bench.until(bench.is_clear)


def test_the_next_pilot_ends_what_is_left(bench):
    """Also where all that could have ended it was killed at once."""
    process = bench.start("stubborn")
    ours = psutil.Process(process.pid)
    outliving.kill_at_once([ours, *(child for child in ours.children() if child.status() != psutil.STATUS_ZOMBIE)])
    process.wait()
    assert outliving.left(bench.folder)
    bench.again()
    bench.pilot.start(*OPTIONS)
    bench.second_attempt_ends_well()


@pytest.mark.parametrize("kind", ["daemon", "hidden"])
def test_what_a_good_payload_leaves_running(bench, kind):
    started = (
        f"{sys.executable} {outliving.NAME} {bench.folder} {kind} & until ls {bench.folder}/1.*; do sleep 0.01; done"
    )
    bench.folder.mkdir()
    job = bench.panda.add_job(f"{started}; {GOOD}", {outliving.NAME: outliving.SCRIPT})
    bench.pilot.start()
    assert bench.panda.final(job)["job_status"] == "finished"
    assert bench.is_clear()


def test_only_processes_of_the_job_are_ended(bench):
    """Those of another job of this pilot go on, and so do those of the same job's number at another pilot."""
    process = bench.start("hidden")
    runner = bench.runner(process)
    waits = f"until test -e {bench.folder}/over; do sleep 0.01; done"
    other = bench.panda.add_job(f"(env -i setsid sleep 300 & echo $! > pid); {waits}; kill $(cat pid) && {GOOD}")
    bench.until(lambda: bench.panda.of(other, "running"))
    env = dict(os.environ, PANDAID=str(bench.job["PandaID"]), PANDA_ATTEMPTNR="1", HPO_PILOT_WORKER="another@pilot")
    foreign = subprocess.Popen(["sleep", "300"], env=env, start_new_session=True)
    try:
        runner.send_signal(signal.SIGKILL)
        bench.panda.final(bench.job["PandaID"])
        assert bench.is_clear()
        assert foreign.poll() is None
        (bench.folder / "over").touch()
        report = bench.panda.final(other)
        assert report["job_status"] == "finished"
        assert '"value": 0.5' in report["meta_data"].replace("\\", "")
    finally:
        foreign.kill()
        foreign.wait()


def test_a_command_that_is_not_ours(bench):
    """Such a job has no runner; what it hides is not ended with another job, and is ended with its own."""
    process = bench.start("hidden")
    runner = bench.runner(process)
    pid, over = bench.folder / "pid", bench.folder / "go"
    command = f"(env -i setsid sleep 300 & echo $! > {pid}); until test -e {over}; do sleep 0.01; done"
    other = bench.panda.add_job("true", job={"jobPars": f'-j "" -r . -p "{quote(command)}"'})
    bench.until(lambda: pid.exists() and pid.read_text().strip())
    hidden = psutil.Process(int(pid.read_text()))
    runner.kill()
    bench.panda.final(bench.job["PandaID"])
    assert bench.is_clear() and hidden.is_running()
    over.touch()
    assert bench.panda.final(other)["job_status"] == "finished"
    assert not hidden.is_running() or hidden.status() == psutil.STATUS_ZOMBIE
