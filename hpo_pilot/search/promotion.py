"""Levels of trainings, and the promotion of points between them; depends neither on jobs nor on the clock.

Asynchronous successive halving with promotion: Li et al., "A System for Massively Parallel Hyperparameter Tuning",
MLSys 2020, algorithm 2. Each point is trained to the lowest level. It goes on to the next level as soon as it is among
the best 1/eta of the results of its level; until then it is paused.

An optimizer finds better and better points, so about 70% of them go on, and most epochs are those of the last level.
Other rules were tried on development problems (`tests.performance fidelity --problem dev:offset:0`; 8 workers, 4 to 12
runs each), and none needed fewer epochs in clearly more runs: at most 1/eta of all results go on, also with one
standard deviation more or with the best of each level at once; a share by the measured rank correlation; an order by
figures that a process over point and figure projects; expected improvement per rest of the training. With points that
start one level higher, as in Hyperband's brackets, the same figure took more epochs in 12 of 14 runs (1.7 times).
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpo_pilot.search.trials import Trial


def levels_between(low: float, high: float, eta: int) -> tuple[float, ...]:
    """Returns the levels low, low x eta, low x eta^2, …, high; the last step may be larger or smaller than eta."""
    steps = max(1, round(math.log(high / low) / math.log(eta)))
    # Twelve digits, so that 3 x 0.05 is 0.15.
    below = (low * eta**step if isinstance(low, int) else float(f"{low * eta**step:.12g}") for step in range(steps))
    return (*below, high)


def planned_counts(points: int, levels: int, eta: int) -> list[int]:
    """Returns the expected number of trials at each level: the best 1/eta go on, and at least one point to the end."""
    counts = [points]
    for _ in range(levels - 1):
        counts.append(max(1, counts[-1] // eta))
    return counts


@lru_cache(maxsize=256)
def counts_within(points: int, levels: tuple[float, ...], eta: int, limit: float) -> tuple[int, ...]:
    """Returns the expected number of trials at each level, if the sum of the levels that they train is limited."""
    counts, left = [0] * len(levels), limit * (1 + 1e-9)
    parts = _parts(levels)
    while True:
        due = (at for at in range(len(levels) - 1, 0, -1) if counts[at - 1] // eta > counts[at] and parts[at] <= left)
        at = next(due, 0)
        if at == 0 and (counts[0] == points or parts[0] > left):
            return tuple(counts)
        counts[at] += 1
        left -= parts[at]


def mean_share(counts: Sequence[int], levels: Sequence[float]) -> float:
    """Returns the mean part of a level that a trial trains, as a share of the longest part; `counts`: by level."""
    return level_sum(counts, levels) / sum(counts) / max(_parts(levels))


def level_sum(counts: Sequence[int], levels: Sequence[float]) -> float:
    """Returns the sum of the levels that trials train: 18 by a trial from 9 to 27 epochs; `counts`: by level."""
    return sum(count * part for count, part in zip(counts, _parts(levels), strict=True))


def _parts(levels: Sequence[float]) -> list[float]:
    return [level - before for before, level in zip((0, *levels), levels, strict=False)]


def trained(trials: Mapping[int, Trial], trial: Trial) -> float:
    """Returns the part of a trial's level that its own jobs train: 18 from 9 to 27 epochs."""
    before = trials[trial.continues].level if trial.continues is not None else None
    return (trial.level or 0) - (before or 0)


def first_of_chain(trials: Mapping[int, Trial], trial: Trial) -> int:
    """Returns the number of the first trial of a point, as far as it is in `trials`, that a trial goes on from."""
    while trial.continues is not None and trial.continues in trials:
        trial = trials[trial.continues]
    return trial.number


class Promotion:
    """Decides which points are trained to their next level. Lower costs are better."""

    def __init__(self, levels: Sequence[float], eta: int) -> None:
        """Starts without results.

        Args:
            levels: the levels, in ascending order.
            eta: one point in this number goes on from each level.
        """
        self._levels, self._eta = levels, eta
        # By level, sorted.
        self._results: defaultdict[float, list[tuple[tuple[float, ...], int]]] = defaultdict(list)
        self._failed: defaultdict[float, int] = defaultdict(int)
        self._went_on: set[int] = set()

    def tell(self, number: int, level: float, costs: Sequence[float] | None) -> None:
        """Takes a result of a trial at a level: one cost for each objective; None: it failed."""
        if costs is None:
            self._failed[level] += 1
        else:
            insort(self._results[level], (tuple(costs), number))

    def go_on(self, number: int) -> None:
        """Takes a promotion: another trial goes on from this one."""
        self._went_on.add(number)

    def due(self) -> Iterable[tuple[int, float]]:
        """Yields the trials that should go on, each with its next level: the highest levels first, then the best."""
        for level in sorted(self._results, reverse=True):
            above = self._next(level)
            if above is not None:
                best = self._best(level)[: self._quota(level)]
                yield from ((number, above) for number in best if number not in self._went_on)

    def waiting(self) -> Iterator[int]:
        """Yields the trials that would go on first if the search were extended: of each level the best paused ones.

        They are as many as the best 1/eta of the level, and at least one.
        """
        for level in self._results:
            paused = [number for number in self._best(level) if number not in self._went_on]
            yield from paused[: max(1, self._quota(level))]

    def last(self) -> tuple[int, float] | None:
        """Returns the best paused trial of the highest level with its next level, if the last level has no result.

        At the end of a search of few points no trial of the upper levels is among the best 1/eta. One point is trained
        to the end all the same.
        """
        if self._levels[-1] not in self._results:
            for level in sorted(self._results, reverse=True):
                for number in self._best(level):
                    if number not in self._went_on and (above := self._next(level)) is not None:
                        return number, above
        return None

    def _next(self, level: float) -> float | None:
        return next((each for each in self._levels if each > level), None)

    def _quota(self, level: float) -> int:
        """Returns the number of trials of a level that are among its best 1/eta, failed ones included."""
        return (len(self._results[level]) + self._failed[level]) // self._eta

    def _best(self, level: float) -> list[int]:
        """Returns the trials with results at a level, best first; with several objectives by non-dominated rank."""
        results = self._results[level]
        if results and len(results[0][0]) > 1:
            from hpo_pilot.search.nondominated import costs_of, ranked  # noqa: PLC0415 - takes 0.2 s, seldom needed

            return [results[row][1] for row in ranked(costs_of([costs for costs, _ in results]))]
        return [number for _, number in results]
