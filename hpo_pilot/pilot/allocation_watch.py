"""The end of an allocation, and how it was used."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable

from hpo_pilot.errors import HpoPilotError
from hpo_pilot.pilot.allocation import Allocation
from hpo_pilot.pilot.allocation_room import TAKEN, AllocationRoom
from hpo_pilot.pilot.site import Site
from hpo_pilot.scheduling import Spent

log = logging.getLogger(__name__)

_TICK = 1.0  # seconds
_ASK = 60.0  # seconds between looks at whether nodes were taken away
_RECLAIM = 5.0  # seconds between looks at whether nodes that are held are free
_USAGE = 600.0  # seconds between lines on the use of the allocation

#: Batch systems warn earlier than asked for: Slurm by up to a minute (sbatch, --signal).
_EARLY = 90.0


def ending_margin(seconds: float, most: float) -> float:
    """How long before its end an allocation's jobs are told to save and stop, in seconds.

    Args:
        seconds: how long it lasts, or how long before the end the warning comes.
        most: what saving, the last reports and the batch system's own delays take.
    """
    return min(most, seconds / 10)


class AllocationWatch(threading.Thread):
    """Ends the pilot in time for what runs to save its checkpoints, and tells now and then how the nodes are used.

    After the batch system's warning nothing more is started. What runs goes on: most of it ends by itself. Shortly
    before the end the rest is told to save. A node that the batch system took away takes its own jobs along; the others
    go on. Where no job has come for long, the nodes are given back: they are charged for.
    """

    def __init__(
        self,
        room: AllocationRoom,
        site: Site,
        allocation: Allocation,
        *,
        margin: float,
        idle: float,
        end: Callable[[], None],
    ) -> None:
        """Prepares; `start` starts it.

        Args:
            room: the allocation's.
            site: whose batch system warns.
            allocation: as it is now.
            margin: before its end, when `end` is called, in seconds.
            idle: seconds without a job after which it is called too; 0: never.
            end: ends the pilot; running jobs are told to save.
        """
        super().__init__(name="allocation", daemon=True)
        self._room, self._site, self._end, self._margin = room, site, end, margin
        self._began = self._busy = time.monotonic()
        self._idle = idle or math.inf
        self._ends = self._began + allocation.seconds
        self._lost, self._reclaim = allocation.lost, allocation.reclaim
        self._failed_launches, self._ask_at = 0, self._began + _ASK
        self._asked = self._reclaim_at = self._began
        self._reclaiming = threading.Lock()
        self._not_free: list[str] = []  # nodes of which it was said that the batch system keeps them
        self._warned = threading.Event()
        self._enough = threading.Event()
        self._over = threading.Event()

    @property
    def remaining(self) -> int:
        """Whole seconds until the end."""
        return max(1, int(min(self._ends - time.monotonic(), 1e9)))

    def warn(self) -> None:
        """The batch system says that the end is near."""
        self._warned.set()

    def drain(self) -> None:
        """Nothing more is started; when what runs has ended, the pilot does."""
        self._enough.set()

    def stop(self) -> None:
        """Ends the watch, and says how the allocation was used."""
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
                log.info("the batch system warns: nothing more is started, %.0f s are left", self._ends - now)
                self._room.drain()
            if self._enough.is_set() and not drained:
                drained = True
                self._room.drain()
            self._look_for_losses(now)
            self._look_for_free_nodes(now)
            if self._room.is_gone:
                log.error("all nodes of the allocation are lost")
                return self._end()
            if now >= self._ends - self._margin:
                log.info("the allocation ends in %.0f s: what runs is told to save", self._ends - now)
                return self._end()
            if drained and self._room.is_empty:
                return self._end()
            if not self._room.is_idle:
                self._busy = now
            elif now - self._busy >= self._idle:
                log.info("no job has come for %.0f s: the allocation is given back", self._idle)
                return self._end()
            if now >= say_at:
                say_at = now + _USAGE
                self._say_usage("so far the allocation's")
            self._over.wait(min(_TICK, max(0.05, self._ends - self._margin - now)))
        return None

    def _look_for_losses(self, now: float) -> None:
        """The batch system may have taken nodes away; asked now and then, and when a launch has failed."""
        failed = self._room.failed_launches
        if now < self._ask_at and failed == self._failed_launches:
            return
        self._ask_at, self._failed_launches = now + _ASK, failed
        try:
            for node in self._lost():
                self._room.lose(node, TAKEN, taken_since=self._asked)
            self._asked = now
        except (HpoPilotError, ValueError) as error:
            log.info("the batch system does not say which nodes are left: %s", error)

    def _look_for_free_nodes(self, now: float) -> None:
        """What ran on nodes that are held may have ended. A thread of its own asks: the end must not wait for it."""
        if now < self._reclaim_at or self._reclaiming.locked() or not (held := self._room.held):
            return
        self._reclaim_at = now + _RECLAIM
        threading.Thread(target=self._take_back, args=[held], name="reclaim", daemon=True).start()

    def _take_back(self, held: list[str]) -> None:
        if self._reclaim is None:
            return
        with self._reclaiming:
            try:
                self._room.release(self._reclaim(held))
            except (HpoPilotError, ValueError) as error:
                if held != self._not_free:
                    log.info("the batch system does not give %s back yet: %s", ", ".join(held), error)
                self._not_free = held

    def _shorten(self, now: float) -> None:
        """A warning long before the end that was known is of another one, such as a preemption."""
        warning = self._site.warning
        if warning is not None and warning.seconds and self._ends - now > warning.seconds + _EARLY:
            self._ends = now + warning.seconds
            self._margin = min(self._margin, warning.seconds / 2)

    def _say_usage(self, whose: str) -> None:
        usage, (running, waiting) = self._room.usage(), self._room.counts()
        endings: Counter[str] = Counter()
        for search in usage.searches.values():
            endings.update({ending.value: count for ending, count in search.endings.items()})
        ended = ", ".join(f"{count} {name}" for name, count in sorted(endings.items())) or "no job has ended"
        gpus = f"; its GPUs': {_shares(usage.gpus)}" if usage.gpus.total else ""
        log.info("%s node time: %s%s; %s; %d run, %d wait", whose, _shares(usage.nodes), gpus, ended, running, waiting)


def _shares(spent: Spent) -> str:
    total = spent.total or 1.0
    parts = {"used": spent.used, "in use": spent.running, "lost": spent.lost, "idle": spent.idle, "gone": spent.gone}
    return ", ".join(f"{100 * value / total:.0f}% {name}" for name, value in parts.items() if value or name == "used")
