"""Reports on running jobs, and the commands that come back."""

from __future__ import annotations

import heapq
import logging
import threading
import time

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot import report
from hpo_pilot.pilot.client import Backoff, JobServer, NotOurs
from hpo_pilot.pilot.execution import Execution
from hpo_pilot.pilot.failure import JobFailure, PilotErrorCode
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.pilot.starting import Starting

log = logging.getLogger(__name__)


class Forgotten(JobFailure):
    """The server wants to hear no more of this attempt: it ends without a report."""


def obey(command: str, panda_id: int) -> JobFailure | None:
    """What a command in a reply means for the job.

    Returns:
        The failure with which it must end; None: it goes on.
    """
    if "tobekilled" in command:
        return JobFailure(PilotErrorCode.PANDA_KILL, "killed by the server (tobekilled)")
    if "badattemptnr" in command or "alreadydone" in command:
        return Forgotten(PilotErrorCode.PANDA_KILL, f"the server is done with this attempt ({command})")
    if command and command != "NULL":
        log.debug("job %s: command %r is not for us", panda_id, command)
    return None


#: Other servers are reported to so many times less often where a search wants intermediate values soon.
_POLITE = 10


class Heartbeats(threading.Thread):
    """One thread that reports on all jobs that start or run, the first time shortly after.

    A job that is over before has no heartbeat: the server takes its final report as it is, and a call is saved. A job
    whose search may stop it early is looked at more often, and reported on at once where its payload has new values.
    """

    def __init__(self, settings: PilotSettings, server: JobServer) -> None:
        super().__init__(name="heartbeats", daemon=True)
        self._settings, self._server = settings, server
        self._due: list[tuple[float, int, Execution | Starting]] = []
        self._running: dict[int, Execution | Starting] = {}
        self._owed: dict[int, float] = {}  # when each job's next report is due, with or without news
        self._changed = threading.Condition()
        self._backoff = Backoff(first=1.0, most=max(2.0, settings.heartbeat))

    def add(self, execution: Execution | Starting) -> None:
        """Reports on this job until `remove`."""
        with self._changed:
            self._running[execution.job.panda_id] = execution
            self._push(execution, self._settings.first_report)

    def remove(self, execution: Execution | Starting) -> None:
        """Ends that; a report that is on its way may still arrive, which the server allows for."""
        with self._changed:
            self._running.pop(execution.job.panda_id, None)
            self._owed.pop(execution.job.panda_id, None)

    def run(self) -> None:
        """Reports until the process ends."""
        while True:
            execution = self._next()
            pause = self._pause(execution)
            job = execution.job
            if time.monotonic() < self._owed.get(job.panda_id, 0.0) and not execution.progress.has_news():
                with self._changed:
                    self._push(execution, pause)
                continue
            try:
                command = self._server.update(report.heartbeat(self._settings, execution))
                self._backoff.reset()
                self._note(execution)
                if failure := obey(command, job.panda_id):
                    log.warning("job %s: %s", job.panda_id, failure, extra={"panda_id": job.panda_id})
                    execution.stop(failure)
                    continue
            except TryAgainError:  # the client has said so, once
                pause = self._backoff.seconds()
            except NotOurs as error:
                execution.stop(Forgotten(PilotErrorCode.PANDA_KILL, str(error)))
                continue
            except HpoPilotError as error:
                log.error("heartbeat of job %s: %s", job.panda_id, error, extra={"panda_id": job.panda_id})
            with self._changed:
                self._push(execution, pause)

    def _note(self, execution: Execution | Starting) -> None:
        """The server was told of the job just now."""
        with self._changed:
            if execution.job.panda_id in self._running:
                self._owed[execution.job.panda_id] = time.monotonic() + self._settings.heartbeat

    def _pause(self, execution: Execution | Starting) -> float:
        """Seconds until the job is looked at again."""
        if not execution.report_seconds:
            return self._settings.heartbeat
        shortest = self._settings.shortest_report * (1 if execution.job.server_stores else _POLITE)
        return min(self._settings.heartbeat, max(shortest, execution.report_seconds))

    def _push(self, execution: Execution | Starting, pause: float) -> None:
        heapq.heappush(self._due, (time.monotonic() + pause, execution.job.panda_id, execution))
        self._changed.notify()

    def _next(self) -> Execution | Starting:
        with self._changed:
            while True:
                while self._due and self._running.get(self._due[0][1]) is not self._due[0][2]:
                    heapq.heappop(self._due)
                if not self._due:
                    self._changed.wait()
                elif (pause := self._due[0][0] - time.monotonic()) > 0:
                    self._changed.wait(pause)
                else:
                    return heapq.heappop(self._due)[2]
