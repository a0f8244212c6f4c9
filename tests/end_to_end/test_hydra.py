"""A Hydra application as it is, with `hydra/sweeper=hpo_pilot`: the plug-in, the jobs and the files of the sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpo_pilot.operations.client import SearchClient

pytest.importorskip("hydra")

APPLICATION = """
import hydra
from model import loss

@hydra.main(version_base=None, config_path="../conf", config_name="config")
def main(cfg):
    assert cfg.note == "it's {lr}" and cfg.new == [1, 2], cfg
    return loss(cfg)

if __name__ == "__main__":
    main()
"""
MODEL = """
def loss(cfg):
    speed = cfg.layers + cfg.db.shift
    return (cfg.lr, speed) if cfg.both else cfg.lr + speed
"""
CONFIG = """
defaults: [db: near, _self_, override hydra/sweeper: hpo_pilot]
lr: 0.1
layers: 2
note: ""
both: false
hydra:
  sweep: {dir: sweep}
  sweeper: {n_trials: 5, n_jobs: 2, workdir: work, params: {lr: "tag(log, interval(1e-4, 1e-1))", layers: "7,8"}}
"""


def sweep(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    for name, text in {
        "src/app.py": APPLICATION,
        "src/model.py": MODEL,
        "conf/config.yaml": CONFIG,
        "conf/db/near.yaml": "shift: 0",
        "conf/db/far.yaml": "shift: 100",
        "multirun/old/model.pt": "a result of an earlier sweep",
        "work/tokens/secret": "of the work folder",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # of hydra_plugins
    command = [sys.executable, "src/app.py", "-m", *overrides]
    return subprocess.run(command, cwd=folder, env=where, capture_output=True, text=True, timeout=600, check=False)


GIVEN = "note='it\\'s {lr}'", "+new=[1,2]", "layers=range(1,4)"


def test_a_sweep(tmp_path: Path) -> None:
    done = sweep(tmp_path, *GIVEN, "db=glob(*)", "hydra.sweeper.name=first", "hydra.sweeper.direction=maximize")
    assert done.returncode == 0, done.stderr
    results = yaml.safe_load((tmp_path / "sweep/optimization_results.yaml").read_text())
    client = SearchClient.local(tmp_path / "work")
    trials = list(client.trials("first", logs=False))
    points = [trial["point"] for trial in trials]
    assert [t["value"] for t in trials] == [p["lr"] + p["layers"] + 100 * (p["db"] == "far") for p in points]
    best = max(trials, key=lambda trial: trial["value"])
    assert results == {"name": "hpo_pilot", "best_params": best["point"], "best_value": best["value"]}
    assert {p["layers"] for p in points} <= {1, 2, 3}
    assert {path.name for path in (tmp_path / "sweep/payload").iterdir()} == {"conf", "hydra_plugins", "src"}


def test_several_objectives(tmp_path: Path) -> None:
    done = sweep(tmp_path, *GIVEN, "both=true", "hydra.sweeper.direction=[minimize,maximize]")
    assert done.returncode == 0, done.stderr
    results = yaml.safe_load((tmp_path / "sweep/optimization_results.yaml").read_text())
    assert results["solutions"]
    assert all(one["values"] == [one["params"]["lr"], one["params"]["layers"]] for one in results["solutions"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lr=[1],[2]", "lr="),
        ("hydra.sweeper.direction=min", "hydra.sweeper.direction: "),
        ("hydra.sweeper.files=none", "hydra.sweeper.files: "),
        ("hydra.sweeper.files=conf", "hydra.sweeper.command"),
        ("+hydra.sweeper.sections.budget.trial=1", "budget.trial: "),
        ("layers=no", "can only concatenate str"),  # every job fails: the cause is that of the first
    ],
)
def test_errors_name_place_and_remedy(tmp_path: Path, override: str, said: str) -> None:
    done = sweep(tmp_path, *GIVEN, override, "hydra.sweeper.n_trials=1")
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr
