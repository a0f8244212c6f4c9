"""What pilots have said that they have room for: it tells whom waiting jobs wait for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpo_pilot.server.taskbuffer.dispatch import JobRequest

_LONGEST = 128  # characters of a queue's name: a longer one is nobody's


@dataclass(frozen=True)
class Offer:
    """The most that a pilot has had free for one job at any time; 0: it did not say.

    Attributes:
        queue: that it serves.
        harvester_id: with `worker_id` its name, where it has one.
        asked: when it last asked for jobs, in seconds since the epoch.
        nodes: at once.
        gpus: on a node.
        cores: on a node.
        memory_mb: on a node.
        minutes: for one job.
    """

    queue: str
    harvester_id: str
    worker_id: str
    asked: float
    nodes: int
    gpus: int
    cores: int
    memory_mb: int
    minutes: float


def offer_of(request: JobRequest, now: float) -> Offer:
    """What a pilot that asks has free now."""
    who = (request.site[:_LONGEST], request.harvester_id, request.worker_id)
    if request.wish is None:
        gpus = sum(gpu.count for gpu in request.gpus or ())
        return Offer(*who, now, 1, gpus, request.cores, request.memory, request.remaining_time / 60)
    openings = [*request.wish.now, *request.wish.later]
    return Offer(
        *who,
        now,
        sum(opening.nodes for opening in request.wish.now),
        max((sum(opening.gpus) for opening in openings), default=0),
        max((opening.cores for opening in openings), default=0),
        max((opening.memory_mb for opening in openings), default=0),
        # Of searches whose run times it has measured it takes jobs that may be longer.
        0.0 if request.wish.seconds else max((opening.seconds for opening in openings), default=0.0) / 60,
    )


def most_of(one: Offer, other: Offer) -> Offer:
    """What is the most of two, as `other` says the rest."""
    return replace(
        other,
        nodes=max(one.nodes, other.nodes),
        gpus=max(one.gpus, other.gpus),
        cores=max(one.cores, other.cores),
        memory_mb=max(one.memory_mb, other.memory_mb),
        minutes=max(one.minutes, other.minutes) if one.minutes and other.minutes else 0.0,
    )
