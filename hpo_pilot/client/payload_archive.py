"""A payload's folder, packed to be sent to a service."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.panda.sandbox import SIZE_LIMIT, add_file, payload_files


@dataclass(frozen=True)
class PayloadArchive:
    """A packed folder.

    Attributes:
        path: the archive, a .tar.gz.
        digest: its SHA-256, hexadecimal: the same files give the same one.
        size: bytes.
    """

    path: Path
    digest: str
    size: int


@contextmanager
def packed_payload(folder: Path, *, without: Path | None = None) -> Iterator[PayloadArchive]:
    """Packs a payload's folder for the length of a block.

    Only the files: what makes a sandbox of them, the runner above all, is the service's own.

    Args:
        folder: the payload's.
        without: a file that is left out: the search file.

    Raises:
        InputError: the folder cannot be read, is too large, or has a file or link that a payload may not have.
        TryAgainError: there is no room for the archive.
    """
    with tempfile.TemporaryDirectory(prefix="hpo-pilot-") as scratch:
        path = Path(scratch, "payload.tar.gz")
        try:
            with (
                path.open("wb") as raw,
                gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for name, file in payload_files(folder, without):
                    add_file(archive, name, file)
            size = path.stat().st_size
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise TryAgainError(f"cannot pack {folder} in {scratch}: {error.strerror or error}") from error
        if size > SIZE_LIMIT:
            raise InputError(
                f"payload.files: {folder} packs to {size / 1e6:.0f} MB, and PanDA takes at most "
                f"{SIZE_LIMIT / 1e6:.0f} MB: move data out of it and name it under payload.inputs"
            )
        yield PayloadArchive(path, digest, size)
