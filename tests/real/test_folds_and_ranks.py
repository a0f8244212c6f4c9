"""Folds x ranks x trials at once: a search of two-rank trainings gives what one process gives for the same points."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Scan
from tests.real.processes import write_search

DIGITS = Path(__file__).parents[2] / "payloads" / "digits"
FOLDS, RANKS, TRIALS = 2, 2, 3

#: Trains what it is told, one after another in this one process; says how each ended.
ONE_PROCESS = """
import json, pathlib, sys
import train_horovod as training

ranks = training.Ranks()
assert ranks.size == 1
ended = []
for number, (point, fold, folds, seed) in enumerate(json.load(open("jobs.json"))):
    folder = pathlib.Path(str(number))
    folder.mkdir()
    ended.append(training.train(point, fold, folds, seed, folder, ranks))
json.dump(ended, open("ended.json", "w"))
"""


@pytest.fixture
def scan(tmp_path: Path, environment: dict[str, str]) -> Scan:
    """payloads/digits/search-horovod.yaml with fewer and shorter trainings."""

    def edit(document: Any) -> None:
        assert document["resources"]["ranks_per_node"] == RANKS
        document["space"] |= {
            "learning_rate": {"type": "real", "low": 0.003, "high": 0.03, "scale": "log"},
            "layers": {"type": "integer", "low": 1, "high": 2},
            "width": {"type": "integer", "low": 32, "high": 64},
            "batch": {"type": "ordinal", "choices": [192, 256]},
            "scaling": {"type": "categorical", "choices": ["none", "sqrt"]},
            "epochs": {"type": "categorical", "choices": [2]},
        }

    # Each rank asks the others every 20 ms, not every millisecond: here twelve of them share a few cores.
    scan = Scan(tmp_path, {"PATH": environment["PATH"], "HOROVOD_CYCLE_TIME": "20"})
    budget = {"trials": TRIALS, "parallel": TRIALS}
    write_search(scan, DIGITS / "search-horovod.yaml", edit, folds=FOLDS, budget=budget)
    return scan


@pytest.fixture
def as_one_process(tmp_path: Path, environment: dict[str, str]) -> Any:
    """Trains the same jobs, each of (point, fold, folds, seed), without Horovod's launcher."""

    def train(jobs: list[tuple[dict[str, Any], int, int, int]]) -> list[dict[str, Any]]:
        folder = tmp_path / "one"
        folder.mkdir()
        (folder / "jobs.json").write_text(json.dumps(jobs))
        path = {"PYTHONPATH": str(DIGITS), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            ["python", "-c", ONE_PROCESS],
            cwd=folder,
            env={**environment, **path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ended: list[dict[str, Any]] = json.loads((folder / "ended.json").read_text())
        return ended

    return train


def test_folds_of_two_ranks_of_three_trials_at_once(scan: Scan, as_one_process: Any) -> None:
    # Slots for the cores of all jobs, however few the machine has: all ranks of all trials run side by side.
    scan("run", str(scan.file), "--slots", str(TRIALS * FOLDS * RANKS), timeout=600)
    trials = scan.trials()
    assert [trial["state"] for trial in trials] == ["finished"] * TRIALS
    folds = [(trial, fold) for trial in trials for fold in trial["folds"]]
    assert len(folds) == TRIALS * FOLDS
    assert all(fold["metrics"]["ranks"] == RANKS for _, fold in folds)
    began, ended = ([datetime.fromisoformat(fold[when]) for _, fold in folds] for when in ("started", "ended"))
    assert max(began) < min(ended), "they were not all under way at once"
    jobs = [(trial["point"], fold["fold"], FOLDS, trial["seed"]) for trial, fold in folds]
    alone = as_one_process(jobs)
    assert [fold["value"] for _, fold in folds] == pytest.approx([one["loss"] for one in alone], rel=1e-4)
    assert [fold["metrics"]["accuracy"] for _, fold in folds] == pytest.approx(
        [one["metrics"]["accuracy"] for one in alone], abs=3 / 899
    )
    means = [sum(one["loss"] for one in alone[at : at + FOLDS]) / FOLDS for at in range(0, len(alone), FOLDS)]
    assert [trial["value"] for trial in trials] == pytest.approx(means, rel=1e-4)
    assert max(trial["value"] for trial in trials) > 1.1 * min(trial["value"] for trial in trials), "all are alike"
