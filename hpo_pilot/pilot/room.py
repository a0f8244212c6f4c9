"""What of the machine is free: slots, cores, GPUs."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.pilot.gpus import Gpu

#: Seconds for which an offer of less than the whole machine stands; the second, where larger jobs are known to come.
_PATIENCE, _PATIENCE_WITH_LARGE = 5.0, 0.5


@dataclass(frozen=True)
class Free:
    """What may be offered to the server.

    Attributes:
        slots: jobs that may start.
        cores: that they may have together.
        gpus: that they may have together.
        patience: for how many seconds at most the offer should stand. Jobs that end meanwhile make room for larger
            ones than those that it covers.
    """

    slots: int
    cores: int
    gpus: tuple[Gpu, ...]
    patience: float = math.inf


class Claim:
    """One job's share, until it is given back.

    Attributes:
        cores: that it takes.
        gpus: its own, once it has them.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.gpus: tuple[Gpu, ...] = ()
        self.granted = False


class Room:
    """The machine, shared out. Every job takes one slot, and as many cores as it asked for; no core is lent twice.

    A server should hand out no more than was free. One that does so all the same has its jobs wait here, first come,
    first served; a job that wants more than there is at all gets all of it, alone.
    """

    def __init__(self, slots: int, cores: int, gpus: Sequence[Gpu] = ()) -> None:
        self._slots, self._cores, self._gpus = slots, cores, tuple(gpus)
        self._all_cores, self._all_gpus = cores, tuple(gpus)
        self._has_seen_large = False  # jobs that not every offer covers
        self._waiting: deque[Claim] = deque()
        self._changed = threading.Condition()

    def wait_for_some(self, stop: threading.Event) -> Free:
        """What is free, as soon as a job could start, or `stop` is set and `wake` called."""
        with self._changed:
            while not stop.is_set() and (self._slots <= 0 or self._cores <= 0 or self._waiting):
                self._changed.wait()
            return Free(self._slots, self._cores, self._gpus, self._patience())

    def claim(self, cores: int) -> Claim:
        """A share for a job that came: one slot, and its cores as soon as there are so many."""
        claim = Claim(min(cores, self._all_cores))
        with self._changed:
            self._slots -= 1
            self._has_seen_large = self._has_seen_large or claim.cores > 1
            self._waiting.append(claim)
            self._grant()
        return claim

    def wait(self, claim: Claim, stop: threading.Event) -> bool:
        """Waits for the cores of a claim; False: `stop` was set first."""
        with self._changed:
            while not claim.granted and not stop.is_set():
                self._changed.wait()
            return claim.granted

    def take_gpus(self, claim: Claim, count: int, stop: threading.Event) -> bool:
        """Waits for GPUs, at most all there are; False: `stop` was set first, or there are none at all."""
        wanted = min(count, len(self._all_gpus))
        with self._changed:
            self._has_seen_large = True
            while wanted and len(self._gpus) < wanted and not stop.is_set():
                self._changed.wait()
            if not wanted or len(self._gpus) < wanted:
                return False
            claim.gpus, self._gpus = self._gpus[:wanted], self._gpus[wanted:]
            return True

    def give_back(self, claim: Claim) -> None:
        """Ends a claim."""
        with self._changed:
            self._slots += 1
            if claim.granted:
                self._cores += claim.cores
            else:
                self._waiting.remove(claim)
            self._gpus = tuple(gpu for gpu in self._all_gpus if gpu in self._gpus or gpu in claim.gpus)
            self._grant()
            self._changed.notify_all()

    def wake(self) -> None:
        """Lets those who wait look at their `stop`."""
        with self._changed:
            self._changed.notify_all()

    def _patience(self) -> float:
        if self._cores == self._all_cores and self._gpus == self._all_gpus:
            return math.inf
        return _PATIENCE_WITH_LARGE if self._has_seen_large else _PATIENCE

    def _grant(self) -> None:
        while self._waiting and self._waiting[0].cores <= self._cores:
            claim = self._waiting.popleft()
            self._cores -= claim.cores
            claim.granted = True
            self._changed.notify_all()


def machine_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
