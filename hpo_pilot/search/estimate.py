"""The estimated end of a search, by simulations with run times drawn from those of its last trials."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpo_pilot.search.promotion import level_sum
from hpo_pilot.search.trials import hours_allowed

if TYPE_CHECKING:
    from hpo_pilot.search.search import Search

#: The estimate uses at least this number of the last results, and this number of rounds of `budget.parallel`; at most
#: `_MOST_SPANS`.
_RESULTS = 10
_ROUNDS = 3
_MOST_SPANS = 300

#: A gap between results longer than this number of run times is cut off: nothing ran, as in a pause. The time since the
#: last result is not cut off, so that users see a delay.
_IDLE = 3.0

#: With fewer results beyond the first round, the pace is not known, and all slots are assumed to be busy.
_LEAST = 3

#: With fewer slots busy than this share of `budget.parallel`, the others are assumed to stay empty.
_BUSY = 0.75


@dataclass(frozen=True)
class Span:
    """Begin and end of a trial, in seconds since the epoch.

    Attributes:
        begun: its start.
        ended: its end; of a running trial the present time.
        levels: the levels that it trains, as 18 from 9 to 27 epochs; 1 in a search without levels.
    """

    begun: float
    ended: float
    levels: float = 1.0

    @property
    def seconds(self) -> float:
        """Its run time."""
        return max(0.0, self.ended - self.begun)


@dataclass(frozen=True)
class Estimate:
    """Estimated end of a search.

    Attributes:
        seconds: estimated seconds from now: the median of simulations.
        earliest: as `seconds`, for the earliest of the simulated ends.
        latest: for the latest of them.
        limit: the part of the budget that will end it: `trials`, `hours`, `gpu_hours`, `core_hours` or `fidelity`.
        left: number of trials until then, unless `hours` end it.
        each: mean run time of the last trials, in seconds.
        parallel: number of trials at once.
        results: number of the last results whose pace gives `parallel`; 0: it is `budget.parallel`.
        hours: hours of the budget; None: no limit.
    """

    seconds: float
    earliest: float
    latest: float
    limit: str
    left: float
    each: float
    parallel: int
    results: int
    hours: float | None


def window(search: Search) -> int:
    """Returns the number of the last results that `estimate` uses."""
    return min(_MOST_SPANS, max(_RESULTS, _ROUNDS * search.budget.parallel))


def estimate(
    search: Search,
    spans: Sequence[Span],
    *,
    over: int,
    confirmed: int = 0,
    out: Sequence[Span] = (),
    job_seconds: float,
    clock: float | None,
    now: float,
    trained: float = 0.0,
) -> Estimate | None:
    """Returns the estimated end of a running search; None while it has no result.

    It simulates the rest of the search several times, with run times drawn from the last trials, by the levels that
    trials train. The end is earlier if the hours, GPU-hours, core-hours or levels of the budget run out before its
    trials.

    Args:
        search: the search.
        spans: spans of the last trials, in the order of their ends; `window` of them, or all.
        over: number of trials of the budget that are over.
        confirmed: number of confirmation runs that are over.
        out: spans of the running trials.
        job_seconds: run time of all jobs so far.
        clock: start of the search's hours, in seconds since the epoch.
        now: seconds since the epoch.
        trained: levels that the trials in `over` have trained; for a search with levels.
    """
    if not spans:
        return None
    budget, spans, levels = search.budget, spans[-window(search) :], search.levels
    confirming = search.confirm.top * search.confirm.repeats
    # Without levels, each trial counts as one.
    planned: float = search.planned_trials - confirming
    done, whole = float(over), 1.0
    if levels is not None:
        planned = level_sum(levels.wanted(budget.trials, budget.fidelity), levels.values)
        done, whole = trained, levels.high
    limit = "trials"
    if budget.fidelity is not None and budget.fidelity < planned:
        planned, limit = budget.fidelity, "fidelity"
    left = max(0.0, planned - done) + whole * max(0, confirming - confirmed)
    done += whole * confirmed
    each = statistics.fmean(span.seconds for span in spans)
    for name, allowed in hours_allowed(budget, search.resources).items():
        # The levels that further trials at the mean cost so far would train.
        affordable = max(0.0, (allowed - job_seconds) * (done or 1.0) / job_seconds) if job_seconds else left
        if affordable < left:
            left, limit = affordable, name
    slots, results, stalled = _pace(spans, each, budget.parallel, now)
    longest, every = 60.0 * search.resources.minutes, over + confirmed <= len(spans)
    waiting = max(0.0, left - sum(span.levels for span in out))
    ends = _simulated(spans, out, waiting, slots, longest, every=every)
    left /= statistics.fmean(span.levels for span in spans)
    ends = [end + (0.0 if out else stalled) for end in ends]
    if budget.hours is not None and clock is not None:
        until = max(0.0, clock + 3600.0 * budget.hours - now)
        if until + each < statistics.median(ends):
            ends, limit = [until, until + each, until + max(span.seconds for span in spans)], "hours"
    return Estimate(statistics.median(ends), ends[0], ends[-1], limit, left, each, slots, results, budget.hours)


def _pace(spans: Sequence[Span], each: float, parallel: int, now: float) -> tuple[int, int, float]:
    """Returns (slots that are busy, number of results that show it, seconds that the next result is late)."""
    ends = [span.ended for span in spans]
    if len(ends) < parallel + _LEAST:
        return parallel, 0, max(0.0, now - ends[-1] - each)
    # Trials that begin together end together: from a result to the `parallel`-th after it is one round.
    longest = max(_IDLE * each, 1.0)
    clock = list(itertools.accumulate((min(b - a, longest) for a, b in itertools.pairwise(ends)), initial=0.0))
    round_seconds = statistics.fmean(b - a for a, b in zip(clock, clock[parallel:], strict=False))
    busy = parallel * each / round_seconds if round_seconds else parallel
    slots = parallel if busy > _BUSY * parallel else max(1, round(busy))
    return slots, len(ends), max(0.0, now - ends[-1] - round_seconds)


#: Number of simulations, and the largest number of slots and of waiting trials in each.
_SIMULATIONS, _MOST_SLOTS, _MOST_DRAWN = 24, 200, 200

#: The least deviation of the logarithm of run times, and the steps to find it.
_LEAST_SPREAD, _FIT_STEPS = 0.03, 40


def _simulated(
    spans: Sequence[Span], out: Sequence[Span], left: float, slots: int, limit: float, *, every: bool
) -> list[float]:
    """Returns simulated seconds until all trials are over, in ascending order.

    Args:
        spans: the last trials that are over.
        out: the running trials.
        left: levels that trials which have not begun will train; without levels the number of these trials.
        slots: number of trials at once.
        limit: longest run time of a trial.
        every: whether `spans` are all trials that are over.
    """
    rng = random.Random(0)  # noqa: S311 - equal inputs give equal estimates
    step = -(-max(slots, len(out)) // _MOST_SLOTS)
    out, left = sorted(out, key=lambda span: span.begun)[::step], left / step
    slots = max(-(-slots // step), len(out))
    # Of trials that began together, the short ones end first: so the last trials that began are taken, whether they
    # are over or not; all of them, if `spans` are all results.
    begun = sorted(span.begun for span in (*spans, *out))
    first = begun[0 if every else -len(spans)]
    recent = [span for span in spans if span.begun >= first] or [spans[-1]]
    running = [span for span in out if span.begun >= first]
    levels = [span.levels for span in (*recent, *running)]
    usual = _usual(recent)
    sample = RunTimeSample(*([span.seconds / usual(span.levels) for span in some] for some in (recent, running)))
    limit = max(limit, *(span.seconds for span in spans))
    ends = []
    for number in range(_SIMULATIONS):
        draw = sample.redrawn(rng, smooth=number % 2 == 1)
        rest = [0.0] * (slots - len(out))
        for span in out:
            common = usual(span.levels)
            seconds = common * draw(span.seconds / common)
            rest.append(max(0.0, min(seconds, limit) - span.seconds))
        heapq.heapify(rest)
        waiting, drawn = left, 0.0
        for each in rng.choices(levels, k=_MOST_DRAWN):
            if waiting <= 0:
                break
            seconds = min(usual(each) * draw(0.0), limit)
            heapq.heapreplace(rest, rest[0] + seconds)
            waiting, drawn = waiting - each, drawn + seconds
        beyond = drawn / (left - waiting) * waiting / slots if waiting > 0 else 0.0
        ends.append(max(rest) + beyond)
    return sorted(ends)


def _usual(spans: Sequence[Span]) -> Callable[[float], float]:
    """Returns the mean run time of trials by the levels that they train: seconds to start, and some for each level."""
    levels, seconds = [span.levels for span in spans], [span.seconds for span in spans]
    each, start = statistics.fmean(seconds) / statistics.fmean(levels), 0.0
    if len(set(levels)) > 1:
        slope, intercept = statistics.linear_regression(levels, seconds)
        if slope < 0.0:
            each, start = 0.0, statistics.fmean(seconds)
        elif intercept > 0.0:
            each, start = slope, intercept
    return lambda trained: max(_SHORTEST, start + each * trained)


class RunTimeSample:
    """Run times from which others are drawn. Of a trial that still runs it is known that it is longer.

    Every other time they are drawn by the Kaplan-Meier estimator (J. Am. Stat. Assoc. 53 (1958) 457), which knows
    nothing of the tail, and by a log-normal law, whose tail may be too long: the truth is mostly between them.
    """

    def __init__(self, known: Sequence[float], still: Sequence[float]) -> None:
        """Takes complete run times, and lower limits (`still`) for runs that have not ended."""
        self._seconds = [(seconds, False) for seconds in known] + [(seconds, True) for seconds in still]
        self._mean, self._deviation = _log_normal(known, still)
        self._known = len(known)

    def redrawn(self, rng: random.Random, *, smooth: bool) -> Callable[[float], float]:
        """Returns a function that draws a run time longer than its argument; few run times leave it uncertain.

        Args:
            rng: the source of randomness.
            smooth: whether the law is log-normal.
        """
        mean, deviation, freedom = self._mean, self._deviation, self._known - 1

        def tail(beyond: float) -> float:
            place = (math.log(max(beyond, _SHORTEST)) - mean) / deviation
            share = rng.random() * _tail(place)
            if share < _TINY:
                return beyond
            log = mean - deviation * _NORMAL.inv_cdf(share)
            return max(beyond, math.exp(min(_LARGEST_LOG, log)))

        if smooth and freedom > 1:
            deviation *= math.sqrt(freedom / rng.gammavariate(freedom / 2.0, 2.0))
            mean = rng.gauss(mean, deviation / math.sqrt(self._known))
            return tail
        drawn = sorted(rng.choices(self._seconds, k=len(self._seconds)))
        values, survival, surviving = [], [], 1.0  # survival is negative, so that it ascends
        for place, (seconds, runs) in enumerate(drawn):
            if not runs:
                # The next one is longer than all others with some probability, too.
                surviving *= 1.0 - 1.0 / (len(drawn) - place + 1)
                values.append(seconds)
                survival.append(-surviving)

        def draw(beyond: float) -> float:
            place = bisect_right(values, beyond)
            place = bisect_right(survival, rng.random() * (survival[place - 1] if place else -1.0))
            return values[place] if place < len(values) else tail(max(beyond, drawn[-1][0]))

        return draw


def _log_normal(known: Sequence[float], still: Sequence[float]) -> tuple[float, float]:
    """Returns mean and deviation of the logarithm of run times, by maximum likelihood (EM); see `RunTimeSample`."""
    logs, bounds = ([math.log(max(seconds, _SHORTEST)) for seconds in some] for some in (known, still))
    mean, deviation = statistics.fmean(logs), max(_LEAST_SPREAD, statistics.pstdev(logs))
    for _ in range(_FIT_STEPS if bounds else 0):
        places = [(bound - mean) / deviation for bound in bounds]
        hazards = [_NORMAL.pdf(place) / _tail(place) if _tail(place) > _TINY else place for place in places]
        expected = logs + [mean + deviation * hazard for hazard in hazards]
        narrower = sum(
            max(0.0, 1.0 + place * hazard - hazard**2) for place, hazard in zip(places, hazards, strict=True)
        )
        mean, spread = statistics.fmean(expected), statistics.pvariance(expected)
        deviation = max(_LEAST_SPREAD, math.sqrt(spread + deviation**2 * narrower / len(expected)))
    return mean, deviation


def _tail(place: float) -> float:
    """Returns the probability that a normal deviate is larger."""
    return 0.5 * math.erfc(place / math.sqrt(2.0))


_NORMAL = statistics.NormalDist()
_SHORTEST, _TINY, _LARGEST_LOG = 1e-3, 1e-300, 600.0
