"""What pilots have said that they have room for, kept in memory: it tells whom waiting jobs wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import time

from hpo_pilot.server.taskbuffer.dispatch import JobRequest

_MOST = 5000  # pilots; the last heard of
_KEPT = 3600.0  # seconds since one was heard of


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


class Offers:
    """Those of the pilots of late. Any thread may call."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self.began = clock()  #: when it began to listen, in seconds since the epoch
        self._lock = threading.Lock()
        self._offers: dict[tuple[str, str, str, str], Offer] = {}

    def note(self, request: JobRequest) -> None:
        """A pilot asks."""
        key = (request.site, request.harvester_id, request.worker_id, request.node)
        now = _offer(request, self._clock())
        with self._lock:
            before = self._offers.pop(key, None)
            self._offers[key] = now if before is None else _most(before, now)
            if len(self._offers) > _MOST:
                del self._offers[next(iter(self._offers))]

    def of(self, queue: str) -> list[Offer]:
        """Those of a queue's pilots of the last hour; empty: any queue's."""
        since = self._clock() - _KEPT
        with self._lock:
            self._offers = {key: offer for key, offer in self._offers.items() if offer.asked >= since}
            return [offer for offer in self._offers.values() if queue in ("", offer.queue)]


def _offer(request: JobRequest, now: float) -> Offer:
    who = (request.site, request.harvester_id, request.worker_id)
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


def _most(one: Offer, other: Offer) -> Offer:
    return replace(
        other,
        nodes=max(one.nodes, other.nodes),
        gpus=max(one.gpus, other.gpus),
        cores=max(one.cores, other.cores),
        memory_mb=max(one.memory_mb, other.memory_mb),
        minutes=max(one.minutes, other.minutes) if one.minutes and other.minutes else 0.0,
    )
