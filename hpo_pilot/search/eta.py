"""When a search will probably be over, and by what that is judged. Pure: the clock is handed in."""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpo_pilot.search.cost import hours_allowed
from hpo_pilot.search.search import Search
from hpo_pilot.search.trial import Trial, TrialState

#: By how many of the last results the pace is judged, at least; of a wide search by two rounds of its slots.
_RESULTS = 10
_ROUNDS = 2

#: A time without results that is longer than so many trials: nothing ran, as in a pause, and it says nothing of the
#: pace. The time since the last result counts all the same: who waits wants to see that it drags on.
_IDLE = 3.0

#: Fewer results say nothing of the pace; then it is judged by how long they took.
_LEAST = 3

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


@dataclass(frozen=True)
class Span:
    """From when to when a trial was out, in seconds since the epoch."""

    begun: float
    ended: float


@dataclass(frozen=True)
class Estimate:
    """When a search will probably be over.

    Attributes:
        seconds: from now.
        basis: by what that is judged, in words.
        limit: what of the budget ends it then: `trials`, `hours`, `gpu_hours` or `core_hours`.
    """

    seconds: float
    basis: str
    limit: str = "trials"

    @property
    def text(self) -> str:
        """The time in words."""
        return duration_text(self.seconds)


def spans_of(trials: Iterable[Trial], limit: int) -> list[Span]:
    """The spans of the last trials that are over by themselves, in the order in which they ended; at most so many."""
    ended = [
        (trial.ended, trial)
        for trial in trials
        if trial.ended is not None and (trial.state is not TrialState.STOPPED or trial.stopped_early)
    ]
    last = heapq.nlargest(limit, ended, key=lambda each: (each[0], each[1].number))
    return [
        Span((trial.started or trial.submitted or end).timestamp(), end.timestamp()) for end, trial in reversed(last)
    ]


def window(search: Search) -> int:
    """How many of the last results `estimate` looks at; more make no difference."""
    return max(_RESULTS, _ROUNDS * search.budget.parallel)


def estimate(
    search: Search,
    spans: Sequence[Span],
    *,
    over: int,
    confirmed: int = 0,
    out: Sequence[float] = (),
    job_seconds: float,
    clock: float | None,
    now: float,
) -> Estimate | None:
    """When a running search will probably be over; None while nobody can tell, for it has no result.

    By the pace of the last results, or while they are few by how long they took; sooner where the hours or GPU-hours
    of its budget are spent before its trials.

    Args:
        search: the search.
        spans: of its last trials, in the order in which they ended; at least `window` of them, if there are so many.
        over: how many trials of the budget are over.
        confirmed: how many confirmation runs are over.
        out: when those trials began that run, in seconds since the epoch.
        job_seconds: what all its jobs ran so far.
        clock: when its hours began, in seconds since the epoch.
        now: seconds since the epoch.
    """
    if not spans:
        return None
    budget, spans = search.budget, spans[-window(search) :]
    left: float = max(0, budget.trials - over) + max(0, search.confirm.top * search.confirm.repeats - confirmed)
    each = statistics.fmean(max(0.0, span.ended - span.begun) for span in spans)
    limit = "trials"
    for name, allowed in hours_allowed(budget, search.resources).items():
        # So many trials more, if they cost what the others did.
        affordable = max(0.0, (allowed - job_seconds) * max(1, over + confirmed) / job_seconds) if job_seconds else left
        if affordable < left:
            left, limit = affordable, name
    seconds, basis = _rest(left, spans, each, budget.parallel, now)
    if limit != "trials":
        unit = limit.replace("_", "-").replace("gpu", "GPU")
        basis = f"its {unit} last for about {left:.0f} more trials, {basis}"
    seconds = max(seconds, each - (now - max(out)) if out else 0.0)  # what began last has its time before it
    if budget.hours is not None and clock is not None:
        until = max(0.0, clock + budget.hours * _HOUR - now) + each
        if until < seconds:
            seconds, basis, limit = until, f"its {budget.hours:g} hours are over then, and what is out ends", "hours"
    return Estimate(max(0.0, seconds), basis, limit)


def _rest(left: float, spans: Sequence[Span], each: float, parallel: int, now: float) -> tuple[float, str]:
    """How many seconds so many trials take, and by what that is judged."""
    ends = [span.ended for span in spans]
    since = max(0.0, now - ends[-1])
    if len(ends) < parallel + _LEAST:
        gap = each / min(parallel, max(1.0, left))
        basis = f"trials take {duration_text(each)}, {parallel} at once"
    else:
        # Trials that began together end together: from one result to the next but `parallel` it is one round.
        longest = max(_IDLE * each, 1.0)
        clock = list(itertools.accumulate((min(b - a, longest) for a, b in itertools.pairwise(ends)), initial=0.0))
        gap = statistics.fmean(b - a for a, b in zip(clock, clock[parallel:], strict=False)) / parallel
        basis = f"at the pace of the last {len(ends)} results"
    due = gap * parallel  # after so long the next round should have come
    return left * gap - min(since, gap) + max(0.0, since - due), basis


def duration_text(seconds: float) -> str:
    """A duration in words, in its two largest units: `2 h 5 min`."""
    whole = max(1, round(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    if whole < 2 * _DAY:
        hours, minutes = divmod(round(whole / 60), 60)
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} days" + (f" {hours} h" if hours else "")
