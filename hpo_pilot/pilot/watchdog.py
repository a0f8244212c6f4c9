"""Watches running jobs: sends heartbeats, carries out the server's commands, and limits memory and time."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from collections import defaultdict

import psutil

from hpo_pilot.errors import HpoPilotError, TryAgainError
from hpo_pilot.pilot import report
from hpo_pilot.pilot.client import Backoff, JobOfAnotherPilot, JobServer
from hpo_pilot.pilot.execution import Execution
from hpo_pilot.pilot.job import Identity, JobFailure, PilotErrorCode
from hpo_pilot.pilot.report import StartingJob
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.transformation.process import adopt_orphans

log = logging.getLogger(__name__)


class AttemptClosed(JobFailure):
    """The server has closed this attempt: it ends without a report."""

    code = PilotErrorCode.PANDA_KILL


def failure_of_command(command: str, panda_id: int) -> JobFailure | None:
    """Interprets a command in the server's reply.

    Returns:
        The failure with which the job must end; None: it continues.
    """
    if "tobekilled" in command:
        return JobFailure("killed by the server (tobekilled)", PilotErrorCode.PANDA_KILL)
    if "badattemptnr" in command or "alreadydone" in command:
        return AttemptClosed(f"the server is done with this attempt ({command})")
    if command and command != "NULL":
        log.debug("job %s: command %r is not for us", panda_id, command)
    return None


#: Factor between report intervals for other servers and ours, if a search wants intermediate values soon.
_POLITE = 10


class Heartbeats(threading.Thread):
    """Reports on all jobs that start or run, in one thread; the first report follows shortly after the start.

    Later reports on all jobs come due together, so that few calls carry them.

    A job that ends before its first heartbeat has none, which saves a call: the server accepts a final report alone. A
    job whose search may stop it early is checked more often and reported as soon as its payload has new values.

    After an outage of the network, two attempts of a job may run here: the server tells the first one to end.
    """

    def __init__(self, settings: PilotSettings, server: JobServer) -> None:
        super().__init__(name="heartbeats", daemon=True)
        self._settings, self._server = settings, server
        self._due: list[tuple[float, int, Execution | StartingJob]] = []  # a number decides between equal times
        self._numbers = itertools.count()
        self._running: dict[Identity, Execution | StartingJob] = {}
        self._owed: dict[Identity, float] = {}  # when each job's next report is due even without new values
        self._changed = threading.Condition()
        self._backoff = Backoff(first=1.0, most=max(2.0, settings.heartbeat))

    def add(self, execution: Execution | StartingJob) -> None:
        """Reports on this job until `remove`, by this record instead of an earlier one."""
        with self._changed:
            self._running[execution.job.identity] = execution
            self._push(execution, self._settings.first_report)

    def remove(self, job: Identity) -> None:
        """Ends the reports; one that is being sent may still arrive, which the server tolerates."""
        with self._changed:
            self._running.pop(job, None)
            self._owed.pop(job, None)

    def run(self) -> None:
        """Reports until the process ends."""
        while True:
            reported = []
            for execution in self._next(self._server.most_reports):
                if time.monotonic() < self._owed.get(execution.job.identity, 0.0) and not execution.progress.has_news():
                    with self._changed:
                        self._push(execution, self._pause(execution))
                else:
                    reported.append(execution)
            reports = [report.heartbeat_report(self._settings, execution) for execution in reported]
            answers = self._server.update_all(reports)
            is_away = any(isinstance(answer, TryAgainError) for answer in answers)
            wait = self._backoff.seconds() if is_away else 0.0
            if not is_away and answers:
                self._backoff.reset()
            for execution, answer in zip(reported, answers, strict=True):
                self._take(execution, answer, wait)

    def _take(self, execution: Execution | StartingJob, answer: str | HpoPilotError, wait: float) -> None:
        """Carries out the server's answer to a report; `wait`: seconds until the next one if there is no answer."""
        job, pause = execution.job, wait if isinstance(answer, TryAgainError) else self._pause(execution)
        failure = failure_of_command(answer, job.panda_id) if isinstance(answer, str) else None
        with self._changed:
            if self._running.get(job.identity) is not execution:
                return  # it has ended meanwhile
            if isinstance(answer, str):  # the check nearest to the next heartbeat is to report it again
                self._owed[job.identity] = time.monotonic() + self._settings.heartbeat - pause / 2
            if failure is None and not isinstance(answer, JobOfAnotherPilot):
                self._push(execution, pause)
        if failure is not None:
            log.warning("job %s: %s", job.panda_id, failure, extra={"panda_id": job.panda_id})
            execution.stop(failure)
        elif isinstance(answer, JobOfAnotherPilot):
            execution.stop(AttemptClosed(str(answer)))
        elif not isinstance(answer, str | TryAgainError):  # which the client has logged
            log.error("heartbeat of job %s: %s", job.panda_id, answer, extra={"panda_id": job.panda_id})

    def _pause(self, execution: Execution | StartingJob) -> float:
        """Returns the seconds until the next check of the job."""
        if not execution.report_seconds:
            return self._settings.heartbeat
        shortest = self._settings.shortest_report * (1 if execution.job.server_stores else _POLITE)
        return min(self._settings.heartbeat, max(shortest, execution.report_seconds))

    def _push(self, execution: Execution | StartingJob, pause: float) -> None:
        due = time.monotonic() + pause
        if pause == self._settings.heartbeat:
            due -= due % pause  # the same moments for all jobs
        entry = (due, next(self._numbers), execution)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:  # else the thread wakes before it is due
            self._changed.notify()

    def _next(self, most: int) -> list[Execution | StartingJob]:
        """Waits until jobs are due, and returns them."""
        found: list[Execution | StartingJob] = []
        with self._changed:
            while True:
                while self._due and self._running.get(self._due[0][2].job.identity) is not self._due[0][2]:
                    heapq.heappop(self._due)
                pause = self._due[0][0] - time.monotonic() if self._due else None
                if pause is not None and pause <= 0 and len(found) < most:
                    found.append(heapq.heappop(self._due)[2])
                elif found:
                    return found
                else:
                    self._changed.wait(pause)


