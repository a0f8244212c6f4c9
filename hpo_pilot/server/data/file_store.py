"""Files on disk: sandboxes in ``cache/``, jobs' outputs and logs in ``storage/``.

A file appears under its name whole or not at all: it is written beside and renamed. Names come from outside, so they
are single, plain path components or refused.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hpo_pilot.errors import InputError

MB = 1024 * 1024
SOURCES_LIMIT = 768 * MB  # of sandboxes called sources.*
CACHE_LIMIT = 10 * MB  # of other cache files
LOG_LIMIT = 100 * MB  # of cache files called *.out
CHECKPOINT_LIMIT = 500 * MB  # of one hyper-parameter point's checkpoint
STORAGE_LIMIT = 4096 * MB  # of one output

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+:@=-]{0,199}")
CHECKPOINT_START = "hpo_cp_"
_CHECKPOINT_IDS = re.compile(r"(\d{1,18})_([A-Za-z0-9.-]{1,100})", re.ASCII)
_DIGEST_NAME = re.compile(r"sources\.([0-9a-f]{64})(?:\.\d+)?\.tar\.gz")  # of hpo-pilot's sandboxes
_PART = ".part"  # no finished file ends so: see `is_safe`


class FileRefused(Exception):
    """The file is not taken; the message says why."""


def is_safe(name: str) -> bool:
    """True for a name that is one plain path component: no folder, no hidden file, nothing odd."""
    return _NAME.fullmatch(name) is not None and not name.endswith(_PART)


def plain_name(name: str) -> str:
    """The file's name without the folders that its sender may have named."""
    return name.rsplit("/", 1)[-1]


def checkpoint_name(task_id: str, sub_id: str) -> str | None:
    """The cache file of a hyper-parameter point's checkpoint; None: these are no ids."""
    return f"{CHECKPOINT_START}{task_id}_{sub_id}" if _CHECKPOINT_IDS.fullmatch(f"{task_id}_{sub_id}") else None


def checkpoint_task(name: str) -> int:
    """The task of a cache file that `checkpoint_name` names."""
    return int(name.removeprefix(CHECKPOINT_START).partition("_")[0])


def is_sandbox_name(name: str) -> bool:
    """Whether users may upload under this name: jobs take what is called a checkpoint for their own."""
    return is_safe(name) and not name.startswith(CHECKPOINT_START)


def cache_limit(name: str) -> int:
    """Bytes that a cache file of this name may have."""
    if name.endswith(".out"):
        return LOG_LIMIT
    return SOURCES_LIMIT if name.startswith("sources.") else CACHE_LIMIT


class Folder:
    """A folder of files with safe names."""

    def __init__(self, path: Path) -> None:
        """Makes the folder, for its owner alone, and removes what a killed server left half-written.

        Raises:
            InputError: it cannot be written.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in path.glob(f"*{_PART}"):
                left.unlink()
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; name a writable folder with --files") from error

    def find(self, name: str) -> Path | None:
        """The file of this name; None: there is none, or the name is not safe."""
        path = self.path / name
        return path if is_safe(name) and path.is_file() else None

    def __iter__(self) -> Iterator[Path]:
        return (path for path in self.path.iterdir() if is_safe(path.name) and path.is_file())

    def remove(self, name: str) -> bool:
        """Removes a file.

        Returns:
            False: there was none.
        """
        if (path := self.find(name)) is None:
            return False
        path.unlink(missing_ok=True)
        return True

    @contextmanager
    def writing(self) -> Iterator[Upload]:
        """A file that is being written; it is gone afterwards unless `Upload.keep` was called."""
        part = self.path / f"{os.urandom(12).hex()}{_PART}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        upload = Upload(self.path, part, os.fdopen(descriptor, "wb"))
        try:
            yield upload
        finally:
            # Before it is closed, for closing may fail on a full disk.
            part.unlink(missing_ok=True)
            upload.stream.close()


class Upload:
    """A file on its way in."""

    def __init__(self, folder: Path, part: Path, stream: BinaryIO) -> None:
        self._folder = folder
        self._part = part
        self.stream = stream
        self.size = 0
        self._tail = b""

    def write(self, chunk: bytes, limit: int) -> None:
        """Appends.

        Raises:
            FileRefused: the file has grown above `limit` bytes.
        """
        self.size += len(chunk)
        if self.size > limit:
            raise FileRefused(f"Exceeded size limit {self.size // MB} MB > {limit // MB} MB.")
        self.stream.write(chunk)
        self._tail = (self._tail + chunk)[-8:]

    def is_named_rightly(self, name: str) -> bool:
        """False for a name that is another content's digest; reads the file, so it is not for the event loop."""
        match = _DIGEST_NAME.fullmatch(name)
        if match is None:
            return True
        self.stream.flush()
        with self._part.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest() == match[1]

    def keep(self, name: str) -> None:
        """Puts the file in its place, over an older one of the same name."""
        self.stream.close()
        self._part.replace(self._folder / name)

    @property
    def checksum(self) -> str | None:
        """The CRC in a gzip file's footer, which is what panda-client compares; None: the file is too short."""
        return str(struct.unpack("II", self._tail)[0]) if len(self._tail) == 8 else None


def checksum_of(path: Path) -> str | None:
    """`Upload.checksum` of a file that is there already."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - 8))
        tail = stream.read(8)
    return str(struct.unpack("II", tail)[0]) if len(tail) == 8 else None


async def receive(chunks: AsyncIterator[bytes], upload: Upload, limit: int) -> None:
    """Writes a request's body into a file.

    Raises:
        FileRefused: it is above `limit` bytes.
    """
    async for chunk in chunks:
        if chunk:
            upload.write(chunk, limit)
