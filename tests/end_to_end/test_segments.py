"""Segmented searches and payloads of other tools, by the real commands."""

from __future__ import annotations

import json
import sys

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
