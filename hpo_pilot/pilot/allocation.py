"""Finds the batch allocation in which a pilot runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpo_pilot.errors import InputError
from hpo_pilot.hpc.batch_system import AllocatedNode, BatchAllocation, Remainder, RunCommand, ask_batch_system
from hpo_pilot.hpc.batch_systems import BATCH_SYSTEMS, make_batch_system
from hpo_pilot.jobs.resources import Node, NodeShape
from hpo_pilot.pilot.machine import find_gpus, machine_cores
from hpo_pilot.pilot.settings import Site


@dataclass(frozen=True)
class AllocatedNodes:
    """Nodes that belong to a pilot for a limited time.

    Attributes:
        nodes: in the batch system's order.
        seconds: remaining time; infinity: no limit.
        job: its name at the batch system.
        remainder: returns what the allocation still has.
        gpus: names of the GPUs of each node; empty: their numbers.
    """

    nodes: tuple[Node, ...]
    seconds: float
    job: str = ""
    remainder: Callable[[], Remainder] = Remainder
    gpus: tuple[str, ...] = ()


def find_allocation(
    site: Site, lifetime: float, environment: Mapping[str, str] | None = None, asked: RunCommand = ask_batch_system
) -> AllocatedNodes:
    """Returns the allocation in which this process runs.

    Args:
        site: its node shape has priority over the batch system and this machine.
        lifetime: remaining seconds; 0: ask the batch system.
        environment: default: of this process.
        asked: runs commands of the batch system.

    Raises:
        InputError: there is no allocation, or its data are missing; the message says what to do.
    """
    env = os.environ if environment is None else environment
    batch = _batch(site, env, asked)
    given = batch.nodes()
    if not given:
        raise InputError(f"job {batch.job} of {site.batch} names no nodes: start the pilot from its batch script")
    if len(given) > 1 and not site.launcher.programs:
        raise InputError(
            f"the allocation has {len(given)} nodes, and the launcher of site {site.name!r} cannot start processes "
            "on other nodes: name another launcher in its profile, such as srun"
        )
    nodes = tuple(Node(node.name, _shape(site, node, batch)) for node in given)
    gpus = _gpu_names(nodes[0], env) if len(nodes) == 1 and not site.launcher.chooses_gpus else ()
    left = _seconds(batch, lifetime)
    return AllocatedNodes(nodes, left, batch.job, lambda: batch.remainder(time.time()), gpus)


def _gpu_names(node: Node, env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the GPUs of this node: a batch system may give some of it and hide none, as HTCondor."""
    found = find_gpus(env) if node.shape.gpus else ()
    return tuple(gpu.identifier for gpu in found) if len(found) >= node.shape.gpus else ()


def _batch(site: Site, env: Mapping[str, str], asked: RunCommand) -> BatchAllocation:
    named = BATCH_SYSTEMS.values() if site.batch == "none" else [make_batch_system(site.batch)]
    systems = [system.allocation for system in named]
    for system in systems:
        if env.get(system.variable):
            return system(env, asked)
    wanted = " or ".join(system.variable for system in systems)
    raise InputError(f"--allocation: this is not a batch job: {wanted} is not set; leave --allocation out")


def _seconds(batch: BatchAllocation, lifetime: float) -> float:
    try:
        left = batch.seconds_left(time.time())
    except InputError as error:
        if lifetime:
            return lifetime
        raise InputError(f"the end of the allocation is not known ({error}): give --lifetime SECONDS") from error
    return min(left, lifetime or math.inf)


def _shape(site: Site, given: AllocatedNode, batch: BatchAllocation) -> NodeShape:
    """Returns the shape of a node; unknown values are taken from this machine."""
    gpus = _least(site.gpus, batch.gpus_per_node())
    return NodeShape(
        cores=_least(site.cores, given.cpus // site.threads_per_core) or machine_cores(),
        memory_mb=_least(site.memory_mb, batch.memory_mb()) or _machine_memory(),
        gpus=gpus if gpus or site.cores else len(find_gpus()),  # a profile with cores would have its GPUs
        close=site.close,
    )


def _least(*said: int) -> int:
    """Returns the least known value, because the allocation may have a part of a node; 0: not known."""
    return min(filter(None, said), default=0)


def _machine_memory() -> int:
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20)
