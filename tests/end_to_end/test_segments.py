"""Segmented searches, payloads of other tools and known results, by the real commands."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from hpo_pilot.migrate.draft import ImportOptions
from hpo_pilot.migrate.importing import import_search

#: A payload as it was written for phpo: other file names, a list among the parameters, its segment as an argument.
PHPO_PAYLOAD = """
import json, sys
segment = sys.argv[1]
point = json.load(open("hp.json"))
assert set(point) == {"x", "w", "epochs"}, point
assert len(point["w"]) == 2 and point["epochs"] == 5
loss = (point["x"] - {"arm": 0.2, "leg": 0.8}[segment]) ** 2 + 0.01 * sum(point["w"])
json.dump({"status": 0, "loss": loss, "message": ""}, open("result.json", "w"))
json.dump({"segment": segment}, open("meta.json", "w"))
"""

SPACE = {
    "x": {"method": "uniform", "dimension": {"low": 0, "high": 1}},
    "w": {"type": "Array", "params": {"shape": [2]}, "bounds": [0, 1]},
    "epochs": {"method": "categorical", "dimension": {"categories": [5]}},
}

SEGMENTS = {"segments": ["arm", "leg"], "payload": {"files": "payload", "command": "python3 train.py"}}


def test_a_segmented_phpo_task_runs_as_it_is(scan) -> None:
    task = {
        "evaluationExec": f"{sys.executable} -I -S train.py %SEGMENT_NAME",
        "evaluationInput": "hp.json",
        "evaluationOutput": "result.json",
        "evaluationMeta": "meta.json",
        "searchSpaceFile": "space.json",
        "segmentSpecFile": "segments.json",
        "steeringExec": "hpogrid generate --n_point=%NUM_POINTS -l random",
        "maxPoints": 3,
        "nParallelEvaluation": 2,
        "outDS": "user.me.demo",
    }
    folder = scan.root / "phpo"
    folder.mkdir()
    (folder / "train.py").write_text(PHPO_PAYLOAD)
    for name, document in {
        "task": task,
        "space": SPACE,
        "segments": [{"name": "arm", "files": []}, {"name": "leg", "files": []}],
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    imported = import_search("phpo", folder / "task.json", ImportOptions(scan.root))
    scan.file.write_text(imported.text.replace("payload:\n", "resources: {minutes: 1, memory_mb: 500}\npayload:\n"))
    output = scan("run", str(scan.file)).stdout
    assert "search 'demo-arm' is done: 3 trials" in output
    assert "search 'demo-leg' is done: 3 trials" in output
    for name, best in (("demo-arm", 0.2), ("demo-leg", 0.8)):
        trials = scan.json("trials", name)
        assert len(trials) == 3  # the budget is for each segment
        for trial in trials:
            point = trial["point"]
            assert set(point) == {"x", "w_1", "w_2"}
            expected = (point["x"] - best) ** 2 + 0.01 * (point["w_1"] + point["w_2"])
            assert abs(trial["value"] - expected) < 1e-9
        assert (scan.workdir / "reports" / f"{name}.html").stat().st_size > 10_000


def test_a_family_and_a_search_have_different_names(scan) -> None:
    scan.write(SEGMENTS)
    scan.here("submit", str(scan.file))
    assert "already has a search 'demo-arm'" in scan.here("submit", str(scan.file), status=2).stderr
    scan.write({"segments": None})
    assert "cannot be a search and a family" in scan.here("submit", str(scan.file), status=2).stderr
    scan.write({"search": "demo-arm"})
    assert "which is a segment of 'demo'" in scan.here("submit", str(scan.file), status=2).stderr
    assert len(scan.json("list")) == 2


def test_one_segment_without_a_result_is_status_1(scan) -> None:
    payload = "import sys, json\nassert sys.argv[1] == 'leg'\njson.dump({'loss': 1.0}, open('output.json', 'w'))\n"
    command = "python3 -I -S train.py %SEGMENT_NAME"
    scan.write({**SEGMENTS, "payload": {"files": "payload", "command": command}}, payload)
    output = scan("run", str(scan.file), status=1).stdout
    assert "search 'demo-arm' is failed" in output
    assert "search 'demo-leg' is done" in output
    assert scan.json("status", "demo")["state"] == "failed"


KNOWN = {
    "optimizer": "bayesian",
    "known": [{"point": {"x": x / 20}, "value": (x / 20 - 0.3) ** 2} for x in range(0, 21, 2)],
    "budget": {"trials": 5, "parallel": 1},
}


def points(scan) -> list[dict[str, Any]]:
    return [trial["point"] for trial in scan.trials()]


def test_known_results_are_learnt_from_and_are_there_again_after_a_kill(scan, tmp_path: Path) -> None:
    scan.write(KNOWN)
    scan("run", str(scan.file))
    undisturbed = points(scan)
    tried = [point["x"] for point in undisturbed]
    assert len(tried) == 5  # they cost no trial
    assert not {known["point"]["x"] for known in KNOWN["known"]} & set(tried)
    assert sum(abs(x - 0.3) < 0.1 for x in tried) >= 3  # near the best of what is known, from the first trial on
    other = type(scan)(tmp_path / "again")
    other.root.mkdir()
    other.write(KNOWN)
    other("submit", str(other.file))
    process = other.start("run", str(other.file))
    deadline = time.monotonic() + 120
    while len(other.trials()) < 2:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    other("run", str(other.file))
    assert points(other) == undisturbed
