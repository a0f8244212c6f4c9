"""Final reports: sent at once, or kept until the server is back."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.pilot.client import Backoff, JobServer
from hpo_pilot.pilot.workdir import WorkDir

log = logging.getLogger(__name__)


class Delivery(threading.Thread):
    """Sends final reports. What cannot be sent now is kept on disk and sent later, by this pilot or the next."""

    def __init__(self, server: JobServer, workdir: WorkDir) -> None:
        super().__init__(name="delivery", daemon=True)
        self._server, self._workdir = server, workdir
        self._waiting: deque[dict[str, Any]] = deque(workdir.kept_reports())
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._never = threading.Event()

    def send(self, report: dict[str, Any]) -> None:
        """Sends a report now; if the server is away, it is kept and this returns all the same."""
        with self._changed:
            queued = bool(self._waiting)
        if not queued and self._try(report):
            return
        self._workdir.keep_report(report)
        with self._changed:
            self._waiting.append(report)
            self._changed.notify()

    def try_all(self) -> int:
        """Tries once what is kept; returns how many reports are left."""
        with self._sending:
            while self._waiting and self._try(self._waiting[0]):
                with self._changed:
                    self._workdir.drop_report(self._waiting.popleft())
            return len(self._waiting)

    def run(self) -> None:
        """Sends what is kept, whenever the server lets it."""
        backoff = Backoff()
        while True:
            with self._changed:
                while not self._waiting:
                    backoff.reset()
                    self._changed.wait()
            if self.try_all():
                backoff.pause(self._never)

    def _try(self, report: dict[str, Any]) -> bool:
        """True where nothing is left to be done with the report."""
        try:
            command = self._server.update(report)
        except (TryAgainError, InputError):  # away, or the token is refused for now
            return False
        except HpoPilotError as error:
            log.error("the report on job %s (%s) is lost: %s", report["job_id"], report["job_status"], error)
            return True
        if command:
            log.info("job %s was reported %s: %s", report["job_id"], report["job_status"], command)
        return True
