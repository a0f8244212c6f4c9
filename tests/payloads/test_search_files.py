"""Each payload's search files: valid, and with room at the site that they are for, and at others where they say so."""

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
READERS = {"autotune": "train", "bdt": "train", "calo_gan": "point", "digits": "train", "resnet50": "point"}
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
