"""Watches the end and the use of the batch allocation in which a pilot runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.hpc.usage import TimeBreakdown
from hpo_pilot.pilot.allocation import AllocatedNodes
from hpo_pilot.pilot.allocation_pool import TAKEN_AWAY, AllocationPool
from hpo_pilot.pilot.settings import Site

log = logging.getLogger(__name__)

_TICK = 1.0  # seconds
_ASK = 60.0  # seconds between checks for nodes that were taken away
_USAGE = 600.0  # seconds between log lines on the use of the allocation

#: Batch systems may warn earlier than requested: Slurm by up to a minute (sbatch, --signal).
_EARLY = 90.0

_SOONER = 60.0  # an end that is sooner by this many seconds than the known one is a preemption, not a clock's error


def ending_margin(seconds: float, most: float) -> float:
    """Returns the seconds before the end of an allocation when its jobs must save and stop.

    Args:
        seconds: length of the allocation, or time from the warning to the end.
        most: time for saving, the last reports and delays of the batch system.
    """
    return min(most, seconds / 10)


class AllocationWatch(threading.Thread):
    """Ends the pilot early enough for running jobs to save their checkpoints, and logs how the nodes are used.

    After the batch system's warning no job is started. Running jobs continue, and most end by themselves. Shortly
    before the end the others are told to save. If the batch system takes a node away, only the jobs of that node end.
    If no job has come for a long time, the nodes are given back, because they are charged for.
    """

    def __init__(
        self,
        pool: AllocationPool,
        site: Site,
        allocation: AllocatedNodes,
        *,
        margin: float,
        idle: float,
        end: Callable[[], None],
    ) -> None:
        """Makes the watch; `start` starts it.

        Args:
            pool: pool of the allocation.
            site: the site with the batch system's warning signal.
            allocation: the allocation as it is now.
            margin: seconds before the end of the allocation when `end` is called.
            idle: seconds without a job after which `end` is called too; 0: never.
            end: ends the pilot; running jobs are told to save.
        """
        super().__init__(name="allocation", daemon=True)
        self._pool, self._site, self._end, self._margin = pool, site, end, margin
        self._began = self._busy = time.monotonic()
        self._idle = idle or math.inf
        self._ends = self._began + allocation.seconds
        self._remainder = allocation.remainder
        self._failed_launches, self._ask_at = 0, self._began + _ASK
        self._asked, self._asking = self._began, threading.Lock()
        self._cancelled: set[Hashable] = set()  # jobs whose steps were cancelled while the allocation went on
        self._warned = threading.Event()
        self._enough = threading.Event()
        self._over = threading.Event()

    @property
    def remaining(self) -> int:
        """Whole seconds until the end."""
        return max(1, int(min(self._ends - time.monotonic(), 1e9)))

    def warn(self) -> None:
        """Notes the batch system's warning."""
        self._warned.set()

    def is_cut_off(self, job: Hashable) -> bool:
        """Returns whether a job whose step was cancelled, but not by this pilot, was cut off by no fault of its own.

        Slurm signals the steps of an allocation that is preempted long before it signals the pilot. So the batch system
        is asked, and if the end is near, no job is started any more. If the allocation goes on, somebody has cancelled
        the step alone: a user, or a program that watches over the nodes. Then a job is cut off once; if that happens to
        it again at this pilot, it has failed, because the job may be the reason.

        Args:
            job: identifies it, in all its attempts.
        """
        if self.ends_soon():
            return True
        with self._asking:
            is_first = job not in self._cancelled
            self._cancelled.add(job)
            return is_first

    def ends_soon(self) -> bool:
        """Returns whether no more jobs start because the allocation ends soon; asks the batch system."""
        asked = time.monotonic()
        with self._asking:
            if self._asked < asked and not self._enough.is_set():  # else another thread has just asked
                self._ask_batch_system()
            return self._enough.is_set()

    def ask_soon(self) -> None:
        """Asks the batch system what is left: this process had a signal."""
        self._ask_at = 0.0

    def drain(self) -> None:
        """Starts no more jobs; the pilot ends when the running jobs have ended."""
        self._enough.set()

    def stop(self) -> None:
        """Ends the watch and logs how the allocation was used."""
        self._over.set()
        self._say_usage("the allocation's")

    def run(self) -> None:
        """Watches until the end."""
        say_at, drained = self._began + _USAGE, False
        while not self._over.is_set():
            now = time.monotonic()
            if self._warned.is_set() and not drained:
                drained = True
                self._shorten(now)
                log.info("the batch system warns: no more jobs start, %.0f s are left", self._ends - now)
                self._pool.drain()
            if self._enough.is_set() and not drained:
                drained = True
                self._pool.drain()
            self._look_for_changes(now)
            if not self._pool.up:
                log.error("all nodes of the allocation are lost")
                return self._end()
            if now >= self._ends - self._margin:
                log.info("the allocation ends in %.0f s: running jobs are told to save", self._ends - now)
                return self._end()
            if drained and self._pool.is_empty:
                return self._end()
            if not self._pool.is_idle:
                self._busy = now
            elif now - self._busy >= self._idle:
                log.info("no job has come for %.0f s: the allocation is given back", self._idle)
                return self._end()
            if now >= say_at:
                say_at = now + _USAGE
                self._say_usage("so far the allocation's")
            self._over.wait(min(_TICK, max(0.05, self._ends - self._margin - now)))
        return None

    def _look_for_changes(self, now: float) -> None:
        """Asks the batch system at intervals and after a failed launch."""
        failed = self._pool.failed_launches
        if now < self._ask_at and failed == self._failed_launches:
            return
        self._ask_at, self._failed_launches = now + _ASK, failed
        with self._asking:
            self._ask_batch_system()

    def _ask_batch_system(self) -> None:
        """Removes nodes that were taken away, and drains if the allocation ends sooner than was known."""
        now = self._asked = time.monotonic()  # one that does not answer is not asked by each waiting thread in turn
        try:
            left = self._remainder()
        except (HpoPilotError, ValueError) as error:
            log.info("the batch system does not say what is left of the allocation: %s", error)
            return
        if now + left.seconds < self._ends - _SOONER:
            self._ends = now + left.seconds
            self._margin = min(self._margin, left.seconds / 2)
            log.warning("the allocation ends in %.0f s, sooner than planned: no more jobs start", left.seconds)
            self._enough.set()
            self._pool.drain()  # at once: the caller may be about to free nodes
        for node in left.lost:
            self._pool.lose(node, TAKEN_AWAY)

    def _shorten(self, now: float) -> None:
        """Shortens the allocation if the warning comes long before the known end, as for a preemption."""
        warning = self._site.warning
        if warning is not None and warning.seconds and self._ends - now > warning.seconds + _EARLY:
            self._ends = now + warning.seconds
            self._margin = min(self._margin, warning.seconds / 2)

    def _say_usage(self, whose: str) -> None:
        usage, (running, waiting) = self._pool.usage(), self._pool.counts()
        ended = ", ".join(f"{count} {name}" for name, count in sorted(usage.endings.items())) or "no job has ended"
        gpus = f"; its GPUs': {_shares(usage.gpus)}" if usage.gpus.total else ""
        log.info("%s node time: %s%s; %s; %d run, %d wait", whose, _shares(usage.nodes), gpus, ended, running, waiting)


def _shares(spent: TimeBreakdown) -> str:
    total = spent.total or 1.0
    parts = {"used": spent.used, "in use": spent.running, "lost": spent.lost, "idle": spent.idle, "gone": spent.gone}
    return ", ".join(f"{100 * value / total:.0f}% {name}" for name, value in parts.items() if value or name == "used")
