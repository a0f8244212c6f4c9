from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_systems import make_batch_system
from hpo_pilot.hpc.launcher import Launcher
from hpo_pilot.hpc.launchers import Srun, make_launcher
from hpo_pilot.hpc.site_files import load_site
from hpo_pilot.optimizers import optimizer_class
from hpo_pilot.pilot.settings import know_runtime
from hpo_pilot.plugins import PluginError, find_plugin

SITES = Path(__file__).parents[1] / "deploy" / "sites"


def test_entry_points_are_not_read_for_built_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(importlib.metadata, "entry_points", fail)
    for path in SITES.glob("*.yaml"):
        assert load_site(path)
    for find, name in ((make_batch_system, "slurm"), (optimizer_class, "random"), (know_runtime, "podman")):
        find(name)
    assert type(make_launcher({"name": "srun"})) is Srun
    with pytest.raises(AssertionError, match="read"):
        make_batch_system("oar")


@pytest.mark.parametrize(
    ("make", "known"), [(make_batch_system, "slurm"), (optimizer_class, "random"), (know_runtime, "podman")]
)
def test_a_name_that_nobody_has(make: Callable[[str], Any], known: str) -> None:
    with pytest.raises(InputError, match=known):
        make("oar")


class Unfinished(Launcher):
    name = "unfinished"


@pytest.mark.parametrize(
    ("entry", "says"),
    [("bad", "has the name 'unfinished'"), ("unfinished", "has no command")],
)
def test_a_class_that_is_not_finished(monkeypatch: pytest.MonkeyPatch, entry: str, says: str) -> None:
    made = importlib.metadata.EntryPoint(entry, f"{__name__}:Unfinished", "hpo_pilot.launchers")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda _: Unfinished)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (made,))
    with pytest.raises(PluginError, match=says):
        find_plugin("launchers", entry, Launcher)
