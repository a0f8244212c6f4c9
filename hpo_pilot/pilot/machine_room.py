"""What of this machine is free: slots, cores, GPUs."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.gpus import Gpu, visible
from hpo_pilot.pilot.job import Job, needed_cores
from hpo_pilot.pilot.room import Claim, Free, Room, Seat
from hpo_pilot.pilot.starting import Starting
from hpo_pilot.scheduling import Ending
from hpo_pilot.transformation.payload_document import PayloadDocument

#: Seconds for which an offer of less than the whole machine stands; the second, where larger jobs are known to come.
_PATIENCE, _PATIENCE_WITH_LARGE = 5.0, 0.5

#: How launchers call the machine that they run on.
_HERE = "localhost"


class MachineClaim(Claim):
    """One job's share of the machine, until it is given back.

    Attributes:
        cores: that it takes.
        gpus: its own, once it has them.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.gpus: tuple[Gpu, ...] = ()
        self.granted = False


class MachineRoom(Room[MachineClaim]):
    """The machine, shared out. Every job takes one slot, and as many cores as it asked for; no core is lent twice.

    A server should hand out no more than was free. One that does so all the same has its jobs wait here, first come,
    first served; a job that wants more than there is at all gets all of it, alone.
    """

    def __init__(self, slots: int, cores: int, gpus: Sequence[Gpu] = (), *, shows_gpus: bool = True) -> None:
        """Shares out so much.

        Args:
            slots: jobs side by side.
            cores: of all of them together.
            gpus: to share out.
            shows_gpus: whether jobs that asked for none see those that nobody was promised.
        """
        self.most = slots
        self._shows_gpus = shows_gpus
        self._slots, self._cores, self._gpus = slots, cores, tuple(gpus)
        self._all_cores, self._all_gpus = cores, tuple(gpus)
        self._has_seen_large = False  # jobs that not every offer covers
        self._waiting: deque[MachineClaim] = deque()
        self._changed = threading.Condition()

    def wait_for_some(self, stop: threading.Event) -> Free:
        """See Room."""
        with self._changed:
            while not stop.is_set() and (self._slots <= 0 or self._cores <= 0 or self._waiting):
                self._changed.wait()
            return Free(self._slots, self._cores, self._gpus, self._patience())

    def claim(self, data: Mapping[str, Any]) -> MachineClaim:
        """See Room: one slot, and its cores as soon as there are so many."""
        claim = MachineClaim(min(needed_cores(data), self._all_cores))
        with self._changed:
            self._slots -= 1
            self._has_seen_large = self._has_seen_large or claim.cores > 1
            self._waiting.append(claim)
            self._grant()
        return claim

    def enter(self, claim: MachineClaim, stop: threading.Event) -> bool:
        """See Room: waits for the cores of a claim."""
        with self._changed:
            while not claim.granted and not stop.is_set():
                self._changed.wait()
            return claim.granted

    def take(self, claim: MachineClaim, job: Job, document: PayloadDocument, starting: Starting) -> Seat:
        """See Room: waits for the GPUs that a job asked for."""
        if document.nodes > 1:
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                f"the job needs {document.nodes} nodes, and this pilot has one machine: it takes a pilot in an "
                "allocation (hpo-pilot pilots submit)",
            )
        if document.ranks_per_node and document.gpus > len(self._all_gpus):
            raise JobFailure(
                PilotErrorCode.PAYLOAD_EXECUTION_FAILURE,
                f"the job needs {document.gpus} GPUs, and this pilot has {len(self._all_gpus)}",
            )
        count = document.gpus or int(job.wants_gpu)
        variables: Mapping[str, str] = {}
        if count and self.take_gpus(claim, count, starting.draining):
            variables = visible(claim.gpus)
        elif count and starting.draining.is_set():
            raise JobFailure(PilotErrorCode.SIGTERM, "the pilot was about to end while the job waited for a GPU")
        elif not self._shows_gpus:
            variables = visible(())
        return Seat((_HERE,), variables, gpus={_HERE: tuple(gpu.identifier for gpu in claim.gpus)}, cores=claim.cores)

    def take_gpus(self, claim: MachineClaim, count: int, stop: threading.Event) -> bool:
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

    def give_back(self, claim: MachineClaim, ending: Ending = Ending.FAILED) -> None:
        """See Room."""
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
        """See Room."""
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
