"""Archives as users and jobs send them, hostile ones too."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    """A member of an archive: a file of `size` zeros, or what `kind` says."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """A packed archive of files with these contents."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as packed:
        for name, text in files.items():
            packed.addfile(member(name, size=len(text)), io.BytesIO(text))
    return content.getvalue()


def archive(*members: tarfile.TarInfo) -> bytes:
    """A packed archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for one in members:
            packed.addfile(one, io.BytesIO(bytes(one.size)))
    return content.getvalue()
