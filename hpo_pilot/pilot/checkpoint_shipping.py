"""Checkpoints that go with their job from pilot to pilot, through the server's file cache.

A job's next attempt may come to a pilot that shares no folder with the one before. So a pilot uploads what a job's
points keep: now and then while they run, and when an attempt ends without a result. The next attempt's pilot fetches it
where its own folder has nothing newer, and it is deleted once the job has its result.

It is a help and no more: whatever goes wrong with it costs the work since the last checkpoint, never the attempt.
"""

from __future__ import annotations

import heapq
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot.client import Backoff, JobServer
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.job import Job
from hpo_pilot.pilot.kept_checkpoint import KeptCheckpoint, Signature, TooLarge, Unsettled, kept_checkpoint
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.failure import TransformationFailure

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_PATIENCE = 20.0  # seconds that a server which is away is waited for
_UNSETTLED = 2.0  # seconds until files that were being written are looked at again
_SHARE = 19  # an upload is followed by a pause of so many times its length: it takes a twentieth of the time
_AT_ONCE = 4  # uploads of attempts that end side by side


@dataclass
class _Shipment:
    """A running job.

    Attributes:
        shipped: what the server has from this attempt.
        lock: held while it is uploaded.
        is_over: nothing more is to be uploaded.
        is_dropped: what was uploaded is to be deleted.
    """

    job: Job
    kept: KeptCheckpoint
    shipped: Signature = ()
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    is_dropped: bool = False


class CheckpointShipping(threading.Thread):
    """Sends the checkpoints of running jobs; the methods may be called from any thread, and raise nothing."""

    def __init__(self, settings: PilotSettings, server: JobServer) -> None:
        """Sends nothing until it is started, and nothing at all where `settings` say so."""
        super().__init__(name="checkpoints", daemon=True)
        self._settings = settings
        self._server = server
        self._limit = settings.shipped_mb << 20
        self._shipments: dict[int, _Shipment] = {}
        self._due: list[tuple[float, int]] = []
        self._changed = threading.Condition()
        self._uploading = threading.Semaphore(_AT_ONCE)

    def begin(self, job: Job) -> None:
        """A job is about to start: what an attempt before has left is fetched, and from now on it is sent."""
        kept = kept_checkpoint(job, self._settings.checkpoint_root) if self._limit else None
        if kept is None:
            return
        fetched = job.attempt > 1 and self._fetch(job, kept)
        shipment = _Shipment(job, kept, kept.signature() if fetched else ())
        with self._changed:
            self._shipments[job.panda_id] = shipment
            heapq.heappush(self._due, (time.monotonic() + self._settings.checkpoint_every, job.panda_id))
            self._changed.notify_all()

    def keep(self, job: Job, failure: JobFailure | None) -> None:
        """The attempt ended without a result: the next one goes on from here, unless the server ended it."""
        killed = failure is not None and failure.code is PilotErrorCode.PANDA_KILL
        if (shipment := self._take(job.panda_id)) is not None and not killed:
            with self._uploading:
                self._ship(shipment, patience=_PATIENCE)

    def drop(self, job: Job) -> None:
        """The job has its result: its checkpoints are of no more use."""
        shipment = self._take(job.panda_id)
        if shipment is None:
            return
        shipment.is_dropped = True
        if shipment.lock.acquire(blocking=False):  # else it is being uploaded, and deleted after that
            shipment.lock.release()
            self._delete(shipment)

    def _delete(self, shipment: _Shipment) -> None:
        job = shipment.job
        if job.attempt <= 1 and not shipment.shipped:
            return
        try:
            self._server.delete_checkpoint(shipment.kept.task_id, shipment.kept.number)
        except HpoPilotError as error:  # the server has none, or removes it some day
            log.debug("the checkpoint of job %s stays at the server: %s", job.panda_id, error)

    def leave(self, panda_id: int) -> None:
        """The job runs no more, however it ended."""
        self._take(panda_id)

    def _take(self, panda_id: int) -> _Shipment | None:
        with self._changed:
            return self._shipments.pop(panda_id, None)

    def run(self) -> None:
        """Sends what is due, one after the other."""
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                panda_id = heapq.heappop(self._due)[1]
                shipment = self._shipments.get(panda_id)
            if shipment is None:
                continue
            began = time.monotonic()
            pause = self._ship(shipment, patience=0.0)
            if shipment.is_dropped:
                self._delete(shipment)
            due = time.monotonic() + max(pause, _SHARE * (time.monotonic() - began))
            with self._changed:
                heapq.heappush(self._due, (due, panda_id))

    # --- one job ---

    def _ship(self, shipment: _Shipment, *, patience: float) -> float:
        """Uploads what is new; returns seconds until the next look."""
        every, job = self._settings.checkpoint_every, shipment.job
        with shipment.lock:
            try:
                if shipment.is_over or shipment.is_dropped or shipment.kept.signature() in (shipment.shipped, ()):
                    return every
                with tempfile.TemporaryFile(dir=self._settings.workdir) as packed:
                    signature = shipment.kept.pack(packed, self._limit)
                    size = packed.tell()
                    _patiently(
                        lambda: self._server.upload_checkpoint(shipment.kept.task_id, shipment.kept.number, packed),
                        patience,
                    )
                shipment.shipped = signature
                log.debug("the checkpoint of job %s is at the server: %.1f MB", job.panda_id, size / 1e6)
            except Unsettled:
                return _UNSETTLED
            except TooLarge:
                shipment.is_over = True
                log.warning(
                    "the checkpoint of job %s packs to more than %d MB, and stays in %s alone: raise --checkpoint-mb, "
                    "or name a folder that all pilots share with --checkpoints",
                    *(job.panda_id, self._limit >> 20, self._settings.checkpoint_root),
                )
            except TryAgainError as error:
                log.info("the checkpoint of job %s is not at the server yet: %s", job.panda_id, error)
            except HpoPilotError as error:
                shipment.is_over = True
                log.warning("the checkpoint of job %s stays here: %s", job.panda_id, error)
            except OSError as error:
                log.warning("the checkpoint of job %s cannot be packed: %s", job.panda_id, error)
            return every

    def _fetch(self, job: Job, kept: KeptCheckpoint) -> bool:
        """Whether the folder now has what the server has."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._settings.workdir) as packed:
                target = cast(BinaryIO, packed)
                found = _patiently(
                    lambda: self._server.download_checkpoint(kept.task_id, kept.number, target, self._limit), _PATIENCE
                )
                packed.flush()
                if found and kept.place(Path(packed.name), self._settings.unpack_mb << 20):
                    log.info("job %s goes on from the checkpoint of an earlier attempt", job.panda_id)
                    return True
        except (HpoPilotError, TransformationFailure, OSError) as error:
            log.warning("job %s does not get the checkpoint of its attempt before: %s", job.panda_id, error)
        return False


def _patiently(call: Callable[[], _T], seconds: float) -> _T:
    """What a call to the server gives, which is repeated for so long while the server is away."""
    backoff, give_up = Backoff(), time.monotonic() + seconds
    while True:
        try:
            return call()
        except TryAgainError:
            if time.monotonic() >= give_up:
                raise
            time.sleep(backoff.seconds())