_TICK = 1.0  # seconds
_SCAN = 5.0  # seconds between scans of all processes; a scan takes about 10 ms


class Watchdog(threading.Thread):
    """Watches memory and time of the running jobs. Any thread may call any method.

    This process is the "subreaper" of its jobs: their processes become its children when their parents die. So it is
    quick to find processes that outlive their job, and they are reaped here.
    """

    def __init__(self) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._lock = threading.Lock()
        self._running: list[Execution] = []
        self._wake = threading.Event()
        self._over = threading.Event()
        self._scan_at = 0.0

    def add(self, execution: Execution) -> None:
        """Watches a job that is about to start."""
        with self._lock:
            self._running.append(execution)
        self._wake.set()

    def remove(self, execution: Execution) -> None:
        """Ends the watch of a job that has ended."""
        with self._lock:
            self._running.remove(execution)

    def running(self) -> list[Execution]:
        """Returns the running jobs."""
        with self._lock:
            return list(self._running)

    def stop_job(self, panda_id: int, failure: JobFailure) -> None:
        """Ends a job if it runs."""
        for execution in self.running():
            if execution.job.panda_id == panda_id:
                execution.stop(failure)

    def stop(self) -> None:
        """Ends the watch; returns at once."""
        self._over.set()
        self._wake.set()

    def run(self) -> None:
        """Watches until it is told to stop."""
        adopt_orphans()
        unseen = False  # whether jobs ran since the last scan of all processes
        while True:
            unseen = self._wake.wait(_TICK if unseen else None) or unseen
            if self._over.is_set():
                break
            self._wake.clear()
            running = self.running()
            for execution in running:
                execution.check()
            now = time.monotonic()
            if unseen and now >= self._scan_at:
                self._scan_at = now + _SCAN
                unseen = self._scan() or bool(running)
            time.sleep(_TICK / 4)  # limits the rate if it is woken often
        adopt_orphans(False)

    def _scan(self) -> bool:
        """Scans all processes: checks each job's memory and reaps ended orphans; returns whether any were reaped."""
        children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
        for process in psutil.process_iter(["ppid", "memory_info"]):
            children[process.info["ppid"]].append(process)
        # Read after the scan, so that it has every command found above; the thread that waits for it reaps it.
        executions = {pid: execution for execution in self.running() if (pid := execution.pid) is not None}
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
        used = sum(_own_share(process) for process in processes)  # slower, but counts shared pages once
        if used > limit:
            reason = (
                f"used {used >> 20} MB of memory, more than the {execution.job.memory_mb} MB that it asked for "
                "(resources: memory_mb in the search file)"
            )
            log.warning("job %s %s", execution.job.panda_id, reason)
            execution.stop_payload(reason)


def _came_from_a_job(pid: int) -> bool:
    """Returns whether a child comes from a job and is not a process of the pilot itself, such as a download.

    Jobs run in process groups of their own, and their processes never join ours.
    """
    try:
        return os.getpgid(pid) != os.getpgrp()
    except OSError:
        return False  # it has ended


def _reap(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE and os.waitpid(process.pid, os.WNOHANG)[0] != 0
    except (psutil.Error, OSError) as error:
        log.debug("process %s: %s", process.pid, error)  # it was reaped elsewhere
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
        return 0  # it has ended
    return int(getattr(memory, "pss", memory.rss))
