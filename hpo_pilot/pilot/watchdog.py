"""What no thread that waits for a job can see: memory, time, and processes that slipped away."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection

import psutil

from hpo_pilot.pilot.execution import WORKER_MARK, Execution
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.pilot.workdir import WorkDir

log = logging.getLogger(__name__)

_TICK = 1.0  # seconds
_SCAN = 5.0  # seconds between looks at all processes, which take about 10 ms
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_LEFTOVERS = 20.0  # seconds: what an earlier pilot left has saved its checkpoints by then


class Watchdog(threading.Thread):
    """Looks at the running jobs from outside.

    Processes that left a job's process group become children of this one when their parents die (it is their
    "subreaper"); once their job is over they are killed.
    """

    def __init__(self, settings: PilotSettings, workdir: WorkDir, running: Callable[[], Collection[Execution]]) -> None:
        """Prepares; `start` starts it.

        Args:
            settings: of the pilot.
            workdir: to be cleaned of what an earlier pilot left.
            running: gives the jobs that run.
        """
        super().__init__(name="watchdog", daemon=True)
        self._settings, self._workdir, self._running = settings, workdir, running
        self._wake = threading.Event()
        self._over = threading.Event()
        self._mark = f"{settings.worker_name}@{settings.workdir}"
        self._clean_at = time.monotonic() + _LEFTOVERS if workdir.stale else float("inf")
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
        unseen = False  # whether jobs ran since the last look at all processes
        while True:
            unseen = self._wake.wait(_TICK if unseen or self._clean_at != float("inf") else None) or unseen
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
            if now >= self._clean_at:
                self._clean_at = float("inf")
                self._kill_leftovers()
                self._workdir.remove_stale()
            time.sleep(_TICK / 4)  # however often it is woken
        _adopt_orphans(0)

    def _scan(self) -> bool:
        """One pass over all processes: memory of each job, and strays; True where there were some."""
        children: defaultdict[int, list[psutil.Process]] = defaultdict(list)
        for process in psutil.process_iter(["ppid", "memory_info"]):
            children[process.info["ppid"]].append(process)
        # Asked only now, so that every command seen above is known: its status belongs to the thread that waits for it.
        executions = {pid: execution for execution in self._running() if (pid := execution.pid) is not None}
        strays = [p for p in children[os.getpid()] if p.pid not in executions and _came_from_a_job(p.pid)]
        for process in strays:
            self._end_stray(process, _tree(process.pid, children))
        for pid, execution in executions.items():
            if execution.job.memory_mb:
                self._check_memory(execution, _tree(pid, children))
        return bool(strays)

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

    def _end_stray(self, process: psutil.Process, below: list[psutil.Process]) -> None:
        """Kills and reaps a child that we did not start, and those below it, if its mark says that its job is over."""
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
                return
            env = process.environ()
            over = env.get("PANDAID") not in {str(execution.job.panda_id) for execution in self._running()}
            if env.get(WORKER_MARK) == self._mark and over:
                log.warning("process %s of job %s outlived it and is killed", process.pid, env.get("PANDAID"))
                for each in (process, *below):
                    each.kill()
                os.waitpid(process.pid, 0)
        except (psutil.Error, OSError) as error:
            log.debug("process %s: %s", process.pid, error)  # it ended meanwhile, or the job's own thread reaped it

    def _kill_leftovers(self) -> None:
        """Ends what an earlier pilot of this name left running: its lock is free, so it is dead."""
        ours = {str(execution.job.panda_id) for execution in self._running()}
        for process in psutil.process_iter():
            try:
                env = process.environ()
                if env.get(WORKER_MARK) == self._mark and env.get("PANDAID") not in ours:
                    log.warning("process %s of job %s of an earlier pilot is killed", process.pid, env.get("PANDAID"))
                    process.kill()
            except psutil.Error:
                continue  # somebody else's, or gone


def _came_from_a_job(pid: int) -> bool:
    """Whether a child is none of this process's own, such as a download, whose status belongs to whoever waits for it.

    Jobs run in process groups of their own, and what slips away from one does not join ours.
    """
    try:
        return os.getpgid(pid) != os.getpgrp()
    except OSError:
        return False  # it is gone


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
