"""Watches running jobs: sends heartbeats, obeys commands of the server, and limits memory and time."""

from __future__ import annotations

import ctypes
import heapq
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection

import psutil

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot import report
from hpo_pilot.pilot.client import Backoff, JobServer, NotOurs
from hpo_pilot.pilot.execution import Execution
from hpo_pilot.pilot.job import JobFailure, PilotErrorCode
from hpo_pilot.pilot.report import Starting
from hpo_pilot.pilot.settings import PilotSettings, WorkDir


class Running:
    """Known by PandaID; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_job: dict[int, Execution] = {}

    def add(self, execution: Execution) -> None:
        """It is about to start."""
        with self._lock:
            self._by_job[execution.job.panda_id] = execution

    def remove(self, execution: Execution) -> None:
        """It has ended."""
        with self._lock:
            del self._by_job[execution.job.panda_id]

    def all(self) -> list[Execution]:
        """Those of now."""
        with self._lock:
            return list(self._by_job.values())

    def stop(self, panda_id: int, failure: JobFailure) -> None:
        """Ends one, if it runs."""
        with self._lock:
            execution = self._by_job.get(panda_id)
        if execution is not None:
            execution.stop(failure)


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
                command = self._server.update(report.heartbeat_report(self._settings, execution))
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


_TICK = 1.0  # seconds
_SCAN = 5.0  # seconds between looks at all processes, which take about 10 ms
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Watchdog(threading.Thread):
    """Looks at the running jobs from outside.

    Processes of jobs become children of this one when their parents die (it is their "subreaper"), so that a job that
    ends can tell quickly whether it left some; here they are reaped.
    """

    def __init__(self, workdir: WorkDir, running: Callable[[], Collection[Execution]]) -> None:
        """Prepares; `start` starts it.

        Args:
            workdir: to be cleaned of what an earlier pilot left; nothing of it runs any more.
            running: gives the jobs that run.
        """
        super().__init__(name="watchdog", daemon=True)
        self._workdir, self._running = workdir, running
        self._wake = threading.Event()
        self._over = threading.Event()
        self._scan_at = 0.0

    def wake(self) -> None:
        """A job has started: there is something to look at."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the watch; returns at once."""
        self._over.set()
        self._wake.set()

    def run(self) -> None:
        """Watches until it is told to stop."""
        _adopt_orphans(1)
        self._workdir.remove_stale()
        unseen = False  # whether jobs ran since the last look at all processes
        while True:
            unseen = self._wake.wait(_TICK if unseen else None) or unseen
            if self._over.is_set():
                break
            self._wake.clear()
            running = self._running()
            for execution in running:
                execution.check()
            now = time.monotonic()
            if unseen and now >= self._scan_at:
                self._scan_at = now + _SCAN
                unseen = self._scan() or bool(running)
            time.sleep(_TICK / 4)  # however often it is woken
        _adopt_orphans(0)

    def _scan(self) -> bool:
        """One pass over all processes: memory of each job, and orphans that have ended; True where there were some."""
        children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
        for process in psutil.process_iter(["ppid", "memory_info"]):
            children[process.info["ppid"]].append(process)
        # Asked only now, so that every command seen above is known: its status belongs to the thread that waits for it.
        executions = {pid: execution for execution in self._running() if (pid := execution.pid) is not None}
        orphans = [p for p in children[os.getpid()] if p.pid not in executions and _came_from_a_job(p.pid)]
        reaped = [process for process in orphans if _reap(process)]
        for pid, execution in executions.items():
            if execution.job.memory_mb:
                self._check_memory(execution, _tree(pid, children))
        return bool(reaped)

    def _check_memory(self, execution: Execution, processes: list[psutil.Process]) -> None:
        limit = execution.job.memory_mb << 20
        if sum(p.info["memory_info"].rss for p in processes if p.info["memory_info"] is not None) <= limit:
            return
        used = sum(_own_share(process) for process in processes)  # slower, and counts shared pages once
        if used > limit:
            reason = (
                f"used {used >> 20} MB of memory, more than the {execution.job.memory_mb} MB that it asked for "
                "(resources: memory_mb in the search file)"
            )
            log.warning("job %s %s", execution.job.panda_id, reason)
            execution.stop_payload(reason)


def _came_from_a_job(pid: int) -> bool:
    """Whether a child is none of this process's own, such as a download, whose status belongs to whoever waits for it.

    Jobs run in process groups of their own, and what slips away from one does not join ours.
    """
    try:
        return os.getpgid(pid) != os.getpgrp()
    except OSError:
        return False  # it is gone


def _reap(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE and os.waitpid(process.pid, os.WNOHANG)[0] != 0
    except (psutil.Error, OSError) as error:
        log.debug("process %s: %s", process.pid, error)  # whoever started it has reaped it
        return False


def _tree(pid: int, children: dict[int, list[psutil.Process]]) -> list[psutil.Process]:
    found, new = [], [pid]
    while new:
        below = [process for parent in new for process in children.get(parent, ())]
        found += below
        new = [process.pid for process in below]
    return found


def _own_share(process: psutil.Process) -> int:
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0  # gone
    return int(getattr(memory, "pss", memory.rss))


def _adopt_orphans(whether: int) -> None:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, whether, 0, 0, 0)
    except (OSError, AttributeError) as error:
        log.info("not on Linux, so processes that slip away from their jobs go unseen: %s", error)
