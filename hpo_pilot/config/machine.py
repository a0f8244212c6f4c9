"""What this machine has, for jobs that are to run on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from hpo_pilot.pilot.gpus import find_gpus
from hpo_pilot.search import Resources
from hpo_pilot.search.misfit import Misfit


@dataclass(frozen=True)
class Machine:
    """One machine.

    Attributes:
        cores: logical CPU cores.
        memory_mb: memory, in MB.
        gpus: those that jobs may use.
    """

    cores: int
    memory_mb: int
    gpus: int


def this_machine() -> Machine:
    """What the machine has that this process runs on."""
    return Machine(
        cores=os.cpu_count() or 1,
        memory_mb=int(psutil.virtual_memory().total // 1_000_000),
        gpus=len(find_gpus()),  # as the local pilot counts them
    )


def local_misfits(resources: Resources, machine: Machine) -> list[Misfit]:
    """Why one job would not fit on `machine`, which is all that the local site has; paths start at a resource."""
    misfits = []
    if resources.nodes > 1:
        hint = "use nodes: 1, or the profile of a site with nodes"
        misfits.append(Misfit(("nodes",), f"the local site is one machine, not {resources.nodes} nodes", hint))
    if resources.cores > machine.cores:
        message = f"this machine has {machine.cores} cores, not {resources.cores}"
        misfits.append(Misfit(("cores",), message, f"use {machine.cores} or fewer"))
    if resources.memory_mb > machine.memory_mb:
        message = f"this machine has {machine.memory_mb} MB of memory, not {resources.memory_mb}"
        misfits.append(Misfit(("memory_mb",), message, f"use {machine.memory_mb} or less; the unit is MB"))
    if resources.gpus_per_node > machine.gpus:
        have = f"{machine.gpus} GPUs" if machine.gpus else "no GPU"
        hint = f"use {machine.gpus}, or the profile of a site with GPUs"
        misfits.append(Misfit(("gpus_per_node",), f"this machine has {have}, not {resources.gpus_per_node}", hint))
    return misfits
