"""A search on a PanDA server that is not its own, as its user sees it: whatever server the environment names."""

from __future__ import annotations

import secrets
import signal
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.conftest import Scan
from tests.real.processes import until
from tests.real.target import HEARTBEAT_TIMEOUT, Door, Target

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


@pytest.mark.parametrize(("optimizer", "folds", "trials"), [("bayesian", 1, 8), ("evolutionary", 2, 6)])
def test_a_search_is_submitted_watched_and_collected(scan, target, name, tmp_path, optimizer, folds, trials):
    write(scan, target, name, {"folds": folds, "optimizer": optimizer, "budget": {"trials": trials, "parallel": 3}})
    with target.pilot(tmp_path / "pilot"):
        run(scan, target)
    found = scan.json("trials", name)
    assert [trial["state"] for trial in found] == ["finished"] * trials
    for trial in found:
        assert trial["value"] == pytest.approx((trial["point"]["x"] - 0.3) ** 2 + 0.0005 * (folds - 1))
        assert [fold["fold"] for fold in trial["folds"]] == list(range(folds))
    assert not (scan.workdir / "panda.db").exists(), "an embedded server was started"


def test_several_points_in_a_job(scan, target, name, tmp_path):
    resources = {"trials_per_job": 4, "minutes": 5, "memory_mb": 500}
    write(scan, target, name, {"budget": {"trials": 8, "parallel": 8}, "resources": resources})
    with target.pilot(tmp_path / "pilot"):
        run(scan, target)
    trials = scan.json("trials", name)
    assert [trial["state"] for trial in trials] == ["finished"] * 8
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
            until(lambda: _states(scan, name).count("running") >= 2, "two trials run", target.patience)
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


def test_a_server_that_is_away_for_a_minute_loses_nothing(scan, target, name, tmp_path):
    if urlsplit(target.url).hostname not in ("127.0.0.1", "localhost"):
        pytest.skip("the server can only be hidden behind a door on this machine")
    with Door(target.url) as door:
        addresses = dict.fromkeys(("PANDA_URL", "PANDA_URL_SSL", "PANDACACHE_URL"), f"{door.url}/server/panda")
        scan = Scan(scan.root, {**scan.environment, **addresses})
        write(scan, target, name, {"budget": {"trials": 6, "parallel": 2}}, payload=SLOW.replace("SECONDS", "3"))
        with replace(target, url=door.url).pilot(tmp_path / "pilot"):
            running = scan.start("run", str(scan.file), "--server", door.url)
            try:
                until(lambda: "finished" in _states(scan, name), "a trial finishes", target.patience)
                door.close()
                time.sleep(60)
                door.open()
                output, _ = running.communicate(timeout=target.patience)
            finally:
                running.kill()
    assert running.returncode == 0, output
    trials = scan.json("trials", name)
    assert [trial["state"] for trial in trials] == ["finished"] * 6
    assert {len(trial["folds"]) for trial in trials} == {1}
    assert "cannot be reached" in output


def test_a_service_pauses_resumes_and_extends(scan, target, name, tmp_path):
    write(scan, target, name, {"budget": {"trials": 4, "parallel": 1}}, payload=SLOW.replace("SECONDS", "8"))
    scan("submit", str(scan.file))

    def over() -> int:
        return sum(state == "finished" for state in _states(scan, name))

    def state() -> str:
        return str(scan.json("status", name)["state"])

    service = scan.start("serve", "--server", target.url)
    try:
        with target.pilot(tmp_path / "pilot"):
            until(lambda: over() >= 1, "a trial finishes", target.patience)
            scan("pause", name)
            until(lambda: over() == len(_states(scan, name)), "what was out ends", target.patience)
            paused = over()
            time.sleep(15)
            assert (over(), len(_states(scan, name)), state()) == (paused, paused, "paused")
            scan("resume", name)
            until(lambda: state() == "done", "it goes on to its end", target.patience)
            assert over() == 4
            scan("extend", name, "--trials", "2")
            until(lambda: over() == 6 and state() == "done", "two more", target.patience)
        service.send_signal(signal.SIGTERM)
        output, _ = service.communicate(timeout=600)
    finally:
        service.kill()
    assert service.returncode == 0, output


def test_a_lost_job_is_run_again(scan, target, name, tmp_path):
    if not target.embedded:
        pytest.skip("a foreign server waits hours before it gives a silent job up")
    write(scan, target, name, {"budget": {"trials": 2, "parallel": 2}}, payload=SLOW.replace("SECONDS", "3000"))
    running = scan.start("run", str(scan.file), "--server", target.url)
    first = target.start_pilot(tmp_path / "first")
    try:
        until(lambda: _states(scan, name).count("running") == 2, "both trials run", target.patience)
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
