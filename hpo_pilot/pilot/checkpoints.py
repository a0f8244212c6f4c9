"""Checkpoints of a job: kept on disk, and sent through the server's file cache to the pilot of the next attempt.

A job's next attempt may run at a pilot that shares no folder with the first one. So a pilot uploads the checkpoints
of a job's points: at intervals while they run, and when an attempt ends without a result. The next pilot downloads them
unless its own folder has newer ones, and they are deleted when the job has its result. An error in this costs the work
since the last checkpoint, never the attempt.

A trial with a level goes on from the checkpoint of an earlier trial of the same point; together they are a chain. Each
has a folder of its own, so that no attempt of a lower level changes the checkpoint of a higher one. Such a checkpoint
is stored by search, chain and fold before its result is reported, and deleted when a later trial of the chain has one.
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
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
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
_OURS = re.compile(r"t\d+f\d+(\.\d+)?|series-[0-9a-f]{16}", re.ASCII)  # folders of a search
_KEPT_SECONDS = 30 * 86_400.0  # after the last change of a search's checkpoints; the server has the same limit

#: Numbers of tasks and jobs that one life of a server has; `db restore` begins another, far above.
LIFE = 10**9

#: Each file with its size in bytes and the time of its last change in ns.
Signature = tuple[tuple[str, int, int], ...]


class CheckpointTooLarge(Exception):
    """The archive would be larger than is allowed."""


class FilesChanging(Exception):
    """The files changed while they were packed."""


class Level(NamedTuple):
    """A fold of a trial with a level, in a job.

    Attributes:
        name: its folder.
        trial: number of the trial.
        fold: number of the fold.
        chain: number of the first trial of the point; `trial` if it is the first itself.
        is_kept: whether a later trial may go on from its checkpoint.
    """

    name: str
    trial: int
    fold: int
    chain: int
    is_kept: bool

    @property
    def start(self) -> str:
        """The folder of the chain's first trial; those of later ones have their number appended."""
        return f"t{self.chain}f{self.fold}"


@dataclass(frozen=True)
class KeptCheckpoint:
    """The checkpoint folders of one job's points.

    Attributes:
        folder: folder of the search in the pilot's checkpoint folder; it may not exist yet.
        names: folders in it: one for each point, and for a job of several points one of its own.
        task_id: JEDI's number of the task.
        number: number of the job in its task; the same for all attempts.
        levels: the points with a level.
    """

    folder: Path
    names: tuple[str, ...]
    task_id: int
    number: str
    levels: tuple[Level, ...] = ()

    def of(self, name: str) -> KeptCheckpoint:
        """Returns the checkpoint of one folder alone."""
        return replace(self, names=(name,), levels=())

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
        with self._beside() as beside:
            unpack(str(archive), str(beside), limit)
            placed = [self._place(beside, name) for name in self.names]
            return any(placed)

    @contextmanager
    def _beside(self) -> Iterator[Path]:
        """Makes a folder in which checkpoints are put together before they get their names."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"{_FETCHED}*"):
            if time.time() - left.stat().st_mtime > _STALE:
                shutil.rmtree(left, ignore_errors=True)
        beside = self.folder / f"{_FETCHED}{secrets.token_hex(6)}"
        beside.mkdir()
        try:
            yield beside
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def place_level(self, archive: Path, limit: int, level: Level) -> bool:
        """Unpacks the newest stored checkpoint of a chain: the trial's own, or one of an earlier trial.

        Args:
            archive: written by `pack`, but not trusted.
            limit: largest unpacked size in bytes.
            level: the trial that is about to start.

        Returns:
            Whether it was placed: there is none here of a later trial of the chain, or of the same that is newer.

        Raises:
            UnsafeArchive: the archive is refused; nothing was changed.
            OSError: reading or writing a file failed.
        """
        with self._beside() as beside:
            unpack(str(archive), str(beside), limit)
            for name in self._chain(level, beside):
                if any(_trial(here, level) > _trial(name, level) for here in self._chain(level, self.folder)):
                    return False  # that of a later trial could not be stored
                if name != level.name:
                    (beside / name).rename(beside / level.name)
                return self._place(beside, level.name)
        return False

    def go_on(self, level: Level) -> bool:
        """Copies the checkpoint of the newest earlier trial of a chain here, if the trial has none; returns whether.

        Raises:
            OSError: reading or writing a file failed.
        """
        if _newest(self.folder, level.name) is not None:
            return False
        for name in self._chain(level, self.folder):
            with self._beside() as beside:
                for file, _, _ in _files(self.folder, name):
                    target = beside / level.name / Path(file).relative_to(name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(self.folder / file, target)
                return self._place(beside, level.name)
        return False

    def forget(self, level: Level, *, own: bool) -> None:
        """Deletes the folders of a chain's earlier trials, and the trial's own."""
        for name in self._chain(level, self.folder):
            if own or name != level.name:
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _chain(self, level: Level, folder: Path) -> list[str]:
        """Returns the folders with files of a chain's trials up to this one, the newest first."""
        matches = (re.fullmatch(rf"{level.start}(?:\.(\d{{1,9}}))?", path.name) for path in folder.glob("t*f*"))
        found = {int(match[1] or level.chain): match[0] for match in matches if match}
        numbers = sorted((number for number in found if number <= level.trial), reverse=True)
        return [found[number] for number in numbers if _newest(folder, found[number]) is not None]

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


