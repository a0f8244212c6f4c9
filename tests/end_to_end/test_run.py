"""`hpo-pilot run`: the whole way, through the real panda-client, server, pilot and runner."""

from __future__ import annotations

import csv
import io
import statistics
import tarfile
import time

import pytest

from tests.end_to_end.conftest import Scan
from tests.replay import check_replay


def private_tokens(scan) -> dict[str, str]:
    """The tokens of the work folder, which are their owner's alone and in no other file."""
    folder = scan.workdir / "tokens"
    tokens = {path.name: path.read_text() for path in folder.glob("*.token")}
    assert set(tokens) == {"user.token", "pilot.token"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (*folder.glob("*.token"), folder / "signing-key.pem")} == {0o600}
    for path in scan.workdir.rglob("*"):
        if path.is_file() and path.parent != folder:
            assert not any(token.encode() in path.read_bytes() for token in tokens.values()), path
    return tokens


def test_a_search_runs_to_its_end(scan):
    scan.write(
        {
            "optimizer": {"name": "bayesian", "start_points": 3},
            "start": [{"x": 0.9}],
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
    tokens = private_tokens(scan)
    again = scan("run", str(scan.file))
    assert "6 trials" in again.stdout
    assert scan.trials() == trials
    assert private_tokens(scan) == tokens

    rows = list(csv.DictReader(io.StringIO(scan.here("export", "demo", "--format", "csv").stdout)))
    assert [float(row["value"]) for row in rows] == [trial["value"] for trial in trials]

    scan("fetch", "best", "demo", "-o", str(scan.root / "out"))
    for fold in range(2):
        text = (scan.root / "out" / f"trial{best['number']}" / f"fold{fold}" / "model.txt").read_text()
        assert text == f"trial {best['number']} fold {fold}\n"
    kept = [path for path in scan.workdir.rglob("*.outputs.tar.gz") if tarfile.is_tarfile(path)]
    assert len(kept) == 3 * 2, "outputs of the three best trials, and no others"

    assert len(check_replay(scan.workdir, "demo")) >= 2
    assert trials[0]["point"] == {"x": 0.9} and len({trial["point"]["x"] for trial in trials}) == 6


BROKEN = r"""
import json, os, sys, time
kind = json.load(open("input.json"))["kind"]
print("this is payload", kind, flush=True)
def write(text): open("output.json", "w").write(text)
if kind == "crash": raise RuntimeError("no such layer")
elif kind == "signal": os.kill(os.getpid(), 11)
elif kind == "hang": time.sleep(600)
elif kind == "garbage": write("{{{{")
elif kind == "progress":
    with open("progress.jsonl", "w") as file:
        for step in ("1", "1e20", "100000000000000000000", "null", "true", "-5", "3000000000"):
            file.write('{"step": %s, "value": 0.5}\n' % step)
        file.write('{"step": 2, "value": NaN}\n{"step": 3\nnot json\n')
    write('{"status": 0, "loss": 0.75, "metrics": {"big": 1e308, "nan": NaN}}')
elif kind == "status": write('{"status": 3, "loss": 1.0, "message": "diverged"}')
elif kind == "flood":
    block = "x" * 999 + "\n"
    for _ in range(30_000): sys.stdout.write(block)
    write('{"status": 0, "loss": 0.25}')
elif kind == "good": write('{"status": 0, "loss": 0.5}')
"""

REASONS = {
    "crash": "no such layer",
    "signal": "SIGSEGV",
    "hang": "minutes",
    "garbage": "output.json",
    "status": "diverged",
}


def test_every_bad_payload_fails_its_trial_alone_and_says_why(scan):
    kinds = [*REASONS, "flood", "progress", "good"]
    scan.write(
        {
            "space": {"kind": {"type": "categorical", "choices": kinds}},
            "optimizer": "grid",
            "budget": {"trials": len(kinds), "parallel": 2, "failures": 20},
            "resources": {"minutes": 0.15, "memory_mb": 500},
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
    assert [trials[kind]["value"] for kind in ("flood", "progress", "good")] == [0.25, 0.75, 0.5]
    assert "5 failed" in result.stdout
    shown = scan.here("trials", "demo").stdout
    assert "RuntimeError: no such layer" in shown


def test_failures_in_a_row_stop_the_search_and_a_mended_payload_goes_on(scan):
    scan.write({"budget": {"trials": 5, "parallel": 1, "failures": 3}}, "raise SystemExit('bad day')")
    failed = scan("run", str(scan.file), status=1)
    assert "3 trials failed in a row" in failed.stdout
    assert "bad day" in failed.stdout
    assert len(scan.trials()) == 3
    scan.write({"budget": {"trials": 5, "parallel": 1, "failures": 3}})
    scan.here("resume", "demo", "--new-payload")
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["failed"] * 3 + ["finished"] * 2


def test_a_budget_grows_by_command_and_by_the_file_and_any_other_change_is_refused(scan):
    scan.write({"budget": {"trials": 2, "hours": 5}})
    scan("run", str(scan.file))
    first = scan.trials()
    scan.here("extend", "demo", "--trials", "+2", "--hours", "1")
    scan("run", str(scan.file))
    assert len(scan.trials()) == 4 and scan.trials()[:2] == first
    scan.write({"budget": {"trials": 5, "hours": 5}})
    scan("run", str(scan.file))
    status = scan.json("status", "demo")
    assert status["state"] == "done"
    assert (status["budget"]["trials"], status["budget"]["hours"]) == (5, 6.0)
    scan.write({"budget": {"trials": 3, "hours": 5}})
    assert "budget.trials shrank from 5 to 3" in scan.here("run", str(scan.file), status=2).stderr
    scan.write({"budget": {"trials": 5, "hours": 5}, "seed": 99})
    assert "seed changed since search 'demo' began" in scan.here("run", str(scan.file), status=2).stderr
    scan.write({"budget": {"trials": 6, "hours": 5}}, payload="raise SystemExit(1)")
    assert "--new-payload" in scan.here("run", str(scan.file), status=2).stderr
    assert len(scan.trials()) == 5


def test_a_search_goes_on_after_everything_was_moved(tmp_path):
    here, there = (Scan(tmp_path / name) for name in ("here", "there"))
    here.root.mkdir()
    here.write({"budget": {"trials": 2}})
    here("run", str(here.file))
    here.root.rename(there.root)
    there.write({"budget": {"trials": 3}})
    there("run", str(there.file))
    assert [trial["state"] for trial in there.trials()] == ["finished"] * 3


def test_a_search_whose_run_was_killed_can_be_stopped(scan):
    scan.write({"budget": {"trials": 50, "parallel": 2}}, "import time; time.sleep(60)")
    process = scan.start("run", str(scan.file))
    try:
        end = time.monotonic() + 600
        while not (scan.workdir / "hpo-pilot.db").exists() or not any(
            one["trials"].get("running") for one in scan.json("list")
        ):
            assert time.monotonic() < end, scan.logs()
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    assert scan.json("status", "demo")["steered"] is False
    assert "is stopped" in scan.here("stop", "demo").stdout
    status = scan.json("status", "demo")
    assert (status["state"], status["trials"]) == ("stopped", {"stopped": 2})
