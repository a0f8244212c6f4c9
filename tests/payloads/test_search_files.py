"""Each payload's search files and points: valid, with room at their sites; wrong points are refused with a reason."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_pilot import load_search
from hpo_pilot.cli.main import app
from tests.payloads.conftest import PAYLOADS, modules_of

FILES = sorted(PAYLOADS.glob("*/search*.yaml"))
#: Each payload's module with `read_point`.
READERS = {
    "autotune": "train",
    "bdt": "train",
    "calo_gan": "point",
    "digits": "train",
    "resnet50": "point",
    "transformer": "point",
}
#: What says in a command how many ranks there are: the site's launcher says it.
LAUNCHERS = ("horovodrun", "mpirun", "srun", "jsrun", "torchrun")
ON_FRONTIER = "# On Frontier, of as many GPUs: "


def hpo_pilot(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def test_they_are_found() -> None:
    assert {path.parent.name for path in FILES} == READERS.keys()


@pytest.mark.parametrize("path", FILES, ids=named)
def test_it_is_valid_and_has_room_at_its_site(path: Path) -> None:
    search = load_search(path)
    assert "is valid" in hpo_pilot("validate", str(path))
    plan = json.loads(hpo_pilot("plan", str(path), "--site", search.site.profile, "--json"))
    assert plan["jobs"] >= search.budget.trials * search.folds.k
    assert not set(LAUNCHERS) & set(search.payload.command.split())
    goal = "maximize" if path.parent.name == "bdt" else "minimize"
    assert {objective.goal for objective in search.objectives} == {goal}


def reader(payload: str) -> Callable[[Path], dict[str, Any]]:
    """The payload's own `read_point`."""
    with modules_of(PAYLOADS / payload) as load:
        read: Callable[[Path], dict[str, Any]] = load(READERS[payload]).read_point
    return read


@pytest.mark.parametrize("path", [path for path in FILES if named(path) != "digits/search-horovod.yaml"], ids=named)
def test_every_point_that_a_search_allows_is_one_that_the_training_takes(path: Path, tmp_path: Path) -> None:
    space, numbers = load_search(path).space, random.Random(2)
    points = [space.decode([numbers.random() for _ in space.names]) for _ in range(100)]
    allowed = [point for point in points if not space.mistakes(point)]
    assert len(allowed) > 5
    read, file = reader(path.parent.name), tmp_path / "input.json"
    for point in [*allowed, *load_search(path).start]:
        file.write_text(json.dumps(point))
        assert read(file).items() >= point.items()


@pytest.mark.parametrize("payload", READERS)
def test_the_point_for_running_by_hand_is_one(payload: str) -> None:
    file = PAYLOADS / payload / "input.json"
    point = json.loads(file.read_text())
    assert reader(payload)(file).items() >= point.items()
    if payload in ("autotune", "bdt", "digits"):  # the others name what their searches leave at its default
        assert load_search(PAYLOADS / payload / "search.yaml").space.canonical(point) == point


