"""The digits payload: run as a job runs it, as a process in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from hpo_pilot import load_search
from hpo_pilot.search import Search
from tests.payloads.conftest import PAYLOADS

PAYLOAD = PAYLOADS / "digits"
train = SimpleNamespace(**runpy.run_path(str(PAYLOAD / "train.py")))
POINT = {"learning_rate": 0.01, "layers": 1, "width": 16, "alpha": 1e-4, "solver": "adam", "batch": 128, "epochs": 4}
RESULTS = ("output.json", "progress.jsonl", "model.npz")


def load(name: str) -> Search:
    return load_search(PAYLOAD / name)


def start(folder: Path, point: Any, **environment: str) -> subprocess.Popen[str]:
    """A training of `point` in `folder`."""
    folder.mkdir(exist_ok=True)
    shutil.copy(PAYLOAD / "train.py", folder)
    (folder / "input.json").write_text(point if isinstance(point, str) else json.dumps(point))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HPO_PILOT_")}
    return subprocess.Popen(
        [sys.executable, "train.py"], cwd=folder, env={**inherited, **environment}, stdout=subprocess.PIPE, text=True
    )


def run_here(folder: Path, point: Any, **environment: str) -> dict[str, Any]:
    """The verdict of a training in this process: another one would take seconds to load scikit-learn."""
    folder.mkdir(exist_ok=True)
    (folder / "input.json").write_text(point if isinstance(point, str) else json.dumps(point))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HPO_PILOT_")}
    handler = signal.getsignal(signal.SIGINT)
    # As a process of its own it has one thread: more could give other last bits.
    with (
        contextlib.chdir(folder),
        threadpool_limits(1),
        mock.patch.dict(os.environ, inherited | environment, clear=True),
    ):
        try:
            train.main()
        finally:
            signal.signal(signal.SIGINT, handler)
    verdict: dict[str, Any] = json.loads((folder / "output.json").read_text())
    return verdict


def run(folder: Path, point: Any, **environment: str) -> dict[str, Any]:
    """The verdict of a training that ran to its end."""
    process = start(folder, point, **environment)
    process.communicate(timeout=600)
    assert process.returncode == 0
    verdict: dict[str, Any] = json.loads((folder / "output.json").read_text())
    return verdict


def test_a_training_reports_its_epochs_and_its_loss(tmp_path: Path) -> None:
    verdict = run(tmp_path, POINT, HPO_PILOT_FOLD="2", HPO_PILOT_FOLDS="3", HPO_PILOT_SEED="11")
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert verdict["status"] == 0
    assert verdict["message"] == ""
    assert verdict["loss"] == lines[-1]["value"] < lines[0]["value"]
    size = verdict["metrics"].pop("parameters")
    assert verdict["metrics"] == {"accuracy": lines[-1]["accuracy"], "epochs": 4}
    with np.load(tmp_path / "model.npz") as model:
        assert size == sum(model[name].size for name in model.files)
    assert (tmp_path / "model.npz").exists()


def test_fold_and_seed_change_the_result_and_equal_ones_do_not(tmp_path: Path) -> None:
    def loss(name: str, fold: int, seed: int) -> float:
        environment = {"HPO_PILOT_FOLD": str(fold), "HPO_PILOT_FOLDS": "3", "HPO_PILOT_SEED": str(seed)}
        return float(run_here(tmp_path / name, {**POINT, "epochs": 1}, **environment)["loss"])

    first = loss("a", 0, 1)
    assert loss("b", 0, 1) == first
    assert loss("c", 1, 1) != first
    assert loss("d", 0, 2) != first


@pytest.mark.parametrize("solver", [{"solver": "adam"}, {"solver": "sgd", "momentum": 0.8}], ids=["adam", "sgd"])
def test_killed_and_gone_on_equals_undisturbed_bit_for_bit(
    tmp_path: Path, solver: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    point = {**POINT, "width": 64, "layers": 2, "batch": 32, "epochs": 32, **solver}
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    run_here(undisturbed, point)

    process = start(killed, point)
    deadline = time.monotonic() + 600
    while not list((killed / "ckpt").glob("*.joblib")) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert not (killed / "output.json").exists(), "it had ended before the kill: give it more epochs"
    (killed / "progress.jsonl").unlink()  # the next attempt starts in a new folder, with the checkpoint alone

    capsys.readouterr()
    run_here(killed, {**point, "epochs": 1})
    assert capsys.readouterr().out.startswith("epoch   1"), "the checkpoint is of another point"
    run_here(killed, point)
    assert capsys.readouterr().out.startswith("going on after epoch ")
    for name in RESULTS:
        assert (killed / name).read_bytes() == (undisturbed / name).read_bytes(), name


def test_a_level_goes_on_from_the_one_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_here(tmp_path / "whole", {**POINT, "epochs": 7})
    for epochs in (3, 7):
        capsys.readouterr()
        last = run_here(tmp_path / "levels", {**POINT, "epochs": epochs}, HPO_PILOT_LEVEL=str(epochs))
    assert last == whole
    assert capsys.readouterr().out.startswith("going on after epoch 3")


def test_a_training_that_had_ended_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run_here(tmp_path, {**POINT, "epochs": 5})
    capsys.readouterr()
    assert run_here(tmp_path, {**POINT, "epochs": 5}) == first
    assert capsys.readouterr().out.startswith("epoch   1")


def test_the_search_with_levels_is_the_other_with_levels() -> None:
    search, levels = load("search.yaml"), load("search-fidelity.yaml")
    assert search.space.dimensions == levels.space.dimensions
    assert {"epochs"} == levels.fidelity.keys() < train.OPTIONAL and levels.payload.checkpoint == ("ckpt",)


def test_a_diverged_training_says_so(tmp_path: Path) -> None:
    verdict = run_here(tmp_path, {**POINT, "solver": "sgd", "momentum": 0.9, "learning_rate": 1e8})
    assert verdict["status"] == 1
    assert verdict["loss"] is None
    assert "training diverged in epoch" in verdict["message"]


def test_what_cannot_be_trained_ends_with_a_verdict(tmp_path: Path) -> None:
    verdict = run_here(tmp_path, POINT, HPO_PILOT_FOLD="3", HPO_PILOT_FOLDS="3")
    assert verdict["status"] == 1 and "no fold 3 of 3" in verdict["message"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("search-evolutionary", {"search", "optimizer"}), ("search-front", {"search", "objective", "confirm"})],
)
def test_searches_that_are_compared_differ_in_what_is_compared_only(name: str, expected: set[str]) -> None:
    bayesian, other = load("search.yaml"), load(f"{name}.yaml")
    given = other.to_dict()
    assert {key for key, value in bayesian.to_dict().items() if given[key] != value} == expected
    # Of a front, what the training writes.
    assert [objective.metric for objective in other.objectives] == ["loss", "parameters"][: len(other.objectives)]
    assert bayesian.payload.checkpoint == ("ckpt",)
    assert (PAYLOAD / (bayesian.payload.files or "")).resolve() == PAYLOAD


def test_the_horovod_search_scans_what_the_training_reads() -> None:
    """tests/real/test_horovod.py runs it."""
    search, text = load("search-horovod.yaml"), (PAYLOAD / "train_horovod.py").read_text()
    read = [re.search(rf"^{name} = (\{{.*\}})$", text, re.MULTILINE) for name in ("REQUIRED", "OPTIONAL")]
    required, optional = (set(re.findall(r'"(\w+)"', found[1])) for found in read if found)
    names = set(search.space.names)
    assert required <= names <= required | optional
    assert search.payload.command.endswith("python train_horovod.py")
    assert (PAYLOAD / (search.payload.files or "")).resolve() == PAYLOAD
