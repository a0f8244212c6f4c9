"""Unpacking what strangers packed.

Refused, each with its reason: absolute names, `..`, links that lead out, devices and pipes, too many members, too many
bytes unpacked, headers that eat memory, and whatever is no archive.
"""

import errno
import gzip
import os
import tarfile
import zlib
from typing import Any, Dict, Optional

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

_MEMBERS = 100000
_HEADER = 1 << 20  # bytes: tarfile reads contents in small pieces, only the extended headers in one

_IMPOSSIBLE = frozenset([errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL])

#: Python's own filter, where it has one (3.12, and the security releases before); `_check` does not rely on it.
_FILTER: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class UnsafeArchive(TransformationFailure):
    """The archive is refused; nothing of it is used."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitCode.BAD_SANDBOX, message)


class _Guarded(gzip.GzipFile):
    """Unpacked bytes, as long as they are no more than was allowed."""

    allowed = 0

    def read(self, size: Optional[int] = -1) -> bytes:
        if size is None or size > _HEADER:
            raise UnsafeArchive("a header of %s bytes" % size)
        data = super().read(size)
        if self.tell() > self.allowed:
            raise UnsafeArchive("more than %d MB unpacked" % (self.allowed >> 20))
        return data


def unpack(archive: str, target: str, limit: int) -> None:
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
    root = os.path.realpath(target)
    try:
        with _Guarded(archive) as raw:
            raw.allowed = limit + (limit >> 3) + (1 << 20)  # tar's own blocks
            with tarfile.open(fileobj=raw, mode="r:") as members:
                for count, member in enumerate(members):
                    total += member.size
                    _check(member, root)
                    if count >= _MEMBERS or total > limit:
                        raise UnsafeArchive("more than %d members or %d MB" % (_MEMBERS, limit >> 20))
                    # What `filter="data"` does with modes: no set-user-id, no writing by others, readable by the owner.
                    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)
                    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
                    members.extract(member, root, **_FILTER)
    except (tarfile.TarError, UnsafeArchive, EOFError, zlib.error, KeyError, RecursionError, ValueError) as error:
        # The last three are how tarfile meets links to themselves and names that no file can have.
        raise _refused(archive, error) from error
    except OSError as error:
        # No number: gzip's own "Not a gzipped file". The others: its members cannot be, whatever the disk.
        if error.errno is None or error.errno in _IMPOSSIBLE:
            raise _refused(archive, error) from error
        raise


def _refused(archive: str, error: Exception) -> UnsafeArchive:
    return UnsafeArchive("%s is refused: %s" % (os.path.basename(archive), error or type(error).__name__))


def _check(member: tarfile.TarInfo, root: str) -> None:
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts:
        raise UnsafeArchive("%r leads out of the folder" % member.name)
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeArchive("%r is neither file, folder nor link" % member.name)
    # Earlier members may be links: where does this one really go?
    folder = os.path.realpath(os.path.join(root, *parts[:-1]))
    where = [folder]
    if member.issym():
        where.append(os.path.realpath(os.path.join(folder, member.linkname)))
    elif member.islnk():
        where.append(os.path.realpath(os.path.join(root, member.linkname)))
    else:
        where.append(os.path.realpath(os.path.join(root, member.name)))
    for path in where:
        if path != root and not path.startswith(root + os.sep):
            raise UnsafeArchive("%r leads out of the folder, through a link" % member.name)
