"""A search that is backed up while it runs goes on from the backup: nothing is lost or counted twice."""

from __future__ import annotations

import json

from tests.end_to_end.conftest import BOWL

#: Trials 1 to 4 end; later ones wait until the backup was made.
GATED = (
    BOWL
    + """
import time
while int(os.environ["HPO_PILOT_TRIAL"]) > 4 and not os.path.exists(GATE):
    time.sleep(0.1)
"""
)


def test_a_backup_of_a_running_search_goes_on(scan):
    gate = scan.root / "gate"
    document = {"folds": 2, "budget": {"trials": 8, "parallel": 2}, "resources": {"minutes": 5, "memory_mb": 500}}
    scan.write(document, GATED.replace("GATE", repr(str(gate))))
    backup = scan.root / "scan.tar"
    with scan.serving("--slots", "2"):
        scan("submit", str(scan.file))
        scan.until("running", trials=4)
        before = {trial["number"]: trial for trial in scan.trials() if trial["state"] == "finished"}
        scan("db", "backup", str(backup))
        assert json.loads(scan("db", "check", "--json").stdout) == []
        assert "uses the store" in scan("db", "restore", str(backup), "--replace", status=3).stderr
        gate.touch()
        scan.until("done")
    first = {trial["number"]: trial for trial in scan.trials()}
    scan("db", "restore", str(backup), "--replace")
    assert json.loads(scan("db", "check", "--json").stdout) == []
    assert {trial["number"] for trial in scan.trials() if trial["state"] == "finished"} >= before.keys()
    scan("run", str(scan.file))
    trials = {trial["number"]: trial for trial in scan.trials()}
    assert trials.keys() == first.keys() and {trial["state"] for trial in trials.values()} == {"finished"}
    assert {number: trials[number] for number in before} == before
    assert json.loads(scan("db", "check", "--json").stdout) == []
