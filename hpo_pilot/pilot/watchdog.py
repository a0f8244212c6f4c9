"""What no thread that waits for a job can see: memory, time, and processes that lost their parents."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection

import psutil

from hpo_pilot.pilot.execution import Execution
from hpo_pilot.pilot.workdir import WorkDir

log = logging.getLogger(__name__)

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
