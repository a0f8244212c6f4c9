"""Kill runners, pilots and all around them at once: no process outlives its job, and no attempt runs beside another."""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from tests import outliving

#: Two processes, one of which runs in a session of its own and never ends: each notes when it lives.
SCRIPT = """
import json, os, signal, sys, time

folder = sys.argv[1]
name = ".".join(os.environ[key] for key in ("HPO_PILOT_TRIAL", "PANDAID", "PANDA_ATTEMPTNR"))
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    if int(os.environ["HPO_PILOT_TRIAL"]) % 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 0.6
with open("%s/%s.%d" % (folder, name, os.getpid()), "w", 1) as file:
    while not os.path.exists(folder + "/over") and (child == 0 or time.monotonic() < end):
        file.write("%.4f\\n" % time.monotonic())
        time.sleep(0.01)
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"]}, open("output.json", "w"))
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "lives"
    made.mkdir()
    yield made
    (made / "over").touch()


def around(service: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The processes that a payload hangs on, by what they are: runners, the pilot, its children, and all of them."""
    pilots = [child for child in service.children() if "hpo_pilot.pilot" in child.cmdline()]
    below = [child for pilot in pilots for child in pilot.children() if child.status() != psutil.STATUS_ZOMBIE]
    runners = list(outliving.runners(below))
    every = [*pilots, *(child for child in below if outliving.NAME not in " ".join(child.cmdline()))]
    return {
        "runner": runners[:1],
        "pilot": pilots,
        "pilot and runners": [*pilots, *runners],
        "pilot and children": every,
        "service, pilot and children": [service, *every],
    }


def assert_alone(folder: Path) -> None:
    """No attempt on a trial lived while another did."""
    spans: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in folder.glob("*.*.*.*"):
        trial, job, attempt, _ = path.name.split(".")
        spans[trial][f"{job}.{attempt}"] += [float(line) for line in path.read_text().split("\n")[:-1]]
    for trial, attempts in spans.items():
        lived = sorted((min(times), max(times)) for times in attempts.values() if times)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(lived)), (trial, attempts.keys(), lived)


def kill(process: subprocess.Popen[str], folder: Path, what: str) -> None:
    seen = len(list(folder.iterdir()))
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        try:
            found = around(psutil.Process(process.pid))[what]
            if found and len(list(folder.iterdir())) > seen:  # something has begun since
                outliving.kill_at_once(found)
                return
        except psutil.Error:
            pass  # it ended meanwhile
        time.sleep(0.05)


@pytest.mark.parametrize("what", ["runner", "pilot", "pilot and runners", "pilot and children"])
def test_the_service_goes_on(scan, folder, what):
    document = {"budget": {"trials": 12, "parallel": 3}, "panda": {"attempts": 20}}  # each kill may meet the same jobs
    document["payload"] = {"files": "payload", "command": f"python3 -I -S {outliving.NAME} {folder}; true"}
    scan.write(document)
    (scan.root / "payload" / outliving.NAME).write_text(SCRIPT)
    process = scan.start("run", str(scan.file))
    for _ in range(3):
        kill(process, folder, what)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output + scan.logs()
    assert not outliving.left(folder), "the command has ended, and so has all that it started"
    assert_alone(folder)
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 12


def test_the_same_command_goes_on(scan, folder):
    dice = random.Random(17)
    document = {"budget": {"trials": 12, "parallel": 3}, "panda": {"attempts": 20}}  # each kill may meet the same jobs
    document["payload"] = {"files": "payload", "command": f"python3 -I -S {outliving.NAME} {folder}; true"}
    scan.write(document)
    (scan.root / "payload" / outliving.NAME).write_text(SCRIPT)
    for _ in range(4):
        process = scan.start("run", str(scan.file))
        kill(process, folder, "service, pilot and children")
        process.communicate(timeout=600)
        time.sleep(dice.uniform(0.0, 1.0))
    scan("run", str(scan.file))
    assert not outliving.left(folder)
    assert_alone(folder)
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 12
