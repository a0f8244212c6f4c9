"""How long the jobs of a search run: measured, with those that still run taken into account."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter

_RATIO = 1.05  # from bin to bin: a quantile is too long by 5% at most
_MOST = 0.75 + 1e-9  # of the jobs: while more may be longer than all that is measured, nothing is estimated
_BEYOND = 2.0  # so much longer is the quantile than the longest measured, for all of the jobs that may be longer yet
_GROWTH = 1.05  # of the measurements, until a quantile is computed anew


class RunTimes:
    """The run times of one search in one allocation.

    The first jobs to end are the short ones. So a quantile over them alone would be far too low; it is that of the
    Kaplan-Meier estimator (J. Am. Stat. Assoc. 53 (1958) 457), for which a job that still runs, failed or was
    cut says that its run time would have been longer than that.

    It is the quantile for the next job: one more is counted that outlives all others. For the longest of three run
    times is exceeded by the next one in a quarter of all cases, and the only one in half of them. Where the quantile
    lies beyond all that is measured, it is estimated from the longest that is, if a quarter of the jobs are not longer:
    a node that stands idle is lost for sure. For one, two or three log-normal run times that differ by a factor of
    1.6, 73 to 75% of the next ones are no longer than such an estimate of the 75% quantile.
    """

    def __init__(self, quantile: float, least: int = 1) -> None:
        """A quantile, which is known from `least` finished jobs on at the earliest."""
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
        surviving, longest = 1.0, 0.0
        for place in sorted(self._finished.keys() | self._broken_off.keys()):
            seconds = _RATIO**place
            finished = self._finished[place]
            still_running = bisect_right(self._starts, now - seconds / _RATIO)  # of this bin, or beyond
            surviving *= 1.0 - finished / (left + still_running + 1) if finished else 1.0
            if surviving <= self._beyond:
                return seconds
            longest = seconds if finished else longest
            left -= finished + self._broken_off[place]
        return longest * (1.0 + _BEYOND * (surviving - self._beyond)) if surviving <= _MOST else None
