"""Checkpoints of a job: kept on disk, and sent through the server's file cache to the pilot of the next attempt.

A job's next attempt may run at a pilot that shares no folder with the first one. So a pilot uploads the checkpoints
of a job's points: at intervals while they run, and when an attempt ends without a result. The next pilot downloads them
unless its own folder has newer ones, and they are deleted when the job has its result. An error in this costs the work
since the last checkpoint, never the attempt.
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import heapq
import json
import logging
import os
import re
import secrets
import shutil
import tarfile
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot.client import JobServer, retried
from hpo_pilot.pilot.job import Identity, Job, JobFailure, PilotErrorCode
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.job import TransformationFailure
from hpo_pilot.transformation.sandbox import unpack
from hpo_pilot.transformation.transformation import UNPACKED_LIMIT

#: The command of our jobs. `hpo_pilot_runner.py` and `hpo_pilot_series.py` define the folder names below.
_RUNNER = re.compile(r"hpo_pilot_runner\.py --task ([A-Za-z0-9_=-]+) --number (\d{1,9})\b")
_UID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TABLE_LIMIT = 32 << 20  # bytes of a task's points, unpacked

#: Folders of the runner: a copy in progress, the copy before the last, the last copy.
_NEW, _OLD, _KEPT = ".new", ".old", ".kept"

_FETCHED = ".fetched-"  # prefix of folders in which archives are unpacked
_STALE = 3600.0  # seconds after which such a folder is left over from a dead pilot

#: Each file with its size in bytes and the time of its last change in ns.
Signature = tuple[tuple[str, int, int], ...]


class CheckpointTooLarge(Exception):
    """The archive would be larger than is allowed."""


class FilesChanging(Exception):
    """The files changed while they were packed."""


@dataclass(frozen=True)
class KeptCheckpoint:
    """The checkpoint folders of one job's points.

    Attributes:
        folder: folder of the search in the pilot's checkpoint folder; it may not exist yet.
        names: folders in it: one for each point, and for a job of several points one of its own.
        task_id: JEDI's number of the task.
        number: number of the job in its task; the same for all attempts.
    """

    folder: Path
    names: tuple[str, ...]
    task_id: int
    number: str

    def signature(self) -> Signature:
        """Returns the present files."""
        return tuple(sorted(entry for name in self.names for entry in _files(self.folder, name)))

    def pack(self, target: IO[bytes], limit: int) -> Signature:
        """Writes the archive.

        Args:
            target: file to write to.
            limit: largest size in bytes.

        Returns:
            The packed files.

        Raises:
            CheckpointTooLarge: the archive would be larger.
            FilesChanging: files are being written; try later.
            OSError: a file was removed, or the disk failed.
        """
        before = self.signature()
        with (
            gzip.GzipFile(fileobj=_Limited(target, limit), mode="wb", filename="", compresslevel=1) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, _, _ in before:
                archive.add(self.folder / name, name, recursive=False)
        if self.signature() != before:
            raise FilesChanging
        return before

    def place(self, archive: Path, limit: int) -> bool:
        """Unpacks an archive and replaces checkpoints that are older.

        Args:
            archive: written by `pack`, but not trusted.
            limit: largest unpacked size in bytes.

        Returns:
            Whether any checkpoint was replaced.

        Raises:
            UnsafeArchive: the archive is refused; nothing was changed.
            OSError: reading or writing a file failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{_FETCHED}*"):
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)
        beside = self.folder / f"{_FETCHED}{secrets.token_hex(6)}"
        beside.mkdir()
        try:
            unpack(str(archive), str(beside), limit)
            placed = [self._place(beside, name) for name in self.names]
            return any(placed)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def _place(self, beside: Path, name: str) -> bool:
        fetched = _newest(beside, name)
        if fetched is None or (_newest(self.folder, name) or 0) >= fetched:
            return False
        place = self.folder / name
        place.mkdir(exist_ok=True)
        lock = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            place.rename(beside / f".before-{name}")
            (beside / name).rename(place)
            return True
        except BlockingIOError:
            return False  # a payload of a dead pilot is saving its last state there, which is newer
        finally:
            os.close(lock)


