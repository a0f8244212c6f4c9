"""Archives as users and jobs send them, hostile ones too."""

from __future__ import annotations

import io
import tarfile


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    """A member of an archive: a file of `size` zeros, or what `kind` says."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


def archive(*members: tarfile.TarInfo) -> bytes:
    """A packed archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        for one in members:
            packed.addfile(one, io.BytesIO(bytes(one.size)))
    return content.getvalue()
