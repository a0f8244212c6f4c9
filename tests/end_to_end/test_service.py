"""`hpo-pilot serve` with submit, pause, resume, stop, extend, as several people would use it."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager

import pytest

from tests.command_here import command_here

SLOW = """
import json, time
time.sleep(0.3)
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"]}, open("output.json", "w"))
"""


@contextmanager
def serving(scan):
    process = scan.start("serve", "--slots", "2")
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "serving" in line, (line, scan.logs())
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def wait_for(scan, state, name="demo", seconds=120.0, trials=0, *, idle=False):
    """Waits for a state; `trials`: with so many that are over; `idle`: with none that is not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = scan.json("status", name)
        over = sum(n for kind, n in status["trials"].items() if kind in ("finished", "failed"))
        if status["state"] == state and over >= trials and not (idle and over < sum(status["trials"].values())):
            return status
        time.sleep(0.2)
    raise AssertionError(f"{name} never became {state}: {status}; {scan.logs()}")


def test_a_search_is_steered_by_the_service(scan):
    scan.write({"budget": {"trials": 400, "parallel": 2}}, SLOW)
    scan("submit", str(scan.file))
    refused = scan("submit", str(scan.file), status=2)
    assert "already has a search 'demo'" in refused.stderr
    with serving(scan):
        wait_for(scan, "running", trials=2)
        scan("pause", "demo")
        wait_for(scan, "paused")
        paused = wait_for(scan, "paused", idle=True)["trials"]
        time.sleep(1.5)  # nothing new begins meanwhile
        assert scan.json("status", "demo")["trials"] == paused
        assert set(paused) == {"finished"}
        scan("resume", "demo")
        wait_for(scan, "running", trials=paused["finished"] + 1)
        scan("stop", "demo")
        stopped = wait_for(scan, "stopped")
        assert stopped["ended"]
        before = sum(stopped["trials"].values())
        scan("extend", "demo", "--trials", "+1")
        wait_for(scan, "running", trials=stopped["trials"]["finished"] + 1)
        scan("stop", "demo")
        after = wait_for(scan, "stopped")
        assert sum(after["trials"].values()) > before
        assert after["budget"]["trials"] == 401
    assert "demo" in scan("list").stdout
    assert (scan.workdir / "reports" / "demo.html").exists()


def test_a_live_service_sees_an_extension_and_a_mended_payload(scan):
    scan.write({"budget": {"trials": 40, "parallel": 1}}, SLOW)
    scan("submit", str(scan.file))
    with serving(scan):
        wait_for(scan, "running", trials=1)
        scan("extend", "demo", "--trials", "+2")
        scan.write({"budget": {"trials": 40, "parallel": 1}}, SLOW.replace('["x"]', '["x"] + 1000'))
        scan("resume", "demo", "--new-payload")
        wait_for(scan, "done", trials=42)
    values = [trial["value"] for trial in scan.trials()]
    assert len(values) == 42
    assert values[0] < 1
    assert values[-1] > 1000


def test_a_run_that_watches_takes_over_when_the_service_dies(scan):
    scan.write({"budget": {"trials": 10, "parallel": 1}}, SLOW)
    scan("submit", str(scan.file))
    with serving(scan) as service:
        run = scan.start("run", str(scan.file))
        wait_for(scan, "running", trials=1)
        service.kill()
        output, _ = run.communicate(timeout=180)
        assert run.returncode == 0, output
    assert [trial["state"] for trial in scan.trials()] == ["finished"] * 10


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["status", "99999999999999999999"], "no search"),
        (["resume", "demo"], "is submitted already"),
        (["extend", "demo"], "no amount is given"),
        (["fetch", "best", "demo"], "declares no outputs"),
        (["trials", "demo", "--workdir", "/proc/none"], "there is no store"),
    ],
)
def test_wrong_commands_say_what_to_do(scan, command, message):
    scan.write({})
    scan.here("submit", str(scan.file))
    result = command_here(*command) if "--workdir" in command else scan.here(*command, status=2)
    assert result.returncode == 2
    assert message in result.stderr


def test_best_of_nothing_is_status_1(scan):
    scan.write({})
    scan.here("submit", str(scan.file))
    assert "no finished trial" in scan.here("best", "demo", status=1).stderr
