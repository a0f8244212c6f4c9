"""The checkpoints of one job's points as files here, and as an archive on their way to another pilot."""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import json
import os
import re
import secrets
import shutil
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hpo_pilot.pilot.job import Job
from hpo_pilot.transformation.archive import unpack

#: What a job of ours runs; see `hpo_pilot_runner.py` and `hpo_pilot_series.py`, which name the folders below.
_RUNNER = re.compile(r"hpo_pilot_runner\.py --task ([A-Za-z0-9_=-]+) --number (\d{1,9})\b")
_UID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TABLE_LIMIT = 32 << 20  # bytes of a task's points, unpacked

#: A copy that the runner is making, and the one before the last.
_NEW, _OLD, _KEPT = ".new", ".old", ".kept"

_FETCHED = ".fetched-"  # where archives are unpacked
_STALE = 3600.0  # seconds after which a pilot that was unpacking there has died

#: Every file with bytes and time of its last change, in ns.
Signature = tuple[tuple[str, int, int], ...]


class TooLarge(Exception):
    """The archive would be larger than is allowed."""


class Unsettled(Exception):
    """The files changed while they were packed."""


@dataclass(frozen=True)
class KeptCheckpoint:
    """Where the checkpoints of one job's points are.

    Attributes:
        folder: of the search, in a pilot's folder of checkpoints; perhaps not there yet.
        names: of the folders in it: one for each point, and of a job of several points its own.
        task_id: JEDI's number of the job's task.
        number: which of the task's jobs it is: all its attempts have the same.
    """

    folder: Path
    names: tuple[str, ...]
    task_id: int
    number: str

    def signature(self) -> Signature:
        """What is there now."""
        return tuple(sorted(entry for name in self.names for entry in _files(self.folder, name)))

    def pack(self, target: BinaryIO, limit: int) -> Signature:
        """Writes the archive.

        Args:
            target: where to.
            limit: bytes that it may have.

        Returns:
            What is in it.

        Raises:
            TooLarge: it would have more.
            Unsettled: something is being written: later.
            OSError: a file went away, or the disk.
        """
        before = self.signature()
        with (
            gzip.GzipFile(fileobj=_Limited(target, limit), mode="wb", filename="", compresslevel=1) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, _, _ in before:
                archive.add(self.folder / name, name, recursive=False)
        if self.signature() != before:
            raise Unsettled
        return before

    def place(self, archive: Path, limit: int) -> bool:
        """Puts what is in an archive in its place, where it is newer than what is there.

        Args:
            archive: what `pack` wrote, or what somebody says is that.
            limit: bytes that it may have unpacked.

        Returns:
            Whether anything was put there.

        Raises:
            UnsafeArchive: it is not what it should be; nothing was changed.
            OSError: the disk.
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
            return False  # a payload whose pilot died is saving its last state there, which is newer
        finally:
            os.close(lock)


def kept_checkpoint(job: Job, root: Path) -> KeptCheckpoint | None:
    """Where a job's checkpoints are below `root`; None: it is no job of a search."""
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
    """Writes no more than is allowed."""

    def __init__(self, target: BinaryIO, limit: int) -> None:
        self._target, self._left = target, limit

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()


def _files(folder: Path, name: str) -> Iterator[tuple[str, int, int]]:
    """The files of one point's folder: whole copies, and what the payload itself keeps there."""
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
    """When the newest file of a point was changed, in ns; None: there is none."""
    # Archives have their times to the microsecond at least, some file systems to less.
    return max((changed // 1000 for _, _, changed in _files(folder, name)), default=None)
