"""Asking the server for jobs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.pilot.client import Backoff, CallRefused, JobServer, TokenRefused
from hpo_pilot.pilot.room import C, Room
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.pilot.workdir import WorkDir

log = logging.getLogger(__name__)

_PAUSE = 5.0  # seconds until a disk without room is looked at again


class Acquisition(threading.Thread):
    """Fills free room until the pilot drains."""

    def __init__(
        self,
        settings: PilotSettings,
        server: JobServer,
        workdir: WorkDir,
        room: Room[C],
        *,
        draining: threading.Event,
        begin: Callable[[list[dict[str, Any]]], None],
        give_up: Callable[[HpoPilotError], None],
        remaining: Callable[[], int],
    ) -> None:
        """Prepares; `start` starts it.

        Args:
            settings: of the pilot.
            server: that is asked.
            workdir: whose disk must not be full.
            room: that is to be filled.
            draining: is set when no more jobs are wanted.
            begin: takes what came.
            give_up: is told when the server wants nothing of this pilot.
            remaining: says for how many seconds the pilot still lives; 0: that is not known.
        """
        super().__init__(name="acquire", daemon=True)
        self._settings, self._server, self._workdir, self._room = settings, server, workdir, room
        self._draining, self._begin, self._give_up, self._remaining = draining, begin, give_up, remaining
        self._trouble = ""  # with the disk

    def run(self) -> None:
        """Asks, again and again."""
        backoff, idle = Backoff(), Backoff(0.2, self._settings.idle)
        refused_since: float | None = None
        while not self._draining.is_set():
            free = self._room.wait_for_some(self._draining)
            if self._draining.is_set() or not self._has_disk():
                continue
            asked = time.monotonic()
            wait = min(self._settings.poll, free.patience)
            try:
                found = self._server.acquire(free, wait, self._workdir.free_mb(), self._remaining())
            except TryAgainError as error:
                log.debug("no jobs: %s", error)
                backoff.pause(self._draining)
                continue
            except (TokenRefused, CallRefused, InputError) as error:
                refused_since = refused_since or asked
                if asked - refused_since >= self._settings.refused:
                    self._give_up(error if isinstance(error, InputError) else InputError(str(error)))
                    return
                log.warning("%s", error)
                backoff.pause(self._draining)
                continue
            refused_since = None
            backoff.reset()
            if found:
                idle.reset()
                self._begin(found)
            elif time.monotonic() - asked < min(1.0, wait / 2):  # this server does not wait
                idle.pause(self._draining)

    def _has_disk(self) -> bool:
        """Whether jobs would find a place; said when that changes."""
        trouble = self._workdir.trouble(self._settings.min_free_mb)
        if trouble != self._trouble:
            log.warning("%s", f"{trouble}: no jobs are taken" if trouble else "there is room again, and jobs are taken")
            self._trouble = trouble
        if trouble:
            self._draining.wait(_PAUSE)
        return not trouble
