"""Trainings that know nothing of hpo-pilot: they have a command line, and print or log their figures."""

from __future__ import annotations

from hpo_pilot import open_search

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


LOGGING = """
import sys
x = float(sys.argv[1])
with open("log.csv", "w") as log:
    print("epoch,loss", file=log)
    for epoch in range(3):
        print(epoch, x + 2 - epoch, sep=",", file=log)
        print("epoch", epoch, "loss:", x + 2 - epoch if x < 2 else "lost")
"""


def test_its_own_output(scan):
    """It prints and logs its figures; where it prints no number, the error has the end of the log."""
    document = {"space": {"x": {"type": "ordinal", "choices": [0, 1, 2]}}, "budget": {"trials": 3, "parallel": 3}}
    payload = {"files": "payload", "command": "python3 -I -S train.py {x}"}
    printed = {"stdout": r"loss: (\d\S*)"}, {"stdout": r"epoch (?P<step>\d) loss: (?P<value>\S+)"}
    logged = {"file": "log.csv", "column": "loss"}, {"file": "log.csv", "step": "epoch", "column": "loss"}
    for name, (result, progress), worst in (("printed", printed, None), ("logged", logged, 2)):
        scan.write({**document, "search": name, "payload": payload | {"result": result, "progress": progress}}, LOGGING)
        scan("run", str(scan.file))
        trials = {trial["point"]["x"]: trial for trial in scan.json("trials", name)}
        assert {x: trial["value"] for x, trial in trials.items()} == {0: 0, 1: 1, 2: worst}
        curves = open_search(name, workdir=scan.workdir).intermediate
        assert curves.value.tolist() == [one for x in trials if x < 2 or worst for one in (x + 2, x + 1, x)]
        assert worst or "the log ends with: epoch 2 loss: lost" in trials[2]["error"]
