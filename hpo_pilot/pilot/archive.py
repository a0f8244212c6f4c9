"""Unpacking what strangers packed.

Refused, each with its reason: absolute names, `..`, links that lead out, devices and pipes, too many members, too many
bytes unpacked, headers that eat memory, and whatever is no archive.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from hpo_pilot.errors import InputError

_MEMBERS = 100_000
_HEADER = 1 << 20  # bytes: tarfile reads contents in small pieces, only the extended headers in one


class UnsafeArchive(InputError):
    """The archive is refused; nothing of it is used."""


class _Guarded(gzip.GzipFile):
    """Unpacked bytes, as long as they are no more than was allowed."""

    allowed = 0

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size > _HEADER:
            raise UnsafeArchive(f"a header of {size} bytes")
        data = super().read(size)
        if self.tell() > self.allowed:
            raise UnsafeArchive(f"more than {self.allowed >> 20} MB unpacked")
        return data


def unpack(archive: Path, target: Path, limit: int) -> None:
    """Unpacks a .tar.gz into an empty folder.

    Args:
        archive: the file.
        target: exists, and is empty.
        limit: bytes that its contents may have, unpacked.

    Raises:
        UnsafeArchive: it is refused; `target` may hold a part of it.
        OSError: the disk.
    """
    total = 0
    try:
        with _Guarded(archive) as raw:
            raw.allowed = limit + (limit >> 3) + (1 << 20)  # tar's own blocks
            with tarfile.open(fileobj=raw, mode="r:") as members:
                for count, member in enumerate(members):
                    total += member.size
                    _check(member)
                    if count >= _MEMBERS or total > limit:
                        raise UnsafeArchive(f"more than {_MEMBERS} members or {limit >> 20} MB")
                    members.extract(member, target, filter="data")
    except (tarfile.TarError, UnsafeArchive, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnsafeArchive(f"{archive.name} is refused: {error or type(error).__name__}") from error


def _check(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise UnsafeArchive(f"{member.name!r} leads out of the folder")
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive(f"{member.name!r} is neither file, folder nor link")
