"""Core-hours as a hard budget, with the embedded server and real pilots."""

from __future__ import annotations

#: The first trials are short; what comes after them would go on for longer than the budget has.
TRAINING = """
import json, os, time
time.sleep(0.1 if int(os.environ["HPO_PILOT_TRIAL"]) <= 4 else 60)
json.dump({"status": 0, "loss": json.load(open("input.json"))["x"]}, open("output.json", "w"))
"""
SECONDS = 16.0  # of one core


def test_what_runs_is_stopped_when_the_core_hours_are_used_up(scan):
    budget = {"trials": 50, "parallel": 4, "queued": 0, "core_hours": SECONDS / 3600}
    scan.write({"budget": budget, "resources": {"minutes": 0.2, "memory_mb": 100}}, TRAINING)
    scan("run", str(scan.file), "--slots", "4")
    status = scan.json("status", "demo")
    assert status["state"] == "done" and "core-hours is used up" in status["message"]
    trials = scan.trials()
    stopped = [trial for trial in trials if trial["state"] == "stopped"]
    assert [trial["number"] for trial in trials if trial["state"] == "finished"] == [1, 2, 3, 4]
    assert stopped and all(trial["error"] == status["message"] for trial in stopped)
    # The overshoot is what four jobs run until it is noticed; all of it is in the books.
    used = status["cost"]["core_hours"] * 3600
    assert SECONDS <= used < SECONDS + 4 * 20
    assert sum(trial["cost"]["job_seconds"] for trial in trials) == status["job_seconds"]
    assert "is used up" in (scan.workdir / "reports" / "demo.html").read_text()
