"""Folds x ranks x trials at once: a search of two-rank trainings, and the same points trained by one process each."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import Scan

DIGITS = Path(__file__).parents[2] / "payloads" / "digits"
FOLDS, RANKS, TRIALS = 2, 2, 3

#: Trains what its standard input names, one after another in this one process; says the figures of each.
ONE_PROCESS = """
import json, pathlib, sys
import train_horovod as training

ranks = training.Ranks()
assert ranks.size == 1
done = []
for number, (point, fold, folds, seed) in enumerate(json.load(sys.stdin)):
    folder = pathlib.Path(str(number))
    folder.mkdir()
    done.append(training.train(point, fold, folds, seed, folder, ranks))
json.dump(done, open("figures.json", "w"))
"""


@pytest.fixture
def search(tmp_path: Path) -> Path:
    """payloads/digits/search-horovod.yaml with fewer and shorter trainings, all of them at once."""
    document = yaml.safe_load((DIGITS / "search-horovod.yaml").read_text().replace("1e-", "1.0e-"))
    document["space"] |= {"width": {"type": "integer", "low": 16, "high": 64}}
    document["space"] |= {"epochs": {"type": "categorical", "choices": [4]}}
    document["payload"]["files"] = str(DIGITS)
    document |= {"search": "demo", "optimizer": "random", "folds": FOLDS}
    document |= {"budget": {"trials": TRIALS, "parallel": TRIALS}}
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_folds_and_ranks_of_trials_at_once_give_what_one_process_gives(
    search: Path, environment: dict[str, str], horovod: Path, tmp_path: Path
) -> None:
    assert yaml.safe_load(search.read_text())["resources"]["ranks_per_node"] == RANKS
    scan = Scan(tmp_path, {"PATH": environment["PATH"]})
    # As many jobs as there are, on however few cores: all of them have to wait for each other's ranks, not for slots.
    scan("run", str(search), "--slots", str(TRIALS * FOLDS), timeout=120)
    trials = scan.trials()
    (tmp_path / 'trials.json').write_text(json.dumps(trials, indent=1))
    assert [trial["state"] for trial in trials] == ["finished"] * TRIALS