def search_folders(root: Path, uid: str = "*") -> list[Path]:
    """Returns the folders of a search below `root`, or those of all searches."""
    return [path for path in (*root.glob(uid), *root.glob(f"*.*/{uid}")) if "." not in path.name]


def remove_empty(search: Path) -> None:
    """Deletes the folder of a search, and that of its owner, where nothing is in them any more."""
    with suppress(OSError):  # it is not empty
        search.rmdir()
        if "." in search.parent.name:
            search.parent.rmdir()


def kept_checkpoint(job: Job, root: Path) -> KeptCheckpoint | None:
    """Returns the checkpoint folders of a job below `root`; None: the job belongs to no search."""
    return _kept_checkpoint(job.arguments.command, job.task_id, job.user, root)


@lru_cache(128)  # a job is asked for several times, and its task may have many points
def _kept_checkpoint(command: str, task_id: int, user: str, root: Path) -> KeptCheckpoint | None:
    found = _RUNNER.search(command)
    if found is None or not task_id:
        return None
    task, number = found[1], found[2]
    try:
        table = _table(task)
        members = table["jobs"][int(number) - int(table.get("first", 1))]
        said, levels, names = table.get("levels") or {}, [], []
        for trial, fold, *_ in members if _is_series(members) else [members]:
            about = said.get(str(trial)) or {}
            chain = int(about.get("chain", trial))
            names.append(f"t{chain}f{int(fold)}" + (f".{int(trial)}" if chain != trial else ""))
            if about:
                levels.append(Level(names[-1], int(trial), int(fold), chain, bool(about.get("keep_checkpoint"))))
        uid = str(table["uid"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, zlib.error, RecursionError):
        return None
    if not _UID.fullmatch(uid) or not 1 <= len(names) <= 1000:
        return None
    if _is_series(members):
        key = hashlib.sha256("\0".join((task, number, str(task_id))).encode()).hexdigest()
        names.append(f"series-{key[:16]}")
    # Tasks of other users may name the same search; and after `db restore` trials get numbers again that other points
    # had, whose checkpoints may be here. A server that names no user has no such folder.
    life, owner = task_id // LIFE, hashlib.sha256(user.encode()).hexdigest()[:12]
    group = f"{owner}.{life}" if user or life else ""
    return KeptCheckpoint(root / group / uid, tuple(names), task_id, number, tuple(levels))


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
    if (folder / name).is_symlink():
        return  # the payload made it, and it may lead to files that only the pilot can read
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
_LEVEL_PATIENCE = 120.0  # the same for a checkpoint that a later trial goes on from
_SHARE = 19  # the pause after an upload is this many times its length, so uploads take 1/20 of the time
_LOOK = 0.5  # seconds between looks at whether the pilot ends
_AT_ONCE = 4  # simultaneous uploads of attempts that end


@dataclass
class _Shipment:
    """The uploads of a running job.

    Attributes:
        shipped: files that the server has.
        has_sent: whether it has any from this attempt.
        lock: held during an upload.
        is_over: no more uploads.
        is_dropped: the uploaded checkpoint is to be deleted.
    """

    job: Job
    kept: KeptCheckpoint
    shipped: Signature = ()
    has_sent: bool = False
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
        self._ends = threading.Event()
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
        kept = kept_checkpoint(job, self._settings.checkpoint_root)
        if kept is None:
            return
        fetched = bool(self._limit) and self._may_have(job) and self._fetch(job, kept)
        for level in kept.levels:
            fetched |= self._go_on(job, kept, level)
        if not self._limit and not kept.levels:
            return
        shipment = _Shipment(job, kept)
        with suppress(OSError):  # what is not known to be there is sent again
            shipment.shipped = kept.signature() if fetched else ()
        with self._changed:
            self._shipments[job.identity] = shipment
            if not repeats or not self._limit:
                return
            heapq.heappush(self._due, (time.monotonic() + self._settings.checkpoint_every, job.identity))
            self._changed.notify_all()

    def keep(self, job: Job, failure: JobFailure | None) -> bool:
        """Uploads the last checkpoint of an attempt without a result, unless the server killed the job.

        Returns:
            Whether a checkpoint of this attempt is stored.
        """
        killed = failure is not None and failure.code is PilotErrorCode.PANDA_KILL
        if (shipment := self._take(job.identity)) is None or not self._limit or killed:
            return False
        while not self._uploading.acquire(timeout=_LOOK):
            if self._ends.is_set():
                return shipment.has_sent
        try:
            if not self._ends.is_set():
                self._ship(shipment, patience=_PATIENCE)
        finally:
            self._uploading.release()
        return shipment.has_sent

    def keeps_level(self, job: Job) -> bool:
        """Returns whether `finish` may upload a checkpoint."""
        with self._changed:
            shipment = self._shipments.get(job.identity)
        levels = shipment.kept.levels if shipment is not None else ()
        return self._stores_levels(job) and any(level.is_kept for level in levels)

    def finish(self, job: Job, failed: Collection[tuple[int, int]] = ()) -> dict[tuple[int, int], str]:
        """Keeps or deletes the checkpoint of a job that has its result, before that is reported.

        Args:
            job: the job.
            failed: (trial, fold) of its points without a figure of merit; no later trial goes on from them.

        Returns:
            Why a checkpoint that a later trial may go on from is not kept, by (trial, fold).
        """
        with self._changed:
            shipment = self._shipments.get(job.identity)
        if shipment is None:
            return {}
        shipment.is_dropped = True
        if not shipment.kept.levels:
            self._take(job.identity)
            if shipment.lock.acquire(blocking=False):  # otherwise it is being uploaded, and then deleted
                shipment.lock.release()
                self._delete(shipment)
        unkept = {}
        for level in shipment.kept.levels:
            member = (level.trial, level.fold)
            if level.is_kept and member not in failed and (why := self._keep_level(job, shipment.kept, level)):
                log.warning("job %s: %s", job.panda_id, why)
                unkept[member] = why
        return unkept

    def drop(
        self, job: Job, failed: Collection[tuple[int, int]] = (), unkept: Collection[tuple[int, int]] = ()
    ) -> None:
        """Deletes checkpoints that no trial needs, after the result of a job with levels was reported.

        Args:
            job: the job.
            failed: (trial, fold) without a figure of merit.
            unkept: (trial, fold) whose checkpoint is only here.
        """
        shipment = self._take(job.identity)
        if shipment is None or not shipment.kept.levels:
            return
        for level in shipment.kept.levels:
            member = (level.trial, level.fold)
            if member in failed and level.chain != level.trial:
                # A later trial repeats this one from the same earlier one, and not from what has failed.
                shutil.rmtree(shipment.kept.folder / level.name, ignore_errors=True)
            if member in failed or member in unkept or not shipment.kept.of(level.name).signature():
                continue  # a later trial goes on from an earlier one
            # Here it is not needed if it is stored elsewhere.
            shipment.kept.forget(level, own=not level.is_kept or self._stores_levels(job))
            if not level.is_kept and self._stores_levels(job):
                self._delete(shipment, level)
        self._delete(shipment)

    def _delete(self, shipment: _Shipment, level: Level | None = None) -> None:
        job = shipment.job
        if not self._limit or (level is None and job.attempt <= 1 and not shipment.shipped):
            return
        try:
            self._remove(shipment.kept, level)
        except HpoPilotError as error:  # the server has none, or will remove it later
            log.debug("the checkpoint of job %s stays at the server: %s", job.panda_id, error)

    def end(self) -> None:
        """Waits for no server any more, because the pilot ends: a result must not be lost for its checkpoint."""
        self._ends.set()

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
                continue
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
                with tempfile.NamedTemporaryFile(dir=self._settings.jobs_folder) as packed:
                    signature = shipment.kept.pack(packed, self._limit)
                    size = packed.tell()
                    packed.flush()
                    retried(lambda: self._upload(shipment.kept, packed), patience, self._ends)
                shipment.shipped, shipment.has_sent = signature, True
                log.debug("the checkpoint of job %s is stored: %.1f MB", job.panda_id, size / 1e6)
            except FilesChanging:
                return _UNSETTLED
            except CheckpointTooLarge:
                shipment.is_over = True
                remedy = ": raise --checkpoint-mb, or name a folder that all pilots share with --checkpoints"
                log.warning(
                    "the checkpoint of job %s has more than %d MB packed, and is only in %s%s",
                    *(job.panda_id, self._limit >> 20, self._settings.checkpoint_root),
                    "" if self._settings.agent else remedy,  # the limit of agents is fixed
                )
            except (TryAgainError, InputError) as error:  # no answer, or the token is refused for now
                log.info("the checkpoint of job %s is not at the server yet: %s", job.panda_id, error)
            except (HpoPilotError, TransformationFailure) as error:
                shipment.is_over = True
                log.warning("the checkpoint of job %s is not sent: %s", job.panda_id, error)
            except OSError as error:
                log.warning("the checkpoint of job %s cannot be packed: %s", job.panda_id, error)
            return every

    def _fetch(self, job: Job, kept: KeptCheckpoint) -> bool:
        """Downloads the checkpoint; returns whether it was placed in the folder."""
        try:
            with tempfile.NamedTemporaryFile(dir=self._settings.jobs_folder) as packed:
                found = retried(lambda: self._download(kept, packed), _PATIENCE)
                packed.flush()
                if found and kept.place(Path(packed.name), UNPACKED_LIMIT):
                    log.info("job %s goes on from the checkpoint of an earlier attempt", job.panda_id)
                    return True
        except (HpoPilotError, TransformationFailure, OSError) as error:
            log.warning("job %s does not get the checkpoint of the previous attempt: %s", job.panda_id, error)
        return False

    # --- levels ---

    def _go_on(self, job: Job, kept: KeptCheckpoint, level: Level) -> bool:
        """Gets the checkpoint from which a trial goes on; returns whether it was placed in the folder."""
        placed = False
        try:
            if self._stores_levels(job) and (level.chain != level.trial or job.attempt > 1):
                with tempfile.NamedTemporaryFile(dir=self._settings.jobs_folder) as packed:
                    found = retried(lambda: self._download(kept, packed, level), _LEVEL_PATIENCE)
                    packed.flush()
                    placed = found and kept.place_level(Path(packed.name), UNPACKED_LIMIT, level)
            placed |= kept.go_on(level)
        except (HpoPilotError, TransformationFailure, OSError) as error:
            log.warning("job %s does not get the checkpoint of trial %d: %s", job.panda_id, level.chain, error)
        if placed:
            log.info("job %s goes on from a checkpoint of trial %d", job.panda_id, level.chain)
        return placed

    def _keep_level(self, job: Job, kept: KeptCheckpoint, level: Level) -> str:
        """Stores the checkpoint from which a later trial goes on; returns why it is not stored."""
        own = kept.of(level.name)
        if not self._stores_levels(job) or not own.signature():
            return ""  # in the folder that pilots share; or the payload has left none
        try:
            with tempfile.NamedTemporaryFile(dir=self._settings.jobs_folder) as packed:
                own.pack(packed, self._limit)
                packed.flush()
                retried(lambda: self._upload(kept, packed, level), _LEVEL_PATIENCE, self._ends)
                return ""
        except CheckpointTooLarge:
            why = f"it has more than {self._limit >> 20} MB packed (--checkpoint-mb of the pilot)"
        except (HpoPilotError, TransformationFailure, FilesChanging, OSError) as error:
            why = str(error) or "its files are still being written"
        return f"the checkpoint is not kept, and a later level would be trained from the start: {why}"

    # --- where the checkpoints are stored: at the server ---

    def _stores_levels(self, job: Job) -> bool:
        """Returns whether other tasks find the checkpoints; other servers than ours keep them for one task alone."""
        return bool(self._limit) and job.server_stores

    def _may_have(self, job: Job) -> bool:
        """Returns whether there may be a checkpoint of an earlier attempt."""
        return job.attempt > 1

    def _upload(self, kept: KeptCheckpoint, packed: IO[bytes], level: Level | None = None) -> None:
        """Stores an archive: of the whole job for its next attempt, or of a trial for later ones of its chain."""
        self._server.upload_checkpoint(kept.task_id, _sub_id(kept, level), packed)

    def _download(self, kept: KeptCheckpoint, packed: IO[bytes], level: Level | None = None) -> bool:
        """Writes the stored archive, with a level the newest of its chain; False: there is none."""
        return self._server.download_checkpoint(kept.task_id, _sub_id(kept, level), packed, self._limit)

    def _remove(self, kept: KeptCheckpoint, level: Level | None = None) -> None:
        """Deletes the stored archive."""
        self._server.delete_checkpoint(kept.task_id, _sub_id(kept, level))


def _trial(name: str, level: Level) -> int:
    """Returns the number of the trial in the name of a folder of its chain."""
    return int(name.partition(".")[2] or level.chain)


def _sub_id(kept: KeptCheckpoint, level: Level | None) -> str:
    return kept.number if level is None else f"{kept.number}.t{level.trial}f{level.fold}"


def remove_old(root: Path) -> None:
    """Deletes the checkpoints of searches whose jobs have left none in a folder for 30 days."""
    try:
        for search in search_folders(root):
            every = list(search.glob("*"))
            ours = [path for path in every if _OURS.fullmatch(path.name)]
            if (ours or not every) and max(
                path.stat().st_mtime for path in (search, *ours)
            ) < time.time() - _KEPT_SECONDS:
                log.info("the checkpoints in %s are removed: none has come for 30 days", search)
                for path in ours:
                    shutil.rmtree(path, ignore_errors=True)
                remove_empty(search)
    except OSError as error:  # another pilot may use the folder
        log.info("old checkpoints are not removed: %s", error)
