"""Fetches and copies the sandboxes of jobs; stores their outputs and logs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tarfile
import threading
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.files import PRIVATE, rename_whole
from hpo_pilot.logs import log_end
from hpo_pilot.pilot.client import JobServer, retried
from hpo_pilot.pilot.execution import LOG_FILE
from hpo_pilot.pilot.job import Job, JobFailure, PilotErrorCode
from hpo_pilot.pilot.settings import remove
from hpo_pilot.transformation.job import Arguments, PayloadSettings, TransformationFailure, find_outputs, has_verdict
from hpo_pilot.transformation.sandbox import unpack
from hpo_pilot.transformation.transformation import UNPACKED_LIMIT

log = logging.getLogger(__name__)

#: Names of our own archives have the checksum of their contents; those of prun do not.
_CHECKED = re.compile(r"sources\.([0-9a-f]{64})\.tar\.gz")


#: Parts of a cached sandbox: the unpacked files, and the digest of each.
_FILES, _DIGESTS = "files", "digests.json"

_LEFT_SECONDS = 86_400.0  # age at which what a killed pilot was fetching is removed

#: Inode, size and times of a file; they change with its content while the machine runs.
_State = tuple[int, int, int, int]


class SandboxCache:
    """Unpacked sandboxes by name; the least recently used ones are removed when the cache grows too large.

    Several pilots may share the folder: a sandbox gets its name when it is complete, and is renamed before it is
    deleted. After a power cut it may be damaged, so a pilot checks the digests before it uses a sandbox first.
    """

    def __init__(self, folder: Path, server: JobServer, *, limit_mb: int, unpacked: int = UNPACKED_LIMIT) -> None:
        """Makes the folder.

        Args:
            folder: folder of the cache.
            server: server of the sandboxes.
            limit_mb: size limit of the cache.
            unpacked: size limit of one unpacked sandbox, in bytes.
        """
        self._folder, self._server = folder, server
        self._limit, self._unpack_limit = limit_mb << 20, unpacked
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._sizes: dict[str, int] = {}
        self._intact: dict[str, dict[str, _State]] = {}  # by sandbox and file: states in which the digest was right
        self._damaged: dict[str, float] = {}  # when a damaged sandbox was removed
        folder.mkdir(parents=True, exist_ok=True)

    def copy_to(self, arguments: Arguments, target: Path, large: int = 0) -> list[Path]:
        """Fills a job's folder with its sandbox.

        Args:
            arguments: arguments of the job.
            target: its empty folder.
            large: size in bytes from which a file is linked to the cache's file instead of copied, for `Staging.stage`;
                0: all files are copied.

        Returns:
            The linked files.

        Raises:
            JobFailure: the sandbox cannot be fetched or is refused; the message says why.
        """
        if arguments.library:
            raise JobFailure(
                f"the job needs {arguments.library} of a build job, and this pilot fetches only sandboxes",
                PilotErrorCode.STAGE_IN_FAILED,
            )
        linked: list[Path] = []
        for last_try in (False, True) if arguments.archive else ():
            try:
                copy_tree(self._unpacked(arguments), target, large, linked)
                break
            except OSError as error:  # a damaged disk, or another pilot moved it away between look-up and copy
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                if full or last_try:
                    code = PilotErrorCode.NO_LOCAL_SPACE if full else PilotErrorCode.STAGE_IN_FAILED
                    raise JobFailure(f"{arguments.archive}: {error}", code) from error
                self.is_damaged(arguments.archive, time.monotonic())
                shutil.rmtree(target)
                target.mkdir(mode=PRIVATE)
                linked.clear()
            except (HpoPilotError, TransformationFailure) as error:
                if last_try or not isinstance(error, TryAgainError):
                    raise JobFailure(str(error), PilotErrorCode.STAGE_IN_FAILED) from error
        return linked

    def settings(self, arguments: Arguments) -> PayloadSettings:
        """Returns the description of a job's payload.

        Raises:
            HpoPilotError, TransformationFailure, OSError: its sandbox cannot be fetched or is refused.
        """
        return PayloadSettings.read(str(self._unpacked(arguments))) if arguments.archive else PayloadSettings()

    def is_damaged(self, archive: str, since: float) -> bool:
        """Returns whether a sandbox was damaged when a job copied it. A damaged one is removed, and fetched again.

        Args:
            archive: its name; empty: there is none.
            since: when the job copied it (`time.monotonic`).
        """
        folder = self._folder / archive
        with self._locks[archive]:
            if archive and folder.is_dir() and not self._is_intact(folder):
                self._remove_damaged(folder)
            return archive in self._damaged and self._damaged[archive] >= since

    def _unpacked(self, arguments: Arguments) -> Path:
        archive = arguments.archive
        folder = self._folder / archive
        with self._locks[archive]:
            if folder.is_dir():
                if archive in self._intact or self._is_intact(folder):
                    os.utime(folder)
                    return folder / _FILES
                self._remove_damaged(folder)
            new = self._folder / f".{archive}.{os.getpid()}"
            packed = new.with_name(new.name + ".tar.gz")
            shutil.rmtree(new, ignore_errors=True)
            try:
                with packed.open("wb") as file:
                    self._server.download(arguments.source_url, archive, file, self._unpack_limit)
                self._check(archive, packed)
                (new / _FILES).mkdir(parents=True)
                unpack(str(packed), str(new / _FILES), self._unpack_limit)
                digests = {name: _digest(path) for name, path in _files(new / _FILES)}
                (new / _DIGESTS).write_text(json.dumps(digests))
                try:
                    new.rename(folder)
                except OSError:  # another pilot was faster
                    if not folder.is_dir():
                        raise
            finally:
                packed.unlink(missing_ok=True)
                shutil.rmtree(new, ignore_errors=True)
            log.info("sandbox %s fetched", archive)
            self._make_room(keep=archive)
            return folder / _FILES

    def _is_intact(self, folder: Path) -> bool:
        """Returns whether the files of a sandbox are as they were unpacked; unchanged files are not read again."""
        seen = self._intact.pop(folder.name, {})
        try:
            digests = json.loads((folder / _DIGESTS).read_text())
            present = dict(_files(folder / _FILES))
            states = {name: _state(present[name]) for name in digests}
            if any(seen.get(name) != states[name] and _digest(present[name]) != digests[name] for name in digests):
                return False
        except (OSError, ValueError, TypeError, LookupError):
            return False
        self._intact[folder.name] = states
        return True

    def _remove_damaged(self, folder: Path) -> None:
        log.warning("sandbox %s was damaged in %s, and is fetched again", folder.name, self._folder)
        self._damaged[folder.name] = time.monotonic()
        self._remove(folder)

    def _remove(self, folder: Path) -> None:
        gone = folder.with_name(f".gone.{folder.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):  # another pilot has removed it
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _check(self, name: str, packed: Path) -> None:
        match = _CHECKED.fullmatch(name)
        if match:
            digest = _digest(packed)
            if digest != match[1]:
                raise TryAgainError(f"{name} has a wrong checksum after the download: {digest}")

    def _make_room(self, keep: str) -> None:
        kept = []
        for entry in self._folder.iterdir():
            if not entry.name.startswith("."):
                kept.append(entry)
            elif _last_use(entry) < time.time() - _LEFT_SECONDS:
                remove(entry)
        sizes = {entry.name: self._size(entry) for entry in kept}
        total = sum(sizes.values())
        for entry in sorted(kept, key=_last_use):
            if total <= self._limit:
                return
            if entry.name != keep:
                self._remove(entry)
                total -= sizes[entry.name]
                log.info("sandbox %s dropped from the cache", entry.name)

    def _size(self, folder: Path) -> int:
        if folder.name not in self._sizes:
            self._sizes[folder.name] = sum(
                Path(where, file).lstat().st_size for where, _, files in os.walk(folder) for file in files
            )
        return self._sizes[folder.name]


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields name and path of each file and link."""
    for where, folders, names in os.walk(folder):
        for name in (*names, *(name for name in folders if Path(where, name).is_symlink())):
            path = Path(where, name)
            yield str(path.relative_to(folder)), path


