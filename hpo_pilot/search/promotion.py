"""Levels of trainings, and the promotion of points between them; depends neither on jobs nor on the clock.

Asynchronous successive halving with promotion: Li et al., "A System for Massively Parallel Hyperparameter Tuning",
MLSys 2020, algorithm 2. Each point is trained to the lowest level. It goes on to the next level as soon as it is among
the best 1/eta of the results of its level; until then it is paused.

Low levels may mislead: of recorded trainings (`bdt`) the rank at a third of the epochs says little of the last one
among the better half. So the first points go on whatever their results, and a level selects none as long as its ranks
do not agree with the ranks of the last level. Figures: `tests/performance/optimizers/results/README.md`.

Other rules were tried on made-up curves whose ranks agree, and none needed clearly fewer epochs: at most 1/eta of all
results go on; a share by the rank correlation; an order by figures that a process over point and figure projects;
expected improvement per rest of the training; points that start one level higher, as in Hyperband's brackets.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpo_pilot.search.trials import Trial

#: The first points are trained to the end: this number, and at most one in as many of the budget,
_FIRST = 8
#: and for at most this share of a limited sum of levels, but at least one.
_FIRST_SHARE = 0.25
#: A level selects points while its rank correlation with the last level is not known to be lower,
_AGREES = 0.9
#: from this number of points that reached both on; the last ones count.
LEAST_PAIRS, MOST_PAIRS = 4, 50


def levels_between(low: float, high: float, eta: int) -> tuple[float, ...]:
    """Returns the levels low, low x eta, low x eta^2, …, high; the last step may be larger or smaller than eta."""
    steps = max(1, round(math.log(high / low) / math.log(eta)))
    # Twelve digits, so that 3 x 0.05 is 0.15.
    below = (low * eta**step if isinstance(low, int) else float(f"{low * eta**step:.12g}") for step in range(steps))
    return (*below, high)


def first_points(points: int, high: float, limit: float | None) -> int:
    """Returns how many of the budget's points are trained to the end whatever their results.

    Args:
        points: the number of points in the budget.
        high: the highest level.
        limit: the largest sum of the levels of all trials; None: none.
    """
    most = min(_FIRST, points // _FIRST)
    return most if limit is None else min(most, max(1, int(_FIRST_SHARE * limit / high + 1e-9)))  # rounded


def planned_counts(points: int, levels: int, eta: int, first: int) -> list[int]:
    """Returns the expected number of trials at each level, if the levels' ranks agree: at least one to the end."""
    counts = [points]
    for _ in range(levels - 1):
        counts.append(max(1, _going_on(counts[-1], eta, first)))
    return counts


def _going_on(points: int, eta: int, first: int) -> int:
    """Returns how many points of a level go on if they come in random order: the first, and 1/eta of the others."""
    return min(points, first) + max(0, points - first) // eta


@lru_cache(maxsize=256)
def counts_within(points: int, levels: tuple[float, ...], eta: int, first: int, limit: float) -> tuple[int, ...]:
    """Returns the expected number of trials at each level, if the sum of the levels that they train is limited."""
    parts, left = _parts(levels), limit * (1 + 1e-9)

    def due_of(points: int) -> list[int]:
        counts = [points]
        for _ in levels[1:]:
            counts.append(_going_on(counts[-1], eta, first))
        return counts

    # As many points as can be trained with all that they lead to, then one trial after another.
    whole = bisect_right(range(1, points + 1), left, key=lambda each: level_sum(due_of(each), levels))
    counts = due_of(whole)
    left -= level_sum(counts, levels)
    while True:
        quotas = [_going_on(below, eta, first) for below in counts]
        due = (at for at in range(len(levels) - 1, 0, -1) if quotas[at - 1] > counts[at] and parts[at] <= left)
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
    """Returns the part of a trial's level that its own jobs train: 18 from 9 to 27 epochs, 27 from the start."""
    before = None if trial.continues is None or trial.from_start else trials[trial.continues].level
    return (trial.level or 0) - (before or 0)


