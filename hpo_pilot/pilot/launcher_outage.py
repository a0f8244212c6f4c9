"""A launcher that starts nothing anywhere: its controller is away, or its site is set up wrongly.

Each job that came would lose an attempt within seconds, and none of them could do anything about it. So they go back,
no more are taken, and now and then one process on one node is tried. When that starts, all goes on; when none has
started for long, the allocation is given up.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpo_pilot.errors import GiveUpError

log = logging.getLogger(__name__)

_FRESH = 10.0  # seconds for which a try that went well counts for other jobs too


@dataclass(frozen=True)
class Patience:
    """How long an outage is borne, in seconds.

    Attributes:
        first: until the first try; each further pause is twice as long.
        longest: pause.
        most: from the first failure on; then the allocation is given up.
    """

    first: float = 2.0
    longest: float = 300.0
    most: float = 1800.0


class LauncherOutage:
    """Whether the launcher is away. Any thread may ask."""

    def __init__(
        self,
        attempt: Callable[[Sequence[str]], str],
        *,
        others: Callable[[], Sequence[str]],
        over: Callable[[], None],
        give_up: Callable[[GiveUpError], None],
        patience: Patience | None = None,
    ) -> None:
        """Takes the launcher to work.

        Args:
            attempt: starts a process that does nothing on each of these nodes; says why not, or nothing.
            others: the nodes that are of use.
            over: is called when the launcher works again.
            give_up: is called when it has been away for too long.
            patience: how long that is.
        """
        self._attempt, self._others, self._over, self._give_up = attempt, others, over, give_up
        self._patience = patience or Patience()
        self._lock = threading.Lock()
        self._trying = threading.Lock()
        self._stopped = threading.Event()
        self._worked = float("-inf")
        self._is_on = False

    @property
    def is_on(self) -> bool:
        """Whether it is away."""
        return self._is_on

    def is_everywhere(self, nodes: Sequence[str]) -> bool:
        """Whether a launch that failed for no known reason failed for the launcher's, not for the job's.

        Args:
            nodes: of the job, which has them still.
        """
        with self._trying:
            if self._is_on:
                return True
            if time.monotonic() - self._worked < _FRESH:
                return False
            if self._attempt(nodes):
                # It may be a node of the job that is dead, of which nobody says so.
                other = next((node for node in self._others() if node not in nodes), None)
                return other is None or bool(self._attempt([other]))
            self._worked = time.monotonic()
            return False

    def begin(self, why: str, nodes: Sequence[str]) -> None:
        """It is away; returns at once.

        Args:
            why: in the launcher's words.
            nodes: that are tried before others, for they are free.
        """
        with self._lock:
            if self._is_on or self._stopped.is_set():
                return
            self._is_on = True
        log.error("the launcher starts nothing, so no jobs are taken for now: %s", why)
        threading.Thread(target=self._run, args=[why, tuple(nodes)], name="outage", daemon=True).start()

    def stop(self) -> None:
        """The pilot ends: nothing is tried any more."""
        self._stopped.set()

    def _run(self, why: str, nodes: Sequence[str]) -> None:
        began, pause = time.monotonic(), self._patience.first
        in_turn = itertools.cycle([*nodes, *(node for node in self._others() if node not in nodes)])
        while not self._stopped.wait(pause):
            why = self._attempt([next(in_turn)])
            seconds = time.monotonic() - began
            if not why:
                self._is_on, self._worked = False, time.monotonic()
                log.warning("the launcher works again after %.0f s", seconds)
                self._over()
                return
            if seconds >= self._patience.most:
                text = f"the launcher has started nothing for {seconds:.0f} s ({why}): see the batch system's state"
                self._give_up(GiveUpError(text))
                return
            pause = min(2 * pause, self._patience.longest, max(1.0, began + self._patience.most - time.monotonic()))
            log.warning("the launcher still starts nothing, it is tried again in %.0f s: %s", pause, why)
