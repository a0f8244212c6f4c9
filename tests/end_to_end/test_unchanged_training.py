"""Trainings that know nothing of hpo-pilot: their parameters come from the command line."""

from __future__ import annotations

SPACE = {
    "x": {"type": "real", "low": 0.0, "high": 1.0},
    "kind": {"type": "categorical", "choices": ["it's", "$HOME {x}"]},
    "fast": {"type": "categorical", "choices": [True, False]},
    "rate": {"type": "real", "low": 1, "high": 2, "when": {"fast": True}},
}
COMMAND = "python3 -I -S train.py {x} k={kind} {--fast:fast} {--rate=:rate}"
TRAINING = """
import json, sys
x, kind, *flags = sys.argv[1:]
point = {"x": float(x), "kind": kind[2:], "fast": "--fast" in flags}
point.update({"rate": float(flag[7:]) for flag in flags if flag.startswith("--rate=")})
assert point == json.load(open("input.json")), (point, sys.argv)
json.dump({"loss": float(x)}, open("output.json", "w"))
"""


def test_parameters_in_the_command(scan):
    payload = {"files": "payload", "command": COMMAND}
    scan.write({"space": SPACE, "payload": payload, "budget": {"trials": 8, "parallel": 4}}, TRAINING)
    scan("run", str(scan.file))
    scan.write({"search": "packed", "space": SPACE, "payload": payload, "resources": {"trials_per_job": 2}}, TRAINING)
    scan("run", str(scan.file))
    trials = scan.trials() + scan.json("trials", "packed")
    assert [trial["value"] for trial in trials] == [trial["point"]["x"] for trial in trials], trials[0]["error"]
    assert [len({trial["point"][name] for trial in trials}) for name in ("kind", "fast")] == [2, 2]
