"""Payloads that users sent: kept by their content until a search is made of them."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.server.file_store import FileRefused, Folder
from hpo_pilot.transformation.sandbox import UnsafeArchive, unpack
from hpo_pilot.web.api_errors import ApiError

DIGEST = re.compile(r"[0-9a-f]{64}")

#: Seconds after which an upload that nobody asked for is removed, and for which the next part of one is waited.
_KEEP = 24 * 3600.0
_PATIENCE = 60.0

#: How many uploads of the largest size are held; then the oldest go.
_HELD = 10


class Uploads:
    """The archives of one work folder, by the SHA-256 of their bytes."""

    def __init__(self, folder: Path, limit: int, unpacked_limit: int) -> None:
        """Opens the folder, made if need be.

        Args:
            folder: where they are.
            limit: bytes that one may have.
            unpacked_limit: bytes that its files may have.

        Raises:
            InputError: it cannot be written.
        """
        self._folder = Folder(folder)
        self.limit = limit
        self._unpacked_limit = unpacked_limit
        for left in folder.iterdir():  # what a killed process was unpacking
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)

    def has(self, digest: str) -> bool:
        """Whether it is here; then it stays for another day."""
        path = self._folder.find(_name(digest))
        if path is None:
            return False
        path.touch()
        return True

    async def receive(self, digest: str, size: int | None, parts: AsyncIterator[bytes]) -> None:
        """Takes an archive.

        Args:
            digest: of its bytes.
            size: as its sender announces it.
            parts: its bytes.

        Raises:
            ApiError: it is too large, or not what its digest says.
            TryAgainError: there is no room for it, or its sender is silent.
        """
        if size is not None and size > self.limit:
            raise self._too_large()
        self._make_room(size or self.limit)
        content = hashlib.sha256()
        try:
            with self._folder.writing() as upload:
                async for part in _in_time(parts):
                    content.update(part)
                    upload.write(part, self.limit)
                if content.hexdigest() != digest:
                    raise ApiError(422, "input", f"the payload's bytes are not those of {digest}: send it again")
                upload.keep(_name(digest))
        except FileRefused:
            raise self._too_large() from None
        except OSError as error:
            raise TryAgainError(f"the service cannot store the payload: {error.strerror}") from error

    @contextmanager
    def unpacked(self, digest: str) -> Iterator[Path]:
        """The folder that was sent, for the length of a block.

        Raises:
            InputError: it is not here, or no safe archive.
            TryAgainError: there is no room for it.
        """
        archive = self._folder.find(_name(digest))
        if archive is None:
            raise InputError(f"there is no payload {digest} (any more): send it again")
        # Half of what is free: the sandbox that is made of it needs some, and so do others.
        room = min(self._unpacked_limit, shutil.disk_usage(archive.parent).free // 2)
        with tempfile.TemporaryDirectory(dir=self._folder.path) as scratch:
            target = Path(scratch, "payload")
            target.mkdir()
            try:
                unpack(str(archive), str(target), room)
            except UnsafeArchive as error:
                raise InputError(f"the payload is refused: {error}") from error
            except OSError as error:
                raise TryAgainError(f"the service cannot unpack the payload: {error.strerror}") from error
            yield target

    def _make_room(self, size: int) -> None:
        now, kept = time.time(), size
        for when, held, path in sorted((*_age_and_size(path), path) for path in self._folder)[::-1]:
            kept += held
            if now - when > _KEEP or kept > _HELD * self.limit:
                path.unlink(missing_ok=True)  # whoever still wants it sends it again
        free = shutil.disk_usage(self._folder.path).free
        if free - size < PilotSettings.min_free_mb * 1_000_000:
            raise TryAgainError("the service's disk is nearly full: ask whoever runs it, or try again later")

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            "too_large",
            f"the payload is above {self.limit / 1e6:.0f} MB: move data out of it and name it under payload.inputs",
        )


def _age_and_size(path: Path) -> tuple[float, int]:
    try:
        status = path.stat()
    except FileNotFoundError:  # another call has just removed it
        return 0.0, 0
    return status.st_mtime, status.st_size


def _name(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise ApiError(422, "input", "a payload is named by its SHA-256, 64 hexadecimal digits")
    return f"{digest}.tar.gz"


async def _in_time(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise TryAgainError(f"no byte of the payload came for {_PATIENCE:.0f} s: send it again") from None
        yield part
