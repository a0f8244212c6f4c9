"""Payloads that fetch their point and report the loss through iDDS's REST, in a whole run."""

from __future__ import annotations

#: Neither input.json nor output.json: the point comes from the server, the loss goes there.
FETCHING = """
import json, os, ssl, urllib.request
base = "%s/hpo/%s/null" % (os.environ["HPO_PILOT_IDDS_URL"], os.environ["PanDA_TaskID"])
ca = os.environ.get("HPO_PILOT_IDDS_CA")
context = ssl.create_default_context(cafile=ca) if base.startswith("https:") else None

def ask(method, path):
    request = urllib.request.Request(base + path, method=method)
    return json.load(urllib.request.urlopen(request, context=context))

(mine,) = ask("GET", "/null/null/null")
assert mine["loss"] is None and mine["parameters"] == json.load(open("input.json"))
print("trial", os.environ["HPO_PILOT_TRIAL"], "is point", mine["id"])
x = mine["parameters"]["x"]
ask("PUT", "/%s/%s" % (mine["id"], 0.0 if x == 0.25 else (x - 0.25) ** 2))
"""

GRID = {
    "optimizer": "random",
    "space": {"x": {"type": "real", "low": 0.0, "high": 1.0, "step": 0.25}},
    "start": [{"x": 0.25}, {"x": 0.0}, {"x": 1.0}, {"x": 0.5}],
}


def test_a_loss_that_was_put_is_the_result(scan):
    """Each payload sees its own point only, also where a job runs several; one of them puts nothing."""
    silent = FETCHING.replace('ask("PUT"', 'x < 1 and ask("PUT"')
    scan.write({**GRID, "resources": {"minutes": 1, "memory_mb": 500, "trials_per_job": 2}}, silent)
    scan("run", str(scan.file))
    trials = {trial["point"]["x"]: trial for trial in scan.trials()}
    assert {x: trial["value"] for x, trial in trials.items()} == {0.25: 0.0, 0.0: 0.0625, 1.0: None, 0.5: 0.0625}
    assert "no usable output.json: none was written" in trials[1.0]["error"]
    assert scan.json("best", "demo")["point"] == {"x": 0.25}
