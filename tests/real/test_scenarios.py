"""A search on a PanDA server that is not its own, as its user sees it: whatever server the environment names."""

from __future__ import annotations

import secrets
import signal
import time
from typing import Any

import pytest

from tests.end_to_end.conftest import Scan
from tests.real.target import HEARTBEAT_TIMEOUT, Target, wait_until

#: As BOWL; the first attempt takes SECONDS.
SLOW = """
import json, os, time
point = json.load(open("input.json"))
time.sleep(SECONDS if os.environ["HPO_PILOT_ATTEMPT"] == "1" else 0)
json.dump({"status": 0, "loss": (point["x"] - 0.3) ** 2, "message": ""}, open("output.json", "w"))
"""


@pytest.fixture
def name() -> str:
    """Of a search: names are for ever at a server."""
    return f"s{secrets.token_hex(3)}"


def write(scan: Scan, target: Target, name: str, document: dict[str, Any], **payload: str) -> None:
    queue = {"queue": target.queue} if target.queue else {}
    base = {
        "resources": {"minutes": 20, "memory_mb": 500},
        "search": name,
        "site": {"profile": "grid", **queue},
        "budget": {"trials": 6, "parallel": 3},
    }
    scan.write({**base, **document}, **payload)


def run(scan: Scan, target: Target, status: int = 0) -> None:
    scan("run", str(scan.file), "--server", target.url, status=status, timeout=target.patience)


def test_a_search_is_submitted_watched_and_collected(scan, target, name, tmp_path):
    write(scan, target, name, {"folds": 2, "optimizer": "bayesian"})
    with target.pilot(tmp_path / "pilot"):
        run(scan, target)
    trials = scan.json("trials", name)
    assert [trial["state"] for trial in trials] == ["finished"] * 6
    for trial in trials:
        assert trial["value"] == pytest.approx((trial["point"]["x"] - 0.3) ** 2 + 0.0005)
        assert [fold["fold"] for fold in trial["folds"]] == [0, 1]
    assert not (scan.workdir / "panda.db").exists(), "an embedded server was started"


def test_several_points_in_a_job(scan, target, name, tmp_path):
    write(scan, target, name, {"resources": {"trials_per_job": 3, "minutes": 5, "memory_mb": 500}})
    with target.pilot(tmp_path / "pilot"):
        run(scan, target)
    trials = scan.json("trials", name)
    assert [trial["state"] for trial in trials] == ["finished"] * 6
    jobs = {trial["folds"][0]["panda_id"] for trial in trials}
    assert len(jobs) == 2


def test_what_a_payload_does_wrong_is_told_with_its_log(scan, target, name, tmp_path):
    write(scan, target, name, {"budget": {"trials": 2, "parallel": 2}}, payload='raise SystemExit("no such detector")')
    with target.pilot(tmp_path / "pilot"):
        run(scan, target, status=1)
    for trial in scan.json("trials", name):
        assert trial["state"] == "failed"
        assert "no such detector" in trial["folds"][0]["log_tail"]


def test_stop_kills_the_jobs(scan, target, name, tmp_path):
    write(scan, target, name, {}, payload=SLOW.replace("SECONDS", "3000"))
    with target.pilot(tmp_path / "pilot"):
        running = scan.start("run", str(scan.file), "--server", target.url)
        try:
            wait_until(lambda: _states(scan, name).count("running") >= 2, target.patience, "two trials run")
            scan("stop", name)
            output, _ = running.communicate(timeout=target.patience)
        finally:
            running.kill()
    assert running.returncode == 1, output
    assert scan.json("status", name)["state"] == "stopped"


def _states(scan: Scan, name: str) -> list[str]:
    result = scan("trials", name, "--json", status=None)
    return [] if result.returncode else [trial["state"] for trial in scan.json("trials", name)]


def test_a_killed_run_goes_on_and_submits_nothing_twice(scan, target, name, tmp_path):
    write(scan, target, name, {"budget": {"trials": 8, "parallel": 2}}, payload=SLOW.replace("SECONDS", "1"))
    with target.pilot(tmp_path / "pilot"):
        for _ in range(2):
            running = scan.start("run", str(scan.file), "--server", target.url)
            time.sleep(12)
            running.kill()
            running.wait()
        run(scan, target)
    trials = scan.json("trials", name)
    assert [trial["number"] for trial in trials] == list(range(1, 9))
    ids = [trial["folds"][0]["panda_id"] for trial in trials]
    assert len(set(ids)) == len(ids) == 8


def test_a_lost_job_is_run_again(scan, target, name, tmp_path):
    if not target.embedded:
        pytest.skip("a foreign server waits hours before it gives a silent job up")
    write(scan, target, name, {"budget": {"trials": 2, "parallel": 2}}, payload=SLOW.replace("SECONDS", "3000"))
    running = scan.start("run", str(scan.file), "--server", target.url)
    first = target.start_pilot(tmp_path / "first")
    try:
        wait_until(lambda: _states(scan, name).count("running") == 2, target.patience, "both trials run")
        first.send_signal(signal.SIGKILL)
        first.wait()
        time.sleep(HEARTBEAT_TIMEOUT)
        with target.pilot(tmp_path / "second"):
            output, _ = running.communicate(timeout=target.patience)
    finally:
        running.kill()
        first.kill()
    assert running.returncode == 0, output
    for trial in scan.json("trials", name):
        assert trial["state"] == "finished"
        assert trial["folds"][0]["attempt"] == 2
