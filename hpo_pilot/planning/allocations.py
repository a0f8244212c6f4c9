"""Which allocations a search asks of a batch system: how many nodes, for how long, how many of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpo_pilot.errors import InputError
from hpo_pilot.jobs.site_batch import BatchQueue
from hpo_pilot.jobs.site_profile import SiteProfile
from hpo_pilot.planning.packing import most_at_once, node_shape, nodes_for
from hpo_pilot.planning.workload import Workload
from hpo_pilot.scheduling import Policy

#: How many more node-hours than the thriftiest choice takes a quicker one may take.
_DEARER = 1.25

#: Nodes that the profile does not number, and hours where no walltime is said.
_ANY_NODES = 2**31
_ANY_HOURS = 24.0


@dataclass(frozen=True)
class Choice:
    """So many equal allocations, one after another.

    Attributes:
        nodes: of each.
        minutes: walltime of each.
        submissions: how many.
        at_once: jobs side by side.
        seconds: that all of them run together, by a formula: jobs run in waves.
        node_hours: of all of them.
    """

    nodes: int
    minutes: int
    submissions: int
    at_once: int
    seconds: float
    node_hours: float


def choose(
    work: Workload,
    profile: SiteProfile,
    queue: BatchQueue,
    *,
    nodes: int | None = None,
    minutes: int | None = None,
) -> Choice:
    """The allocations for a search: the quickest of those that cost at most a quarter more than the thriftiest.

    Args:
        work: its jobs.
        profile: of the site.
        queue: one of its queues.
        nodes: of each allocation; None: it is chosen.
        minutes: walltime of each; None: the longest that the queue gives such an allocation, if it is needed.

    Raises:
        InputError: none holds a job; the message says why.
    """
    sizes = [nodes] if nodes is not None else _sizes(work, profile, queue)
    found = [choice for size in sizes if (choice := _choice(work, profile, queue, size, minutes)) is not None]
    if not found:
        raise InputError(_why_none(work, profile, queue, sizes, minutes))
    cheap = _DEARER * min(choice.node_hours for choice in found)
    return min((one for one in found if one.node_hours <= cheap), key=lambda one: (one.seconds, one.nodes))


def largest(profile: SiteProfile, queue: BatchQueue) -> int:
    """The nodes of the largest allocation."""
    return min(queue.largest or _ANY_NODES, profile.node.count or _ANY_NODES)


def _sizes(work: Workload, profile: SiteProfile, queue: BatchQueue) -> list[int]:
    """Those that make a difference: for all jobs at once and simple parts of them, and where longer walltimes begin."""
    shape, most = node_shape(profile, work.needs), largest(profile, queue)
    jobs = min(work.parallel, work.groups) * work.folds
    wanted = {nodes_for(shape, work.needs, math.ceil(jobs / parts)) for parts in (1, 2, 3, 4, 8)} | {work.needs.nodes}
    edges = {smaller.nodes + 1 for smaller in queue.walltime[:-1]} | {one.nodes for one in queue.walltime}
    needed = max(wanted)
    # Nodes beyond what all jobs need only help to a longer walltime.
    beyond = sorted(edge for edge in edges if edge > needed)[:2]
    sizes = wanted | {edge for edge in edges if edge <= needed} | set(beyond)
    return sorted({min(size, most) for size in sizes if min(size, most) >= work.needs.nodes})


def _choice(work: Workload, profile: SiteProfile, queue: BatchQueue, nodes: int, minutes: int | None) -> Choice | None:
    longest = queue.hours(nodes) if queue.walltime else _ANY_HOURS
    if longest is None or nodes > largest(profile, queue) or (minutes is not None and minutes > round(60 * longest)):
        return None
    shape = node_shape(profile, work.needs)
    at_once = most_at_once(shape, work.needs, nodes, profile.batch.job_steps)
    at_once = min(at_once, min(work.parallel, work.groups) * work.folds)
    walltime = 60.0 * (minutes if minutes is not None else round(60 * longest))
    last_start = walltime - Policy().margin - 60.0 * work.needs.minutes
    if at_once < 1 or last_start < 0:
        return None
    waves = math.ceil(work.jobs / at_once)
    # By its own minutes a job may start until then; in between jobs end by what they take.
    each = 1 + math.floor(last_start / work.seconds + 1e-9)
    submissions = math.ceil(waves / each)
    seconds = waves * work.seconds
    if minutes is None:
        # No longer than what it takes, in whole quarters of an hour.
        used = min(waves, each) * work.seconds + max(0.0, 60.0 * work.needs.minutes - work.seconds) + Policy().margin
        walltime = min(walltime, 900.0 * math.ceil(used / 900.0))
    return Choice(nodes, round(walltime / 60), submissions, at_once, seconds, nodes * seconds / 3600)


def _why_none(work: Workload, profile: SiteProfile, queue: BatchQueue, sizes: list[int], minutes: int | None) -> str:
    """In words, with the remedy."""
    most, needs = largest(profile, queue), work.needs
    if sizes and min(sizes) > most:
        return f"{min(sizes)} nodes are more than the {most} that an allocation has at {profile.name}: ask for fewer"
    if sizes and max(sizes) < needs.nodes:
        return f"a job has {needs.nodes} nodes, more than an allocation of {max(sizes)}: give it {needs.nodes} or more"
    longest = max((queue.hours(size) or 0.0 for size in sizes), default=0.0) if queue.walltime else _ANY_HOURS
    if minutes is not None and minutes > round(60 * longest):
        return (
            f"a walltime of {minutes} minutes is more than the {60 * longest:g} that {profile.name} gives such "
            "allocations: ask for less, or for more nodes"
        )
    margin = Policy().margin / 60
    allowed = (minutes if minutes is not None else 60 * longest) - margin
    return (
        f"a job may take {needs.minutes:g} minutes, and an allocation has {allowed:g} for it ({margin:g} at its end "
        "are kept free): ask for fewer resources.minutes, or for a longer walltime, which more nodes may have"
    )
