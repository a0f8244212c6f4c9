"""Several points one after another in one job (`trials_per_job`), through the real panda-client to the pilot."""

from __future__ import annotations

import sqlite3
import tarfile
from contextlib import closing

import pytest

from tests.rest_api import store_of

SLOW_BOWL = """
import json, time
point = json.load(open("input.json"))
time.sleep(2.4)
json.dump({"status": 0, "loss": (point["x"] - 0.3) ** 2}, open("output.json", "w"))
"""

OUTPUTS = {"files": "payload", "command": "python3 -I -S train.py", "outputs": ["model.txt"]}


def jobs_of(scan) -> list[tuple[int, ...]]:
    """The trials of each job that the PanDA server ran, as its store has them."""
    with sqlite3.connect(scan.workdir / "hpo-pilot.db") as database:
        rows = database.execute("SELECT panda_id, trial FROM jobs WHERE panda_id IS NOT NULL ORDER BY panda_id, trial")
        found: dict[int, list[int]] = {}
        for panda_id, trial in rows:
            found.setdefault(panda_id, []).append(trial)
    return [tuple(trials) for trials in found.values()]


def test_points_share_jobs_and_folds_do_not(scan):
    document = {"folds": 2, "budget": {"trials": 8, "parallel": 4, "queued": 0}, "payload": OUTPUTS}
    scan.write({**document, "resources": {"minutes": 1, "memory_mb": 500, "trials_per_job": 4}})
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * 8
    for trial in trials:
        values = [fold["value"] for fold in trial["folds"]]
        assert values == pytest.approx([(trial["point"]["x"] - 0.3) ** 2 + 0.001 * fold for fold in (0, 1)])
    assert jobs_of(scan) == [(1, 2, 3, 4)] * 2 + [(5, 6, 7, 8)] * 2
    best = scan.json("best", "demo")["number"]
    scan.here("fetch", "best", "demo", "-o", str(scan.root / "out"))
    for fold in (0, 1):
        (folder,) = (scan.root / "out" / f"trial{best}").glob(f"fold{fold}")
        assert [path.name for path in folder.iterdir()] == ["model.txt"]
        assert (folder / "model.txt").read_text() == f"trial {best} fold {fold}\n"
    archives = [path for path in scan.workdir.rglob("*.outputs.tar.gz") if tarfile.is_tarfile(path)]
    with closing(store_of(scan.workdir)) as store:
        kept = store.trials_with_outputs(1)
    assert len(kept) == 3, "those of the three best trials"
    assert len(archives) == 2 * len({(number - 1) // 4 for number in kept})


def test_what_the_walltime_does_not_suffice_for_runs_in_another_job(scan):
    budget = {"trials": 4, "parallel": 4, "queued": 0}
    resources = {"minutes": 0.1, "memory_mb": 500, "trials_per_job": 4}
    scan.write({"budget": budget, "resources": resources}, SLOW_BOWL)
    scan("run", str(scan.file))
    trials = scan.trials()
    assert [(trial["state"], trial["folds"][0]["attempt"]) for trial in trials] == [("finished", 1)] * 4
    assert jobs_of(scan)[0] == (1, 2, 3, 4) and len(jobs_of(scan)) > 1
    seconds = scan.json("status", "demo")["job_seconds"]
    assert 9.6 < seconds < 19, "each point's own time, once"
