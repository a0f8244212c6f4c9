"""`hpo-pilot run`: the whole way, through the real panda-client, server, pilot and runner."""

from __future__ import annotations

import csv
import io
import statistics
import tarfile
import time

import pytest

from tests.replay import check_replay


def test_a_search_runs_to_its_end(scan):
    scan.write(
        {
            "folds": 2,
            "budget": {"trials": 6, "parallel": 3},
            "payload": {"files": "payload", "command": "python3 -I -S train.py", "outputs": ["model.txt"]},
        }
    )
    result = scan("run", str(scan.file))
    assert "search 'demo' is done: 6 trials" in result.stdout
    trials = scan.trials()
    assert [trial["number"] for trial in trials] == [1, 2, 3, 4, 5, 6]
    for trial in trials:
        values = [fold["value"] for fold in trial["folds"]]
        assert trial["state"] == "finished"
        assert trial["value"] == pytest.approx(statistics.fmean(values))
        assert trial["std"] == pytest.approx(statistics.stdev(values))
        assert values[0] == pytest.approx((trial["point"]["x"] - 0.3) ** 2)
        assert trial["submitted"] <= trial["started"] <= trial["ended"]
    best = scan.json("best", "demo")
    assert best["value"] == min(trial["value"] for trial in trials)
    report = scan.workdir / "reports" / "demo.html"
    assert f"trial {best['number']}" in report.read_text().lower()

    # again: nothing is run twice
    again = scan("run", str(scan.file))
    assert "6 trials" in again.stdout
    assert scan.trials() == trials

    rows = list(csv.DictReader(io.StringIO(scan.here("export", "demo", "--format", "csv").stdout)))
    assert [float(row["value"]) for row in rows] == [trial["value"] for trial in trials]

    scan("fetch", "best", "demo", "-o", str(scan.root / "out"))
    for fold in range(2):
        text = (scan.root / "out" / f"trial{best['number']}" / f"fold{fold}" / "model.txt").read_text()
        assert text == f"trial {best['number']} fold {fold}\n"
    kept = [path for path in scan.workdir.rglob("*.outputs.tar.gz") if tarfile.is_tarfile(path)]
    assert len(kept) == 3 * 2, "outputs of the three best trials, and no others"


BROKEN = r"""
import json, os, sys, time
kind = json.load(open("input.json"))["kind"]
print("this is payload", kind, flush=True)
def write(text): open("output.json", "w").write(text)
if kind == "crash": raise RuntimeError("no such layer")
elif kind == "signal": os.kill(os.getpid(), 11)
elif kind == "hang": time.sleep(600)
elif kind == "garbage": write("{{{{")
elif kind == "nothing": pass
elif kind == "nan": write('{"status": 0, "loss": NaN}')
elif kind == "string": write('{"status": 0, "loss": "0.5"}')
elif kind == "status": write('{"status": 3, "loss": 1.0, "message": "diverged"}')
elif kind == "flood":
    block = "x" * 999 + "\n"
    for _ in range(200_000): sys.stdout.write(block)
    write('{"status": 0, "loss": 0.25}')
elif kind == "good": write('{"status": 0, "loss": 0.5}')
"""

REASONS = {
    "crash": "no such layer",
    "signal": "SIGSEGV",
    "hang": "minutes",
    "garbage": "output.json",
    "nothing": "output.json",
    "nan": "nan",
    "string": "0.5",
    "status": "diverged",
}


def test_every_bad_payload_fails_its_trial_alone_and_says_why(scan):
    kinds = [*REASONS, "flood", "good"]
    scan.write(
        {
            "space": {"kind": {"type": "categorical", "choices": kinds}},
            "optimizer": "grid",
            "budget": {"trials": len(kinds), "parallel": 2, "failures": 20},
            "resources": {"minutes": 0.1, "memory_mb": 500},
        },
        BROKEN,
    )
    result = scan("run", str(scan.file))
    trials = {trial["point"]["kind"]: trial for trial in scan.trials()}
    assert set(trials) == set(kinds)
    for kind, reason in REASONS.items():
        assert trials[kind]["state"] == "failed", kind
        assert reason.lower() in trials[kind]["error"].lower(), (kind, trials[kind]["error"])
        assert f"this is payload {kind}" in trials[kind]["folds"][0]["log_tail"] or kind == "signal"
    assert trials["good"]["value"] == 0.5
    assert trials["flood"]["value"] == 0.25
    assert "8 failed" in result.stdout
    shown = scan.here("trials", "demo").stdout
    assert "RuntimeError: no such layer" in shown


