"""The book of allocations of a work folder: one JSON file, changed under a lock, whole at any time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpo_pilot.batch.allocation import Allocation
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.whole_file import write_whole

#: How many that are over are kept.
_KEPT = 500

#: A submission holds the lock as long as the batch system takes.
_LOCK_SECONDS = 150.0


class OpenBook:
    """The allocations while the lock is held; `put` writes at once."""

    def __init__(self, path: Path, lock: int) -> None:
        """Reads the file.

        Args:
            path: the file; it may be missing.
            lock: the file descriptor that holds the lock; a child that has it too holds the lock as well.

        Raises:
            InputError: the file makes no sense.
        """
        self._path = path
        self.lock = lock
        self._allocations = {one.name: one for one in _read(path)}

    @property
    def allocations(self) -> list[Allocation]:
        """All, in the order of their submission."""
        return list(self._allocations.values())

    def put(self, *changed: Allocation) -> None:
        """Adds or replaces allocations.

        Raises:
            TryAgainError: the file cannot be written; it is as it was.
        """
        if all(self._allocations.get(one.name) == one for one in changed):
            return
        self._allocations.update({one.name: one for one in changed})
        over = [one.name for one in self._allocations.values() if one.is_over]
        for name in over[: max(0, len(over) - _KEPT)]:
            del self._allocations[name]
        text = json.dumps([one.document() for one in self._allocations.values()], indent=1)
        try:
            write_whole(self._path, text + "\n", 0o600)
        except OSError as error:
            raise TryAgainError(f"cannot write {self._path}: {error.strerror}") from error


class Book:
    """The file `allocations.json` of a work folder. Safe to use from any process of this machine."""

    def __init__(self, folder: Path) -> None:
        """Knows where it is; the folder is made with the first allocation."""
        self._path = folder / "allocations.json"
        self._lock_path = folder / ".allocations.lock"

    def read(self) -> list[Allocation]:
        """All allocations, without waiting for anybody.

        Raises:
            InputError: the file makes no sense.
        """
        return _read(self._path)

    @contextmanager
    def open(self) -> Iterator[OpenBook]:
        """The book for changing it; others wait meanwhile.

        Raises:
            InputError: the folder cannot be written, or the file makes no sense.
            TryAgainError: somebody else has had it for long.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"{self._lock_path} cannot be written: {error.strerror}; choose --workdir") from error
        try:
            self._wait(lock)
            yield OpenBook(self._path, lock)
        finally:
            os.close(lock)

    @contextmanager
    def kept_by_one(self, *what: str) -> Iterator[None]:
        """Makes sure that no other process keeps allocations for the same purpose: each would submit for the same jobs.

        Args:
            what: the purpose: server, queue, site.

        Raises:
            InputError: the folder cannot be written.
            TryAgainError: another one does.
        """
        path = self._path.with_name(f".keep-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.lock")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; choose --workdir") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"another `pilots keep` does this already ({', '.join(what)}): end that one"
                raise TryAgainError(text) from error
            yield
        finally:
            os.close(lock)

    def _wait(self, lock: int) -> None:
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TryAgainError(
                        f"another command has been submitting or looking for {_LOCK_SECONDS:.0f} s (it holds "
                        f"{self._lock_path}); try again later"
                    ) from None
                time.sleep(0.1)
            else:
                return


def _read(path: Path) -> list[Allocation]:
    try:
        documents = json.loads(path.read_text(encoding="utf-8"))
        return [Allocation.read(document) for document in documents]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} makes no sense ({error}): put it aside, and look after its batch jobs with the batch system's own "
            "commands"
        ) from error