def kept_checkpoint(job: Job, root: Path) -> KeptCheckpoint | None:
    """Returns the checkpoint folders of a job below `root`; None: the job belongs to no search."""
    found = _RUNNER.search(job.arguments.command)
    if found is None or not job.task_id:
        return None
    task, number = found[1], found[2]
    try:
        table = _table(task)
        members = table["jobs"][int(number) - int(table.get("first", 1))]
        names = [f"t{int(trial)}f{int(fold)}" for trial, fold, *_ in (members if _is_series(members) else [members])]
        uid = str(table["uid"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, zlib.error, RecursionError):
        return None
    if not _UID.fullmatch(uid) or not 1 <= len(names) <= 1000:
        return None
    if _is_series(members):
        key = hashlib.sha256("\0".join((task, number, str(job.task_id))).encode()).hexdigest()
        names.append(f"series-{key[:16]}")
    return KeptCheckpoint(root / uid, tuple(names), job.task_id, number)


def _is_series(members: Any) -> bool:
    return isinstance(members[0], list)


def _table(task: str) -> dict[str, Any]:
    text = zlib.decompressobj().decompress(base64.urlsafe_b64decode(task + "==="), _TABLE_LIMIT)
    table: dict[str, Any] = json.loads(text)
    return table


class _Limited:
    """Writes at most `limit` bytes."""

    def __init__(self, target: IO[bytes], limit: int) -> None:
        self._target, self._left = target, limit

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise CheckpointTooLarge
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()


def _files(folder: Path, name: str) -> Iterator[tuple[str, int, int]]:
    """Yields the files of one point's folder: complete copies, and files that the payload itself keeps there."""
    without = {_NEW, _OLD} if (folder / name / _KEPT).is_dir() else {_NEW}
    for where, folders, files in os.walk(folder / name):
        if Path(where) == folder / name:
            folders[:] = [each for each in folders if each not in without]
        for file in files:
            path = Path(where, file)
            about = path.lstat()
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), about.st_size, about.st_mtime_ns


