"""Kill anything, at any time, and give the same command again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import psutil
import pytest

SLOW_BOWL = """
import json, time
point = json.load(open("input.json"))
time.sleep(0.25)
json.dump({"status": 0, "loss": (point["x"] - 0.3) ** 2}, open("output.json", "w"))
"""


#: On a busy machine each kill may meet the same jobs.
PATIENT = {"panda": {"attempts": 20}}


def processes(root: psutil.Process) -> dict[str, psutil.Process]:
    """The service's children by what they are."""
    found = {"service": root}
    for child in root.children():
        command = " ".join(child.cmdline())
        for name in ("hpo_pilot.server", "hpo_pilot.pilot", "client_worker"):
            if name in command:
                found[name] = child
    return found


def kill_something(process: subprocess.Popen[str], dice: random.Random) -> None:
    try:
        found = processes(psutil.Process(process.pid))
        found[dice.choice(sorted(found))].kill()
    except psutil.NoSuchProcess:
        pass  # it ended by itself in the meantime


def run_with_kills(scan, dice: random.Random, kills: int) -> None:
    for _ in range(kills):
        process = scan.start("run", str(scan.file))
        time.sleep(dice.uniform(0.8, 4.0))
        kill_something(process, dice)
        time.sleep(dice.uniform(0.0, 1.5))
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=600)
    scan("run", str(scan.file))


@pytest.mark.parametrize(("count", "per_job", "seed"), [(20, 1, 5), (24, 4, 11)])
def test_kills_lose_nothing_and_repeat_nothing(scan, count, per_job, seed):
    resources = {"minutes": 1, "memory_mb": 500, "trials_per_job": per_job}
    budget = {"trials": count, "parallel": 4 if per_job == 1 else 8}
    scan.write({"budget": budget, "folds": 2, "resources": resources, **PATIENT}, SLOW_BOWL)
    run_with_kills(scan, random.Random(seed), 6)
    trials = scan.trials()
    assert [trial["number"] for trial in trials] == list(range(1, count + 1))
    assert [trial["state"] for trial in trials] == ["finished"] * count
    assert sorted(trial["told"] for trial in trials) == list(range(1, count + 1))
    assert len({trial["point"]["x"] for trial in trials}) == count
    for trial in trials:
        assert [fold["fold"] for fold in trial["folds"]] == [0, 1]
        assert all(fold["value"] == pytest.approx((trial["point"]["x"] - 0.3) ** 2) for fold in trial["folds"])


@pytest.mark.parametrize("optimizer", ["bayesian", "evolutionary"])
def test_the_same_points_as_an_undisturbed_run(scan, tmp_path, optimizer):
    document = {"optimizer": optimizer, "budget": {"trials": 14, "parallel": 1}, "seed": 3, **PATIENT}
    scan.write(document, SLOW_BOWL)
    run_with_kills(scan, random.Random(7), 3)
    disturbed = [(trial["point"], trial["value"]) for trial in scan.trials()]
    (tmp_path / "quiet").mkdir()
    quiet = type(scan)(tmp_path / "quiet")
    quiet.write(document, SLOW_BOWL)
    quiet("run", str(quiet.file))
    assert disturbed == [(trial["point"], trial["value"]) for trial in quiet.trials()]


def when_training(scan, process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Waits until the first payload runs; returns the processes below the run."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        below = psutil.Process(process.pid).children(recursive=True)
        try:
            if any("train.py" in child.cmdline() for child in below):
                return below
        except psutil.NoSuchProcess:
            pass  # one of them has just ended
        time.sleep(0.1)
    raise AssertionError(scan.logs())


def test_nothing_is_left_running_after_a_kill(scan):
    scan.write({"budget": {"trials": 50}}, "import time; time.sleep(30)")
    process = scan.start("run", str(scan.file))
    mine = when_training(scan, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(mine, timeout=600)
    assert not alive, [child.cmdline() for child in alive]


def test_ctrl_c_ends_in_order_and_the_same_command_goes_on(scan):
    scan.write({"budget": {"trials": 40, "parallel": 2}}, SLOW_BOWL)
    process = scan.start("run", str(scan.file))
    next(line for line in process.stdout if "trials, best" in line)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 3, output
    assert f"`hpo-pilot run {scan.file} --workdir {scan.workdir}`, continues search" in output
    scan("run", str(scan.file))
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 40


def test_a_lost_panda_database_costs_no_result(scan):
    scan.write({"budget": {"trials": 12, "parallel": 2}}, SLOW_BOWL)
    process = scan.start("run", str(scan.file))
    next(line for line in process.stdout if "trials, best" in line)
    process.kill()
    process.communicate()
    done = [trial for trial in scan.trials() if trial["state"] == "finished"]
    assert done
    time.sleep(1.0)
    for path in scan.workdir.glob("panda.db*"):
        path.unlink()
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 12
    assert [trial for trial in trials if trial["number"] in {t["number"] for t in done}] == done


def test_a_second_run_in_the_same_folder_is_told_who_has_it(scan):
    scan.write({"budget": {"trials": 50}}, "import time; time.sleep(300)")
    process = scan.start("run", str(scan.file))
    try:
        when_training(scan, process)
        refused = scan("run", str(scan.file), status=3)
        assert f"process {process.pid}" in refused.stderr
    finally:
        process.kill()
        process.communicate()
