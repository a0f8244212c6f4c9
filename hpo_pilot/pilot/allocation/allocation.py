"""The nodes of an allocation and its end, from whatever batch system it is of."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpo_pilot.errors import InputError
from hpo_pilot.pilot.allocation.batch import Ask, Batch, Given, ask
from hpo_pilot.pilot.allocation.flux import Flux
from hpo_pilot.pilot.allocation.lsf import Lsf
from hpo_pilot.pilot.allocation.pbs import Pbs
from hpo_pilot.pilot.allocation.slurm import Slurm
from hpo_pilot.pilot.gpus import find_gpus
from hpo_pilot.pilot.machine_room import machine_cores
from hpo_pilot.pilot.site import Site
from hpo_pilot.scheduling import Node, NodeShape

_SYSTEMS: dict[str, type[Batch]] = {"slurm": Slurm, "lsf": Lsf, "pbs": Pbs, "flux": Flux}


@dataclass(frozen=True)
class Allocation:
    """Nodes that are a pilot's for a time.

    Attributes:
        nodes: in the batch system's order.
        seconds: how long, from now on; infinity: for ever.
        job: its name at the batch system.
        lost: asks which nodes the batch system has taken away since.
        reclaim: asks which of these nodes are wholly free, where the batch system may keep cores of the other nodes
            when it takes one away; None: it keeps none.
    """

    nodes: tuple[Node, ...]
    seconds: float
    job: str = ""
    lost: Callable[[], Sequence[str]] = tuple
    reclaim: Callable[[Sequence[str]], Sequence[str]] | None = None


def find_allocation(
    site: Site, lifetime: float = 0.0, environment: Mapping[str, str] | None = None, asked: Ask = ask
) -> Allocation:
    """The allocation that this process runs in.

    Args:
        site: whose node shape counts before what the batch system and this machine say.
        lifetime: seconds that it lasts; 0: the batch system knows.
        environment: default: this process's.
        asked: how its commands are run.

    Raises:
        InputError: it runs in none, or what is needed to know of it is not to be had; the message says what to give.
    """
    env = os.environ if environment is None else environment
    batch = _batch(site, env, asked)
    given = batch.nodes()
    if not given:
        raise InputError(f"job {batch.job} of {site.batch} names no nodes in its environment: is this its script?")
    if len(given) > 1 and not site.launcher.programs:
        raise InputError(
            f"the allocation has {len(given)} nodes, and the launcher of site {site.name!r} starts nothing on others "
            "than this one: name another launcher in its profile, such as srun"
        )
    nodes = tuple(Node(node.name, _shape(site, node, batch)) for node in given)
    reclaim = batch.reclaim if batch.keeps_cores else None
    return Allocation(nodes, _seconds(batch, lifetime), batch.job, batch.lost, reclaim)


def _batch(site: Site, env: Mapping[str, str], asked: Ask) -> Batch:
    systems = [_SYSTEMS[site.batch]] if site.batch in _SYSTEMS else list(_SYSTEMS.values())
    for system in systems:
        if env.get(system.variable):
            return system(env, asked)
    wanted = " or ".join(system.variable for system in systems)
    raise InputError(f"--allocation: this is no job of a batch system, for {wanted} is not set; leave --allocation out")


def _seconds(batch: Batch, lifetime: float) -> float:
    try:
        left = batch.seconds_left(time.time())
    except InputError as error:
        if lifetime:
            return lifetime
        raise InputError(f"it is not known when the allocation ends ({error}): give --lifetime SECONDS") from error
    return min(left, lifetime or math.inf)


def _shape(site: Site, given: Given, batch: Batch) -> NodeShape:
    """What is said of a node; where nobody says it, it is taken to be as this machine."""
    gpus = _least(site.gpus, batch.gpus_per_node())
    return NodeShape(
        cores=_least(site.cores, given.cpus // site.threads_per_core) or machine_cores(),
        memory_mb=_least(site.memory_mb, batch.memory_mb()) or _machine_memory(),
        gpus=gpus if gpus or site.cores else len(find_gpus()),  # a profile that tells of cores would tell of GPUs
        close=site.close,
    )


def _least(*said: int) -> int:
    """Of what is said, the least: the batch system may have given a part of a node. 0: nobody says it."""
    return min(filter(None, said), default=0)


def _machine_memory() -> int:
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20)