def _digest(path: Path) -> str:
    if path.is_symlink():
        return str(path.readlink())
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state(path: Path) -> _State:
    about = path.lstat()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _last_use(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def copy_tree(source: Path, target: Path, large: int, linked: list[Path]) -> None:
    """Copies a folder's contents into an existing folder; links stay links.

    If `large` is not 0, files of at least `large` bytes become hard links if possible, and are added to `linked`.
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
    except OSError:  # another disk, or no support for hard links
        return False
    return True


_PATIENCE = 300.0  # seconds during which an upload is retried


class Storage(ABC):
    """Stores files by their logical names. Any thread may call any method."""

    #: Whether the log of every job is stored: a real PanDA server fails a finished job that reports no log.
    wants_every_log: bool

    @abstractmethod
    def keep(self, name: str, content: Path | bytes) -> str:
        """Stores a file; a repeat replaces it.

        Returns:
            Its physical name (SURL); empty if only the server knows it.

        Raises:
            JobFailure: it cannot be stored.
        """


class ServerStorage(Storage):
    """The embedded server's own storage."""

    wants_every_log = False

    def __init__(self, server: JobServer, at_once: threading.Event) -> None:
        """Makes the storage.

        Args:
            server: the server.
            at_once: set when the pilot ends at once: then an upload is not retried.
        """
        self._server = server
        self._at_once = at_once

    def keep(self, name: str, content: Path | bytes) -> str:
        """See Storage."""
        try:
            retried(lambda: self._server.upload(name, content), _PATIENCE, self._at_once)
        except (HpoPilotError, OSError) as error:
            raise JobFailure(f"{name}: {error}", PilotErrorCode.STAGE_OUT_FAILED) from error
        return ""


class FolderStorage(Storage):
    """A folder, for servers that store no files, such as PanDA's own."""

    wants_every_log = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, name: str, content: Path | bytes) -> str:
        """See Storage."""
        if not name or name != Path(name).name or name.startswith("."):
            raise JobFailure(f"{name!r} is not a valid file name for {self._folder}", PilotErrorCode.STAGE_OUT_FAILED)
        target = self._folder / name
        part = self._folder / f".{name}.{os.getpid()}.part"
        try:
            self._folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            if isinstance(content, bytes):
                part.write_bytes(content)
            else:
                shutil.copyfile(content, part)
            rename_whole(part, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise JobFailure(
                f"{target}: {error.strerror}; is --storage a folder with free space?", PilotErrorCode.STAGE_OUT_FAILED
            ) from error
        return target.as_uri()


_LOG_TAIL = 1_000_000  # bytes


def store_outputs(storage: Storage, job: Job, folder: Path) -> dict[str, Any]:
    """Stores the outputs of a finished job, and its log if the server needs it.

    Returns:
        Entries of `job_output_report`, by name in the storage.

    Raises:
        JobFailure: a required output is missing or cannot be stored.
    """
    outputs = job.arguments.outputs
    found, missing = find_outputs(str(folder), outputs)
    wanted = [file for file in missing if outputs[file] not in job.may_lack]
    if wanted and not has_verdict(str(folder)):  # a failed trial has a verdict instead
        raise JobFailure(f"the output {wanted[0]} was not made", PilotErrorCode.MISSING_OUTPUT)
    stored = {name: _keep(storage, name, Path(file)) for name, file in found.items()}
    if storage.wants_every_log and job.log_name:
        stored[job.log_name] = _keep(storage, job.log_name, _packed_log(folder))
    return stored


def store_log(storage: Storage, job: Job, folder: Path) -> dict[str, Any]:
    """Stores the end of the logs of a failed job; errors are only logged.

    Returns:
        Entries of `job_output_report`, by name in the storage; empty: no log is stored.
    """
    if not job.log_name:
        return {}
    try:
        return {job.log_name: _keep(storage, job.log_name, _packed_log(folder))}
    except (JobFailure, OSError) as error:
        log.warning("the log of job %s is not stored: %s", job.panda_id, error)
        return {}


def _packed_log(folder: Path) -> bytes:
    """Packs the ends of the payload's and the runner's logs into a tar archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("payload.log", LOG_FILE):
            path = folder / name
            if path.is_file():
                content = log_end(path, _LOG_TAIL)
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(content), int(time.time())
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _keep(storage: Storage, name: str, content: Path | bytes) -> dict[str, Any]:
    surl = storage.keep(name, content)
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    entry = {"guid": str(uuid.uuid4()), "fsize": size, "adler32": _adler32(content)}
    return entry | ({"surl": surl} if surl else {})


def _adler32(content: Path | bytes) -> str:
    value = 1
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            value = zlib.adler32(block, value)
    return f"{value:08x}"
