"""A search with two objectives, from the file to the front: the real command, server, pilot and runner."""

from __future__ import annotations

import csv
import io

import pytest

from hpo_pilot import run as run_search
from tests.replay import check_replay

#: A larger x is faster and less exact. Near x = 1 the speed is missing.
TRADE_OFF = """
import json, os
x = json.load(open("input.json"))["x"]
fold = int(os.environ["HPO_PILOT_FOLD"])
result = {"status": 0, "loss": x * x + 0.01 * fold, "message": ""}
if x < 0.9:
    result["speed"] = 100 * x + fold
json.dump(result, open("output.json", "w"))
"""


def test_the_front_of_two_objectives(scan):
    document = {
        "objective": [{"metric": "loss"}, {"metric": "speed", "goal": "maximize"}],
        "start": [{"x": 0.2}, {"x": 0.5}, {"x": 0.95}],
        "known": [{"point": {"x": 0.9}, "value": [0.81, 90.0]}],
        "optimizer": {"name": "bayesian", "start_points": 3},
        "budget": {"trials": 8, "parallel": 4},
        "folds": 2,
        "confirm": {"top": 2, "repeats": 1},
    }
    scan.write(document, payload=TRADE_OFF)
    result = scan("run", str(scan.file))
    assert "on the front, hypervolume" in result.stdout
    trials = [trial for trial in scan.trials() if not trial["confirms"]]
    assert len(trials) == 8
    good = [trial for trial in trials if trial["state"] == "finished"]
    for trial in good:
        x = trial["point"]["x"]
        assert trial["value"] == pytest.approx([x * x + 0.005, 100 * x + 0.5])
        assert trial["std"] == pytest.approx([0.01 / 2**0.5, 1 / 2**0.5])
        assert trial["folds"][1]["value"] == pytest.approx([x * x + 0.01, 100 * x + 1])
    failed = next(trial for trial in trials if trial["point"]["x"] == 0.95)
    assert failed["state"] == "failed"
    assert "output.json has no key 'speed'" in failed["error"]

    front = scan.json("best", "demo")
    assert [trial["number"] for trial in front] == [t["number"] for t in sorted(good, key=lambda t: t["point"]["x"])]
    status = scan.json("status", "demo")
    assert status["best"] is None
    assert status["front"]["trials"] == [trial["number"] for trial in front]
    assert status["front"]["hypervolume"] > 0
    confirmed = {trial["confirms"] for trial in scan.trials() if trial["confirms"]}
    assert len(confirmed) == 2
    assert confirmed <= set(status["front"]["trials"])

    rows = list(csv.DictReader(io.StringIO(scan("export", "demo", "--format", "csv").stdout)))
    assert {row["value_speed"] for row in rows if row["state"] == "failed"} == {""}
    assert {round(float(r["fold_1_speed"]) - float(r["fold_0_speed"]), 9) for r in rows if r["fold_0_speed"]} == {1.0}
    assert "hpogrid supports one objective" in scan("export", "demo", "--format", "hpogrid-report", status=2).stderr
    assert "Pareto front" in (scan.workdir / "reports" / "demo.html").read_text()
    assert check_replay(scan.workdir, "demo")

    again = run_search(scan.file, scan.workdir)
    assert again.best is None
    assert [trial.number for trial in again.front] == status["front"]["trials"]
