"""Fetched inputs, kept so that the jobs of a search fetch them once."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from hpo_pilot.transformation.failure import ExitCode, TransformationFailure

_LOOK = 0.2  # seconds between tries to get an entry that another job fetches


class CacheEntry:
    """One input. While it is held, nobody else fetches, replaces or removes it.

    ::

        KEY/files/     what was fetched
        KEY/meta.json  where from, and what tells whether it is still the same
        .KEY.new/      what is being fetched
        KEY.lock
    """

    def __init__(self, cache: str, key: str) -> None:
        self.folder, self.key = os.path.join(cache, key), key
        self.new = os.path.join(cache, ".%s.new" % key)

    @property
    def meta(self) -> Optional[Dict[str, Any]]:
        """What was noted when it was fetched; None: it is not there."""
        try:
            with open(os.path.join(self.folder, "meta.json")) as file:
                found = json.load(file)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def files(self) -> List[str]:
        """Its files, in order."""
        return [
            os.path.join(where, name)
            for where, _, names in sorted(os.walk(os.path.join(self.folder, "files")))
            for name in sorted(names)
        ]

    def begin(self) -> str:
        """An empty folder to fetch into; what somebody who was killed left there is gone."""
        shutil.rmtree(self.new, ignore_errors=True)
        os.makedirs(os.path.join(self.new, "files"))
        return os.path.join(self.new, "files")

    def publish(self, meta: Dict[str, Any]) -> None:
        """What was fetched is complete: it takes the place of what was there."""
        for where, _, names in os.walk(self.new):
            for name in names:
                os.chmod(os.path.join(where, name), 0o444)  # jobs get links to it, and must not change it
        self.note(meta, self.new)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.rename(self.new, self.folder)

    def note(self, meta: Dict[str, Any], folder: str = "") -> None:
        """Writes down when it was last known to be good, with `meta`."""
        path = os.path.join(folder or self.folder, "meta.json")
        with open(path + ".new", "w") as file:
            json.dump(dict(meta, checked=time.time()), file)
        os.rename(path + ".new", path)

    def drop_new(self) -> None:
        """Forgets a fetch that failed."""
        shutil.rmtree(self.new, ignore_errors=True)


class InputCache:
    """A folder of entries, the least recently used going first when it grows too large.

    Several pilots may share it.
    """

    def __init__(self, folder: str, limit: int) -> None:
        """Makes the folder when it is first needed. `limit`: bytes that all entries may have."""
        self.folder, self.limit = folder, limit

    @contextmanager
    def held(self, source: str, until: float, stop: Callable[[], bool]) -> Iterator[CacheEntry]:
        """Holds the entry of a source for the length of a block.

        Args:
            source: path, URL or data identifier.
            until: `time.monotonic` at which to give up waiting for another job that fetches it.
            stop: says whether to give up now.

        Raises:
            TransformationFailure: it was not to be had in time.
        """
        key = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        os.makedirs(self.folder, exist_ok=True)
        lock = os.open(os.path.join(self.folder, key + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not _locked(lock):
                if stop() or time.monotonic() > until:
                    raise TransformationFailure(ExitCode.NO_INPUT, "%s: another job is still fetching it" % source)
                time.sleep(_LOOK)
            entry = CacheEntry(self.folder, key)
            yield entry
            if os.path.isdir(entry.folder):
                os.utime(entry.folder, None)
        finally:
            os.close(lock)

    def make_room(self) -> None:
        """Removes entries until the rest fits; the newest always stays, and so do those that are held."""
        entries = []
        for name in os.listdir(self.folder):
            path = os.path.join(self.folder, name)
            if os.path.isdir(path) and not name.startswith("."):
                entries.append((os.stat(path).st_mtime, name, _size(path)))
        total = sum(size for _, _, size in entries)
        for _, name, size in sorted(entries)[:-1]:
            if total <= self.limit:
                return
            lock = os.open(os.path.join(self.folder, name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if _locked(lock):
                    shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)
                    total -= size
            finally:
                os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size(folder: str) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            total += os.lstat(path).st_size if os.path.lexists(path) else 0
    return total