def test_failures_in_a_row_stop_the_search_and_a_mended_payload_goes_on(scan):
    scan.write({"budget": {"trials": 8, "parallel": 1, "failures": 3}}, "raise SystemExit('bad day')")
    failed = scan("run", str(scan.file), status=1)
    assert "3 trials failed in a row" in failed.stdout
    assert "bad day" in failed.stdout
    assert len(scan.trials()) == 3
    scan.write({"budget": {"trials": 8, "parallel": 1, "failures": 3}})
    scan("resume", "demo", "--new-payload")
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["failed"] * 3 + ["finished"] * 5


def test_a_search_can_be_replayed(scan):
    scan.write({"optimizer": "bayesian", "budget": {"trials": 14, "parallel": 4}, "start": [{"x": 0.9}]})
    scan("run", str(scan.file))
    assert len(check_replay(scan.workdir, "demo")) >= 3
    trials = scan.trials()
    assert len({trial["point"]["x"] for trial in trials}) == 14
    assert trials[0]["point"] == {"x": 0.9}
    assert scan.json("best", "demo")["value"] < 0.05


ODD_PROGRESS = """
import json, os
with open("progress.jsonl", "w") as file:
    for step in ("1", "1e20", "100000000000000000000", "null", "true", "-5", "3000000000"):
        file.write('{"step": %s, "value": 0.5}\\n' % step)
    file.write('{"step": 2, "value": NaN}\\n{"step": 3\\nnot json\\n')
json.dump({"status": 0, "loss": 0.5, "metrics": {"big": 1e308, "nan": float("nan")}}, open("output.json", "w"))
"""


def test_odd_progress_harms_nobody(scan):
    scan.write({"budget": {"trials": 3}}, ODD_PROGRESS)
    scan("run", str(scan.file))
    assert [trial["value"] for trial in scan.trials()] == [0.5] * 3


def test_a_budget_grows_by_command_and_by_the_file_and_any_other_change_is_refused(scan):
    scan.write({"budget": {"trials": 2, "hours": 5}})
    scan("run", str(scan.file))
    first = scan.trials()
    scan("extend", "demo", "--trials", "+2", "--hours", "1")
    scan("run", str(scan.file))
    assert len(scan.trials()) == 4 and scan.trials()[:2] == first
    scan.write({"budget": {"trials": 5, "hours": 5}})
    scan("run", str(scan.file))
    status = scan.json("status", "demo")
    assert status["state"] == "done"
    assert (status["budget"]["trials"], status["budget"]["hours"]) == (5, 6.0)
    scan.write({"budget": {"trials": 3, "hours": 5}})
    assert "budget.trials shrank from 5 to 3" in scan("run", str(scan.file), status=2).stderr
    assert "no limit on gpu_hours" in scan.here("extend", "demo", "--gpu-hours", "1", status=2).stderr
    assert "may only grow" in scan.here("extend", "demo", "--hours", "nan", status=2).stderr
    scan.write({"budget": {"trials": 5, "hours": 5}, "seed": 99})
    assert "seed changed since search 'demo' began" in scan("run", str(scan.file), status=2).stderr
    scan.write({"budget": {"trials": 6, "hours": 5}}, payload="raise SystemExit(1)")
    assert "--new-payload" in scan("run", str(scan.file), status=2).stderr
    assert len(scan.trials()) == 5


def test_tokens_are_private_and_stay_the_same(scan):
    scan.write({"budget": {"trials": 1}})
    scan("run", str(scan.file))
    folder = scan.workdir / "tokens"
    tokens = {path.name: path.read_text() for path in folder.glob("*.token")}
    assert set(tokens) == {"user.token", "pilot.token"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (*folder.glob("*.token"), folder / "signing-key.pem")} == {0o600}
    for path in scan.workdir.rglob("*"):
        if path.is_file() and path.parent != folder:
            assert not any(token.encode() in path.read_bytes() for token in tokens.values()), path
    scan.write({"budget": {"trials": 2}})
    scan("run", str(scan.file))
    assert {path.name: path.read_text() for path in folder.glob("*.token")} == tokens


def test_a_search_whose_run_was_killed_can_be_stopped(scan):
    scan.write({"budget": {"trials": 50, "parallel": 2}}, "import time; time.sleep(60)")
    process = scan.start("run", str(scan.file))
    try:
        end = time.monotonic() + 120
        while not (scan.workdir / "hpo-pilot.db").exists() or not any(
            one["trials"].get("running") for one in scan.json("list")
        ):
            assert time.monotonic() < end, scan.logs()
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    assert scan.json("status", "demo")["steered"] is False
    assert "is stopped" in scan("stop", "demo").stdout
    status = scan.json("status", "demo")
    assert (status["state"], status["trials"]) == ("stopped", {"stopped": 2})
