"""Where a job's outputs and log go: to the server that keeps them, or to a folder of the site."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot.client import Backoff, JobServer
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.private_folder import PRIVATE

_PATIENCE = 300.0  # seconds that an upload is tried again


class Storage(ABC):
    """Keeps files by their logical names. Every method may be called from any thread."""

    #: Whether every job's log is stored: a real PanDA server fails a job that finished without reporting its log.
    wants_every_log: bool

    @abstractmethod
    def keep(self, name: str, content: Path | bytes) -> str:
        """Stores a file; a repeat replaces it.

        Returns:
            Its physical name (SURL); empty where only the server knows it.

        Raises:
            JobFailure: it cannot be stored.
        """


class ServerStorage(Storage):
    """The embedded server's own storage."""

    wants_every_log = False

    def __init__(self, server: JobServer, at_once: threading.Event) -> None:
        """Prepares.

        Args:
            server: the server.
            at_once: set once the pilot ends at once: then a server that is away is not waited for.
        """
        self._server = server
        self._at_once = at_once

    def keep(self, name: str, content: Path | bytes) -> str:
        """See Storage."""
        backoff, give_up = Backoff(), time.monotonic() + _PATIENCE
        while True:
            try:
                self._server.upload(name, content)
                return ""
            except TryAgainError as error:
                if time.monotonic() > give_up or self._at_once.is_set():
                    raise JobFailure(PilotErrorCode.STAGE_OUT_FAILED, f"{name}: {error}") from error
                backoff.pause(self._at_once)
            except (HpoPilotError, OSError) as error:
                raise JobFailure(PilotErrorCode.STAGE_OUT_FAILED, f"{name}: {error}") from error


class FolderStorage(Storage):
    """A folder, for servers that keep no files, as PanDA's own: there the site's storage does."""

    wants_every_log = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, name: str, content: Path | bytes) -> str:
        """See Storage."""
        if not name or name != Path(name).name or name.startswith("."):
            raise JobFailure(PilotErrorCode.STAGE_OUT_FAILED, f"{name!r} is no name for a file in {self._folder}")
        target = self._folder / name
        part = self._folder / f".{name}.{os.getpid()}.part"
        try:
            self._folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            if isinstance(content, bytes):
                part.write_bytes(content)
            else:
                shutil.copyfile(content, part)
            part.replace(target)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise JobFailure(
                PilotErrorCode.STAGE_OUT_FAILED, f"{target}: {error.strerror}; is --storage a folder with room?"
            ) from error
        return target.as_uri()
