"""How many points to keep waiting at the server, so that a slot that frees finds work at once.

A freed slot stays idle while its successor is handed over: the result collected, the optimizer asked, the point
submitted. The share of slot time that is lost is hand-over / (hand-over + run time). Where that share is felt, about
parallel x hand-over / run time points must wait at any moment; where it is not, none should, for a point that is asked
for later knows more.
"""

from __future__ import annotations

import math

#: The share of slot time that may be lost before points are kept waiting.
TOLERATED = 0.02

#: The weight of the newest measurement in the running means.
_WEIGHT = 0.2


class Lookahead:
    """Measures hand-over and run times, and says how many points should wait."""

    def __init__(self, parallel: int, queued: int | str, trials_per_job: int = 1) -> None:
        """Starts without measurements.

        Args:
            parallel: trials that run at once.
            queued: the search file's `budget.queued`; a number is taken as it is, `auto` is worked out.
            trials_per_job: that run one after another between two hand-overs.
        """
        self._parallel = parallel
        self._per_job = trials_per_job
        self._queued = queued
        self._hand_over: float | None = None
        self._run_time: float | None = None

    def handed_over(self, seconds: float) -> None:
        """A slot's hand-over took this long: from collecting a result to the next submission."""
        self._hand_over = _mean(self._hand_over, seconds)

    def ran(self, seconds: float) -> None:
        """A trial ran so long."""
        self._run_time = _mean(self._run_time, seconds * self._per_job)

    @property
    def waiting(self) -> int:
        """How many points beyond `parallel` should be out.

        None for one trial at a time: such a search is asked for to be strictly sequential, and is then reproducible.
        """
        if isinstance(self._queued, int):
            return self._queued
        if self._parallel == 1 or self._hand_over is None or self._run_time is None:
            return 0
        share = self._hand_over / max(self._run_time, 1e-3)
        if share < TOLERATED:
            return 0
        waiting = math.ceil(self._parallel * share / self._per_job) * self._per_job
        return min(self._parallel, waiting)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
