"""Each payload's search files: valid, and with room at the site that they are for, and at others where they say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpo_pilot import load_search
from hpo_pilot.cli.main import app
from tests.payloads.conftest import PAYLOADS

FILES = sorted(PAYLOADS.glob("*/search*.yaml"))
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
    assert {path.parent.name for path in FILES} == {"autotune", "bdt", "calo_gan", "digits", "resnet50"}


@pytest.mark.parametrize("path", FILES, ids=named)
def test_it_is_valid_and_has_room_at_its_site(path: Path) -> None:
    search = load_search(path)
    assert "is valid" in hpo_pilot("validate", str(path))
    plan = json.loads(hpo_pilot("plan", str(path), "--site", search.site.profile, "--json"))
    assert plan["jobs"] >= search.budget.trials * search.folds.k
    assert not set(LAUNCHERS) & set(search.payload.command.split())


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
