"""Sandboxes: fetched once, unpacked once, copied for each job."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
from collections import defaultdict
from pathlib import Path

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot.client import JobServer
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.transformation.archive import unpack
from hpo_pilot.transformation.arguments import Arguments
from hpo_pilot.transformation.failure import TransformationFailure

log = logging.getLogger(__name__)

#: Our own archives carry their contents' checksum in their name; prun's do not.
_CHECKED = re.compile(r"sources\.([0-9a-f]{64})\.tar\.gz")


class SandboxCache:
    """Unpacked sandboxes by name, the least recently used going first when they grow too large.

    Several pilots may share the folder: a sandbox appears under its name complete, and is moved away before it is
    deleted.
    """

    def __init__(self, folder: Path, server: JobServer, *, limit_mb: int, unpack_mb: int) -> None:
        """Makes the folder.

        Args:
            folder: of the cache.
            server: to fetch from.
            limit_mb: size of all of it.
            unpack_mb: size of one sandbox, unpacked.
        """
        self._folder, self._server = folder, server
        self._limit, self._unpack_limit = limit_mb << 20, unpack_mb << 20
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._sizes: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def copy_to(self, arguments: Arguments, target: Path, large: int = 0) -> list[Path]:
        """Fills a job's folder with its sandbox.

        Args:
            arguments: of the job.
            target: its folder, which is empty.
            large: bytes from which on a file is not copied, but a link to the cache's, until `stage` has decided; 0:
                all are copied.

        Returns:
            Those links.

        Raises:
            JobFailure: the sandbox does not come or is refused; the message says why.
        """
        if arguments.library:
            raise JobFailure(
                PilotErrorCode.STAGE_IN_FAILED,
                f"the job wants {arguments.library}, which a build job made, and this pilot fetches sandboxes alone",
            )
        linked: list[Path] = []
        for last_try in (False, True) if arguments.archive else ():
            try:
                copy_tree(self._unpacked(arguments), target, large, linked)
                break
            except FileNotFoundError as error:  # another pilot moved it away between look-up and copy
                if last_try:
                    raise JobFailure(PilotErrorCode.STAGE_IN_FAILED, f"{arguments.archive}: {error}") from error
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                code = PilotErrorCode.NO_LOCAL_SPACE if full else PilotErrorCode.STAGE_IN_FAILED
                raise JobFailure(code, f"{arguments.archive}: {error}") from error
            except (HpoPilotError, TransformationFailure) as error:
                raise JobFailure(PilotErrorCode.STAGE_IN_FAILED, str(error)) from error
        return linked

    def _unpacked(self, arguments: Arguments) -> Path:
        folder = self._folder / arguments.archive
        with self._locks[arguments.archive]:
            if folder.is_dir():
                os.utime(folder)
                return folder
            new = self._folder / f".{arguments.archive}.{os.getpid()}"
            packed = new.with_name(new.name + ".tar.gz")
            shutil.rmtree(new, ignore_errors=True)
            try:
                with packed.open("wb") as file:
                    self._server.download(arguments.source_url, arguments.archive, file, self._unpack_limit)
                self._check(arguments.archive, packed)
                new.mkdir()
                unpack(str(packed), str(new), self._unpack_limit)
                try:
                    new.rename(folder)
                except OSError:  # another pilot was quicker
                    if not folder.is_dir():
                        raise
            finally:
                packed.unlink(missing_ok=True)
                shutil.rmtree(new, ignore_errors=True)
            log.info("sandbox %s fetched", arguments.archive)
            self._make_room(keep=arguments.archive)
            return folder

    def _check(self, name: str, packed: Path) -> None:
        match = _CHECKED.fullmatch(name)
        if match:
            with packed.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != match[1]:
                raise TryAgainError(f"{name} arrived with another checksum: {digest}")

    def _make_room(self, keep: str) -> None:
        kept = [entry for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
        sizes = {entry.name: self._size(entry) for entry in kept}
        total = sum(sizes.values())
        for entry in sorted(kept, key=_last_use):
            if total <= self._limit:
                return
            if entry.name != keep:
                gone = entry.with_name(f".gone.{entry.name}.{os.getpid()}")
                try:
                    entry.rename(gone)
                except FileNotFoundError:  # another pilot makes room as well
                    continue
                shutil.rmtree(gone, ignore_errors=True)
                total -= sizes[entry.name]
                log.info("sandbox %s dropped from the cache", entry.name)

    def _size(self, folder: Path) -> int:
        if folder.name not in self._sizes:
            self._sizes[folder.name] = sum(
                Path(where, file).lstat().st_size for where, _, files in os.walk(folder) for file in files
            )
        return self._sizes[folder.name]


def _last_use(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def copy_tree(source: Path, target: Path, large: int, linked: list[Path]) -> None:
    """Copies a folder's contents into an existing folder; links stay links.

    Files from `large` bytes on, if that is not 0, become hard links where the disk can have them, and come into
    `linked`.
    """
    for entry in source.iterdir():
        to = target / entry.name
        if entry.is_symlink():
            to.symlink_to(entry.readlink())
        elif entry.is_dir():
            to.mkdir()
            copy_tree(entry, to, large, linked)
        elif large and entry.stat().st_size >= large and _is_linked(entry, to):
            linked.append(to)
        else:
            shutil.copy(entry, to)


def _is_linked(entry: Path, to: Path) -> bool:
    try:
        to.hardlink_to(entry)
    except OSError:  # another disk, or none with hard links
        return False
    return True