def first_of_chain(trials: Mapping[int, Trial], trial: Trial) -> int:
    """Returns the number of the first trial of a point, as far as it is in `trials`, that a trial goes on from."""
    while trial.continues is not None and trial.continues in trials:
        trial = trials[trial.continues]
    return trial.number


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Returns Spearman's rank correlation of two or more pairs of numbers; equal ones rank in the order of pairs."""
    count = len(pairs)
    orders = (sorted(range(count), key=lambda row: pairs[row][side]) for side in (0, 1))
    ranks, others = ({row: rank for rank, row in enumerate(order)} for order in orders)
    return 1.0 - 6.0 * sum((ranks[row] - others[row]) ** 2 for row in range(count)) / (count * (count**2 - 1))


class Promotion:
    """Decides which points are trained to their next level. Lower costs are better."""

    def __init__(self, levels: Sequence[float], eta: int, first: int = 0) -> None:
        """Starts without results.

        Args:
            levels: the levels, in ascending order.
            eta: one point in this number goes on from each level.
            first: number of first results of each level that go on in any case.
        """
        self._levels, self._eta, self._first = levels, eta, first
        # By level, sorted.
        self._results: defaultdict[float, list[tuple[tuple[float, ...], int]]] = defaultdict(list)
        self._failed: defaultdict[float, int] = defaultdict(int)
        self._went_on: set[int] = set()
        self._unselected: defaultdict[float, list[int]] = defaultdict(list)  # go on whatever their results
        self._reached: defaultdict[Hashable, dict[float, Sequence[float]]] = defaultdict(dict)
        self._pairs: defaultdict[float, deque[tuple[Sequence[float], Sequence[float]]]]
        self._pairs = defaultdict(lambda: deque(maxlen=MOST_PAIRS))
        self._misleading: set[float] = set()  # levels whose ranks disagree with the last one's

    def tell(self, number: int, level: float, costs: Sequence[float] | None, point: Hashable = None) -> None:
        """Takes a result of a trial at a level, in the order of results.

        Args:
            number: the trial.
            level: its level.
            costs: one for each objective; None: it failed.
            point: identifies its point at all levels; None: nothing is learnt of how levels agree.
        """
        if costs is None:
            self._failed[level] += 1
            return
        insort(self._results[level], (tuple(costs), number))
        if len(self._results[level]) <= self._first or level in self._misleading:
            self._unselected[level].append(number)
        if level == self._levels[-1]:
            for below, cost in self._reached.pop(point, {}).items():
                self._pairs[below].append((cost, costs))
                (self._misleading.discard if self._agrees(below) else self._misleading.add)(below)
        elif point is not None:
            self._reached[point][level] = costs

    def _agrees(self, level: float) -> bool:
        """Whether ranks at a level agree with those at the last one, for all objectives, as far as is known."""
        pairs = self._pairs[level]
        by_objective = list(zip(*(zip(*pair, strict=True) for pair in pairs), strict=True))
        return len(pairs) < LEAST_PAIRS or all(rank_correlation(each) >= _AGREES for each in by_objective)

    def go_on(self, number: int) -> None:
        """Takes a promotion: another trial goes on from this one."""
        self._went_on.add(number)

    def has_gone_on(self, number: int) -> bool:
        """Returns whether another trial goes on from this one."""
        return number in self._went_on

    @property
    def levels_agree(self) -> bool:
        """Whether the ranks at every level are known to agree with those at the last one."""
        return all(
            len(self._pairs[level]) >= LEAST_PAIRS and level not in self._misleading for level in self._levels[:-1]
        )

    def due(self) -> Iterable[tuple[int, float]]:
        """Yields the trials that should go on, each with its next level: the highest levels first, then the best."""
        for level in sorted(self._results, reverse=True):
            above = self._next(level)
            if above is not None:
                chosen = dict.fromkeys((*self._best(level)[: self._quota(level)], *self._unselected[level]))
                yield from ((number, above) for number in chosen if number not in self._went_on)

    def waiting(self) -> Iterator[int]:
        """Yields the trials that would go on first if the search were extended: of each level the best paused ones.

        They are as many as the best 1/eta of the level, and at least one, and those that go on whatever their results.
        """
        for level in self._results:
            paused = [number for number in self._best(level) if number not in self._went_on]
            unselected = (number for number in self._unselected[level] if number not in self._went_on)
            yield from dict.fromkeys((*paused[: max(1, self._quota(level))], *unselected))

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
