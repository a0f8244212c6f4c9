"""How long the jobs of a search run: measured, with those that still run taken into account."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter

_RATIO = 1.05  # from bin to bin: a quantile is too long by 5% at most
_GROWTH = 1.05  # of the measurements, until a quantile is computed anew


class RunTimes:
    """The run times of one search in one allocation.

    The first jobs to end are the short ones. So a quantile over them alone would be far too low; it is that of the
    Kaplan-Meier estimator (J. Am. Stat. Assoc. 53 (1958) 457), for which a job that still runs, failed or was
    cut says that its run time would have been longer than that.
    """

    def __init__(self, quantile: float, least: int) -> None:
        """A quantile, which is known from `least` finished jobs on."""
        self._beyond = 1.0 - quantile + 1e-9
        self._least = least
        self._finished: Counter[int] = Counter()
        self._broken_off: Counter[int] = Counter()
        self._measured = 0
        self._next = float(least)
        self._known: float | None = None
        self._starts: list[float] = []  # of those that run, ascending

    def started(self, now: float) -> None:
        """A job starts."""
        insort(self._starts, now)

    def ended(self, start: float, now: float, *, finished: bool, staging: float = 0.0) -> None:
        """A job that started at `start` ends; only what is finished is a measurement, and without its staging."""
        del self._starts[bisect_right(self._starts, start) - 1]
        place = math.ceil(math.log(max(1.0, now - start - staging), _RATIO))
        if finished:
            self._finished[place] += 1
            self._measured += 1
        else:
            self._broken_off[place] += 1

    def quantile(self, now: float) -> float | None:
        """Seconds within which the quantile's share of the jobs is finished; None: not known yet."""
        if self._measured >= self._next:
            self._next = max(self._measured + 1.0, _GROWTH * self._measured)
            self._known = self._computed(now)
        return self._known

    def _computed(self, now: float) -> float | None:
        left = self._measured + self._broken_off.total()
        surviving = 1.0
        for place in sorted(self._finished.keys() | self._broken_off.keys()):
            seconds = _RATIO**place
            finished = self._finished[place]
            still_running = bisect_right(self._starts, now - seconds / _RATIO)  # of this bin, or beyond
            surviving *= 1.0 - finished / (left + still_running) if finished else 1.0
            if surviving <= self._beyond:
                return seconds
            left -= finished + self._broken_off[place]
        return None
