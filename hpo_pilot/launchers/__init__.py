"""Launchers: what starts the ranks of a payload, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpo_pilot.errors import InputError
from hpo_pilot.launchers.horovodrun import Horovodrun
from hpo_pilot.launchers.jsrun import Jsrun
from hpo_pilot.launchers.launcher import Launcher, LauncherSettings, site_variables
from hpo_pilot.launchers.mpirun import Mpirun
from hpo_pilot.launchers.placement import Placement
from hpo_pilot.launchers.plain import Plain
from hpo_pilot.launchers.srun import Srun
from hpo_pilot.launchers.torchrun import Torchrun
from hpo_pilot.launchers.traces import StepCommands, Traces

__all__ = [
    "LAUNCHERS",
    "Launcher",
    "LauncherSettings",
    "Placement",
    "StepCommands",
    "Traces",
    "make_launcher",
    "site_variables",
]

#: By the names that site profiles use.
LAUNCHERS: dict[str, type[Launcher]] = {kind.name: kind for kind in (Plain, Mpirun, Srun, Jsrun, Horovodrun, Torchrun)}


def make_launcher(said: Mapping[str, Any], threads_per_core: int = 1) -> Launcher:
    """The launcher of a site.

    Args:
        said: `launcher` of its profile, as a mapping; only `name` must be there.
        threads_per_core: `node.threads_per_core` of its profile.

    Raises:
        InputError: there is no such launcher.
    """
    name = str(said["name"])
    if name not in LAUNCHERS:
        raise InputError(f"there is no launcher {name!r}; there is {', '.join(LAUNCHERS)}")
    settings = LauncherSettings(
        options=tuple(said.get("options") or ()),
        share_gpus=bool(said.get("share_gpus")),
        threads_per_core=threads_per_core,
        mpi=str(said.get("mpi") or "openmpi"),
        starter=str(said.get("starter") or ""),
    )
    if name != Torchrun.name or not settings.starter:
        return LAUNCHERS[name](settings)
    # It starts one process on each node, which sees all GPUs there.
    starting = {**said, "name": settings.starter, "options": (), "share_gpus": True}
    return Torchrun(settings, make_launcher(starting, threads_per_core))