def _newest(folder: Path, name: str) -> int | None:
    """Returns the time of the last change of a point's files, in µs; None: there are none."""
    # Archives store times with microseconds or better, some file systems with less.
    return max((changed // 1000 for _, _, changed in _files(folder, name)), default=None)


log = logging.getLogger(__name__)

_PATIENCE = 20.0  # seconds to wait for a server that does not answer
_UNSETTLED = 2.0  # seconds until files that were being written are checked again
_SHARE = 19  # the pause after an upload is this many times its length, so uploads take 1/20 of the time
_AT_ONCE = 4  # simultaneous uploads of attempts that end


@dataclass
class _Shipment:
    """The uploads of a running job.

    Attributes:
        shipped: files that the server has from this attempt.
        lock: held during an upload.
        is_over: no more uploads.
        is_dropped: the uploaded checkpoint is to be deleted.
    """

    job: Job
    kept: KeptCheckpoint
    shipped: Signature = ()
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    is_dropped: bool = False


class CheckpointShipping(threading.Thread):
    """Sends the checkpoints of running jobs. Any thread may call any method; they raise nothing."""

    def __init__(self, settings: PilotSettings, server: JobServer) -> None:
        """Makes the thread; `start` starts it. Nothing is sent if `settings.shipped_mb` is 0."""
        super().__init__(name="checkpoints", daemon=True)
        self._settings = settings
        self._server = server
        self._limit = settings.shipped_mb << 20
        self._shipments: dict[Identity, _Shipment] = {}
        self._due: list[tuple[float, Identity]] = []
        self._changed = threading.Condition()
        self._uploading = threading.Semaphore(_AT_ONCE)

    def begin(self, job: Job, *, repeats: bool = True) -> None:
        """Downloads the checkpoint of an earlier attempt and begins the uploads, when a job is about to start.

        Args:
            job: the job.
            repeats: upload the checkpoint at intervals too, not only at the end of the attempt.
        """
        kept = kept_checkpoint(job, self._settings.checkpoint_root) if self._limit else None
        if kept is None:
            return
        fetched = self._may_have(job) and self._fetch(job, kept)
        shipment = _Shipment(job, kept, kept.signature() if fetched else ())
        with self._changed:
            self._shipments[job.identity] = shipment
            if not repeats:
                return
            heapq.heappush(self._due, (time.monotonic() + self._settings.checkpoint_every, job.identity))
            self._changed.notify_all()

    def keep(self, job: Job, failure: JobFailure | None) -> None:
        """Uploads the last checkpoint of an attempt without a result, unless the server killed the job."""
        killed = failure is not None and failure.code is PilotErrorCode.PANDA_KILL
        if (shipment := self._take(job.identity)) is not None and not killed:
            with self._uploading:
                self._ship(shipment, patience=_PATIENCE)

    def drop(self, job: Job) -> None:
        """Deletes the checkpoint of a job that has its result."""
        shipment = self._take(job.identity)
        if shipment is None:
            return
        shipment.is_dropped = True
        if shipment.lock.acquire(blocking=False):  # otherwise it is being uploaded, and then deleted
            shipment.lock.release()
            self._delete(shipment)

    def _delete(self, shipment: _Shipment) -> None:
        job = shipment.job
        if job.attempt <= 1 and not shipment.shipped:
            return
        try:
            self._remove(shipment.kept)
        except HpoPilotError as error:  # the server has none, or will remove it later
            log.debug("the checkpoint of job %s stays at the server: %s", job.panda_id, error)

    def leave(self, identity: Identity) -> None:
        """Ends the uploads of an attempt that has ended."""
        self._take(identity)

    def _take(self, identity: Identity) -> _Shipment | None:
        with self._changed:
            return self._shipments.pop(identity, None)

    def run(self) -> None:
        """Sends due checkpoints one after another."""
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                identity = heapq.heappop(self._due)[1]
                shipment = self._shipments.get(identity)
            if shipment is None:
                continue
            began = time.monotonic()
            pause = self._ship(shipment, patience=0.0)
            if shipment.is_dropped:
                self._delete(shipment)
            due = time.monotonic() + max(pause, _SHARE * (time.monotonic() - began))
            with self._changed:
                heapq.heappush(self._due, (due, identity))

    # --- one job ---

    def _ship(self, shipment: _Shipment, *, patience: float) -> float:
        """Uploads a changed checkpoint; returns the seconds until the next check."""
        every, job = self._settings.checkpoint_every, shipment.job
        with shipment.lock:
            try:
                if shipment.is_over or shipment.is_dropped or shipment.kept.signature() in (shipment.shipped, ()):
                    return every
                with tempfile.NamedTemporaryFile(dir=self._settings.workdir) as packed:
                    signature = shipment.kept.pack(packed, self._limit)
                    size = packed.tell()
                    packed.flush()
                    retried(lambda: self._upload(shipment.kept, packed), patience)
                shipment.shipped = signature
                log.debug("the checkpoint of job %s is stored: %.1f MB", job.panda_id, size / 1e6)
            except FilesChanging:
                return _UNSETTLED
            except CheckpointTooLarge:
                shipment.is_over = True
                log.warning(
                    "the checkpoint of job %s has more than %d MB packed, and is only in %s: raise --checkpoint-mb, "
                    "or name a folder that all pilots share with --checkpoints",
                    *(job.panda_id, self._limit >> 20, self._settings.checkpoint_root),
                )
            except TryAgainError as error:
                log.info("the checkpoint of job %s is not at the server yet: %s", job.panda_id, error)
            except HpoPilotError as error:
                shipment.is_over = True
                log.warning("the checkpoint of job %s is not sent: %s", job.panda_id, error)
            except OSError as error:
                log.warning("the checkpoint of job %s cannot be packed: %s", job.panda_id, error)
            return every

    def _fetch(self, job: Job, kept: KeptCheckpoint) -> bool:
        """Downloads the checkpoint; returns whether it was placed in the folder."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._settings.workdir) as packed:
                found = retried(lambda: self._download(kept, packed), _PATIENCE)
                packed.flush()
                if found and kept.place(Path(packed.name), UNPACKED_LIMIT):
                    log.info("job %s goes on from the checkpoint of an earlier attempt", job.panda_id)
                    return True
        except (HpoPilotError, TransformationFailure, OSError) as error:
            log.warning("job %s does not get the checkpoint of the previous attempt: %s", job.panda_id, error)
        return False

    # --- where the checkpoints are stored: at the server ---

    def _may_have(self, job: Job) -> bool:
        """Returns whether there may be a checkpoint of an earlier attempt."""
        return job.attempt > 1

    def _upload(self, kept: KeptCheckpoint, packed: IO[bytes]) -> None:
        """Stores an archive."""
        self._server.upload_checkpoint(kept.task_id, kept.number, packed)

    def _download(self, kept: KeptCheckpoint, packed: IO[bytes]) -> bool:
        """Writes the stored archive; False: there is none."""
        return self._server.download_checkpoint(kept.task_id, kept.number, packed, self._limit)

    def _remove(self, kept: KeptCheckpoint) -> None:
        """Deletes the stored archive."""
        self._server.delete_checkpoint(kept.task_id, kept.number)