#: Changes of a payload's `input.json`, and the reason for which the point is then refused; None: without that key.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    *((payload, {"wiehgt": 0}, "missing nothing, unknown ['wiehgt']") for payload in READERS),
    ("autotune", {"tile_i": None, "cpu": None}, "missing ['cpu', 'tile_i']"),
    ("autotune", {"vector": 24}, "vector must be one of 8, 16, 32, 64, not 24"),
    ("autotune", {"optimize": "O9"}, 'optimize must be one of "O1", "O2", "O3", not "O9"'),
    ("autotune", {"fast_math": 1}, "fast_math must be one of false, true, not 1"),
    ("autotune", {"rows": 0}, "rows must be a whole number from 1 to 8192, not 0"),
    ("autotune", {"unroll": True}, "unroll must be a whole number"),
    ("autotune", {"rows": 5}, "rows (5) must divide tile_i (64)"),
    ("autotune", {"columns": 3, "vector": 16}, "6 numbers in columns x vector must divide tile_j (64)"),
    ("bdt", {"l2": None, "leaves": None}, "missing ['l2', 'leaves']"),
    ("bdt", {"model": "catboost"}, "model must be one of sklearn, xgboost, lightgbm"),
    ("bdt", {"model": "xgboost"}, "missing ['depth', 'leaf_weight', 'rows']"),
    ("bdt", {"signal_weight": 0}, "signal_weight must be a number of at least"),
    ("bdt", {"rounds": True}, "rounds must be a number"),
    ("calo_gan", {"batch": None}, "missing ['batch']"),
    ("calo_gan", {"latent": 0}, "latent must be a whole number from 1 to 4096, not 0"),
    ("calo_gan", {"batch": 32.5}, "batch must be a whole number"),
    ("calo_gan", {"channels": True}, "channels must be a whole number"),
    ("calo_gan", {"generator_rate": -1}, "generator_rate must be a number from 0 to 1e+30, not -1"),
    ("calo_gan", {"smoothing": 0.7}, "smoothing must be a number from 0 to 0.5"),
    ("calo_gan", {"optimizer": "sgd"}, "optimizer must be one of adam, rmsprop, not 'sgd'"),
    ("calo_gan", {"low": 100, "high": 50}, "low must be below high"),
    ("calo_gan", {"total_weight": float("nan")}, "total_weight must be a number"),
    ("digits", {"width": None}, "missing ['width']"),
    ("digits", {"solver": "lbfgs"}, "solver must be one of adam, sgd"),
    ("digits", {"epochs": 0}, "epochs must be 1 or more"),
    ("resnet50", {"batch": None, "learning_rate": None}, "missing ['batch', 'learning_rate']"),
    ("resnet50", {"optimizer": "lamb"}, "optimizer must be one of sgd, lars, larc, not 'lamb'"),
    ("resnet50", {"compression": True}, "compression must be one of none, fp16, not True"),
    ("resnet50", {"learning_rate": 0}, "learning_rate must be a number from 0, not 0"),
    ("resnet50", {"batch": 2.5}, "batch must be a whole number, not 2.5"),
    ("resnet50", {"accumulation": 0}, "accumulation must be a whole number from 1, not 0"),
    ("resnet50", {"momentum": 1}, "momentum must be a number from 0 to below 1, not 1"),
    ("resnet50", {"warmup": "5"}, "warmup must be a number, not '5'"),
    ("resnet50", {"weight_decay": float("nan")}, "weight_decay must be a number from 0, not nan"),
    ("transformer", {"batch": 0}, "batch must be a whole number from 1"),
    ("transformer", {"learning_rate": float("nan")}, "learning_rate must be a number from 0 to 10, not nan"),
    ("transformer", {"reshard": 1}, "reshard must be true or false, not 1"),
    ("transformer", {"batch": None}, "missing ['batch']"),
]


def refused(payload: str, file: Path) -> str:
    """The reason for which a payload refuses a point: an error of its own, which becomes a failed trial."""
    with pytest.raises(Exception) as caught:
        reader(payload)(file)
    assert type(caught.value).__name__ in ("TrainingError", "TuningError"), caught.value
    return str(caught.value)


@pytest.mark.parametrize(("payload", "change", "reason"), WRONG, ids=str)
def test_a_wrong_point_is_refused_with_a_reason(
    payload: str, change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    point = {**json.loads((PAYLOADS / payload / "input.json").read_text()), **change}
    (tmp_path / "input.json").write_text(json.dumps({key: value for key, value in point.items() if value is not None}))
    assert reason in refused(payload, tmp_path / "input.json")


@pytest.mark.parametrize("payload", READERS)
def test_a_file_that_holds_no_point_is_refused(payload: str, tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    assert "cannot read the point from input.json" in refused(payload, file)
    for text, reason in (("{", "cannot read the point"), ("[1]", "must hold an object of parameters, not list")):
        file.write_text(text)
        assert reason in refused(payload, file)


@pytest.mark.parametrize("path", sorted(PAYLOADS.glob("*/*.py")), ids=named)
def test_a_payload_stands_alone(path: Path) -> None:
    imported = set(re.findall(r"^\s*(?:import|from)\s+(hpo_pilot\w*)", path.read_text(), re.MULTILINE))
    assert imported <= {"hpo_pilot_ranks"}, "only what lies beside a payload that runs, and then only if it is there"


@pytest.mark.parametrize("site", ["summit", "frontier", "perlmutter", "generic-slurm"])
@pytest.mark.parametrize("path", [path for path in FILES if "ranks_per_node" in path.read_text()], ids=named)
def test_what_runs_on_two_ranks_here_has_room_elsewhere(path: Path, site: str) -> None:
    assert load_search(path).resources.ranks == 2
    plan = json.loads(hpo_pilot("plan", str(path), "--site", site, "--json"))
    assert plan["layout"]["workers"] == 2


@pytest.mark.parametrize("path", [path for path in FILES if ON_FRONTIER in path.read_text()], ids=named)
def test_what_it_says_of_frontier_fits_there(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    (other,) = [line.removeprefix(ON_FRONTIER) for line in text.splitlines() if line.startswith(ON_FRONTIER)]
    (own,) = [line for line in text.splitlines() if line.startswith("resources: ")]
    there = tmp_path / "payload" / path.name
    there.parent.mkdir()
    there.write_text(text.replace(own, f"resources: {other}").replace("profile: summit", "profile: frontier"))
    (there.parent / "train.py").touch()
    plans: list[Any] = [
        json.loads(hpo_pilot("plan", str(file), "--site", site, "--json"))
        for file, site in ((path, "summit"), (there, "frontier"))
    ]
    assert plans[0]["layout"]["gpus"] == plans[1]["layout"]["gpus"] > 0
