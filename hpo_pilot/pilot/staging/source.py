"""Files and folders on shared storage that nodes copy."""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_FILES = 500_000  # of a folder


class GivenUp(Exception):
    """Nobody wants it any more."""


class TooLarge(Exception):
    """It is not copied, and the message says why."""


@dataclass(frozen=True)
class Source:
    """One file, or a folder as one archive.

    Attributes:
        path: where it is on shared storage.
        name: of the copy.
        key: of the copy: other contents have another one. It ends in `-SIZE`.
        size: of the copy, in bytes.
        mtime_ns: of the file, by which it is the same while it is copied.
        archive: of a folder; None: it is a file.
    """

    path: Path
    name: str
    key: str
    size: int
    mtime_ns: int
    archive: Path | None = None

    @property
    def wanted(self) -> dict[str, Any]:
        """As hpo_pilot_stage.py is told of it."""
        source = str(self.archive or self.path)
        said = {"key": self.key, "name": self.name, "source": source, "size": self.size}
        return {**said, "mtime_ns": self.mtime_ns, "is_archive": self.archive is not None}


class Sources:
    """Those of one allocation.

    A folder travels as one archive, made when it is first wanted: a thousand nodes that open each of an image's files
    would be too much for any shared storage. What it holds counts as it was then.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """Prepares.

        Args:
            folder: for archives; it is there.
            limit: bytes of the largest that is copied.
        """
        self._folder, self._limit = folder, limit
        self._lock = threading.Lock()
        self._packing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._sizes: dict[str, int] = {}
        self._refused: dict[str, str] = {}

    def find(self, path: Path, is_over: Callable[[], bool]) -> Source:
        """A file or folder, ready to be copied.

        Args:
            path: of it; links to it are followed.
            is_over: says whether it is wanted no more.

        Raises:
            TooLarge: it is not to be copied.
            OSError: it cannot be read, or packed.
            GivenUp: it is wanted no more.
        """
        name, path = path.name, Path(os.path.realpath(path))
        about = path.stat()
        mark = f"{about.st_dev}:{about.st_ino}:{about.st_mtime_ns}:"
        if not path.is_dir():
            if about.st_size > self._limit:
                raise TooLarge(f"it has {about.st_size >> 20} MB, more than --staging-mb")
            return Source(path, name, _key(f"{mark}{about.st_size}", about.st_size), about.st_size, about.st_mtime_ns)
        archive = self._folder / f"{_digest(mark)}.tar"
        with self._lock:
            packing = self._packing[mark]
        with packing:
            if mark in self._refused:
                raise TooLarge(self._refused[mark])
            try:
                if mark not in self._sizes:
                    check_size(path, self._limit)
                    self._sizes[mark] = _pack(path, archive, is_over)
            except (TooLarge, OSError) as error:
                self._refused[mark] = str(error)  # the next job need not look again
                raise
            return Source(path, name, _key(mark, self._sizes[mark]), self._sizes[mark], about.st_mtime_ns, archive)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _key(text: str, size: int) -> str:
    return f"{_digest(text)}-{size}"


def check_size(folder: Path, limit: int) -> None:
    """Looks no further than it must: a folder may be a data set of any size.

    Raises:
        TooLarge: it is too large, or has too many files.
    """
    size = count = 0
    for where, _, names in os.walk(folder):
        for name in names:
            size += Path(where, name).lstat().st_size
        count += len(names)
        if size > limit:
            raise TooLarge(f"it has more than --staging-mb, {limit >> 20} MB")
        if count > _MOST_FILES:
            raise TooLarge(f"it has more than {_MOST_FILES} files")


def _pack(folder: Path, archive: Path, is_over: Callable[[], bool]) -> int:
    """Packs a folder; returns the bytes of its files. Pipes, sockets and devices are left out: nobody can copy them."""
    size = 0

    def taken(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal size
        if is_over():
            raise GivenUp
        size += info.size
        return info if info.isreg() or info.isdir() or info.issym() or info.islnk() else None

    part = archive.with_suffix(".part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as packed:
            packed.add(folder, "", filter=taken)
        part.rename(archive)
    finally:
        part.unlink(missing_ok=True)
    return size
