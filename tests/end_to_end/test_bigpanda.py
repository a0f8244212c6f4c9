"""hpogrid's own report, and the board, on a search that has run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import certifi
import pytest

from hpo_pilot.jobs import JobState
from hpo_pilot.steering.embedded import EmbeddedPanda
from hpo_pilot.steering.workdir import WorkDir, nickname
from hpo_pilot.web.server_jobs import ServerJobs
from tests.end_to_end.conftest import BOWL, Scan
from tests.panda_environment import panda_environment

READER = Path(__file__).parents[1] / "server" / "hpogrid_reader.py"
#: Where x is large, the payload fails; what it says last is its log.
PAYLOAD = BOWL.replace("fold = int", "assert point['x'] < 0.7, 'x is too large'\nfold = int")


def test_a_finished_search(scan: Scan) -> None:
    space = {"x": {"type": "real", "low": 0.0, "high": 1.0}, "kind": {"type": "categorical", "choices": ["a", "b"]}}
    start = [{"x": x, "kind": "a"} for x in (0.1, 0.5, 0.9)]
    scan.write({"space": space, "start": start, "budget": {"trials": 3, "parallel": 3}}, PAYLOAD)
    scan("run", "search.yaml", "--slots", "2")
    trials = {trial["point"]["x"]: trial for trial in scan.trials()}

    workdir = WorkDir.make(scan.workdir)
    panda = EmbeddedPanda(workdir, slots=0)
    panda.start()
    try:
        url = workdir.monitor_address.read_text().strip()
        environment = panda_environment(panda.url, scan.root / "none", None) | {"READER_USER": nickname()}
        arguments = [str(READER), url, certifi.where(), "demo", "user.*.demo.*"]
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)["report"]
        assert report["attributes"]["hyperparameters"] == ["x", "kind"]
        found = [(row["x"], row["kind"], row["loss"]) for row in report["rows"]]
        expected = sorted((trials[x]["value"], x) for x in (0.1, 0.5))
        assert found == [(x, "a", pytest.approx(value)) for value, x in expected]
        assert all(trial["folds"][0]["metadata"] is None for trial in trials.values())  # nothing of it is the payload's

        board = ServerJobs(scan.workdir)
        jobs = {job.members[0][0]: job for job in board.jobs(search="demo").jobs}
        failed = jobs[trials[0.9]["number"]]
        assert set(jobs) == {trial["number"] for trial in trials.values()}
        assert (failed.state, failed.has_log, failed.pilot) == (JobState.FINISHED, True, "hpo-pilot-local/1")
        assert "x is too large" in board.log(failed.panda_id).text
        uid = failed.task.split(".")[-2]
        assert board.jobs(search=uid).counts == {JobState.FINISHED: 3}
    finally:
        panda.stop()
