"""How a search goes and when it will probably end: pure functions of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hpo_pilot.optimizers.phase import Knowledge, phase
from hpo_pilot.search import Search, Trial, TrialState, point_key
from hpo_pilot.search.cost import Cost
from hpo_pilot.store import SearchState

#: The newest results by which the speed is judged: enough to even out a straggler, few enough to follow a change.
_RECENT = 32


@dataclass(frozen=True)
class Outlook:
    """How far a search is, and where it goes.

    Attributes:
        over: trials and confirmation runs that are over.
        planned: how many there will be, as far as one can tell.
        per_hour: trials that come to their end in an hour, lately; None: nobody can tell yet.
        end: when its budget will be spent at that pace; None: nobody can tell, or it does not run.
        limit: what ends it then: `trials`, `hours`, `gpu_hours` or `core_hours`.
        since_best: how many results came since the best one; None: there is none yet.
    """

    over: int
    planned: int
    per_hour: float | None
    end: datetime | None
    limit: str
    since_best: int | None


def outlook(
    search: Search,
    state: SearchState,
    trials: Sequence[Trial],
    *,
    clock: datetime | None,
    cost: Cost,
    best: int | None,
    now: datetime,
) -> Outlook:
    """How far a search is.

    Args:
        search: the search.
        state: its state.
        trials: all its trials; folds are not needed.
        clock: since when its hours count.
        cost: what its jobs took so far.
        best: the number of its best trial.
        now: the present.
    """
    over = [trial for trial in trials if trial.state.is_over and (trial.counts or trial.confirms is not None)]
    confirming = search.confirm.top * search.confirm.repeats if len(search.objectives) == 1 else 0
    planned = max(search.budget.trials + confirming, len(over))
    told = max((trial.told for trial in trials if trial.told is not None), default=0)
    of_best = next((trial.told for trial in trials if trial.number == best), None)
    if state.is_over:
        planned = len(over)
    per_hour = _pace(over, now)
    ends = _ends(search, planned - len(over), per_hour, clock, cost, now) if state is SearchState.RUNNING else {}
    limit = min(ends, key=lambda name: ends[name], default="trials")
    return Outlook(len(over), planned, per_hour, ends.get(limit), limit, None if of_best is None else told - of_best)


def _pace(over: Sequence[Trial], now: datetime) -> float | None:
    """Trials an hour, by the newest; the time since the last one counts, so that a search that stalls slows down."""
    ends = sorted(trial.ended for trial in over if trial.ended is not None)[-_RECENT:]
    if len(ends) < 2:
        return None
    seconds = (max(now, ends[-1]) - ends[0]).total_seconds()
    return 3600 * (len(ends) - 1) / seconds if seconds > 0 else None


def _ends(
    search: Search, left: int, per_hour: float | None, clock: datetime | None, cost: Cost, now: datetime
) -> dict[str, datetime]:
    """When each limit will be reached, of those that can be foreseen; the trials first, for equal times."""
    hours: dict[str, float] = {}
    if per_hour:
        hours["trials"] = left / per_hour
    budget = search.budget
    passed = None if clock is None else (now - clock).total_seconds() / 3600
    if passed is not None:
        if budget.hours is not None:
            hours["hours"] = budget.hours - passed
        for name, limit, used in (
            ("gpu_hours", budget.gpu_hours, cost.gpu_hours),
            ("core_hours", budget.core_hours, cost.core_hours),
        ):
            if limit is not None and used > 0 and passed > 0:
                hours[name] = (limit - used) * passed / used
    furthest = 24 * 3650.0  # beyond ten years nobody waits, and a date may not be to be had
    return {name: now + timedelta(hours=max(0.0, each)) for name, each in hours.items() if each < furthest}


def optimizer_words(search: Search, state: SearchState, trials: Sequence[Trial]) -> str:
    """What the search's optimizer does at the moment, in words; folds are not needed."""
    scanned = [trial for trial in trials if trial.confirms is None]
    out = [trial for trial in scanned if not trial.state.is_over]
    confirmations = [trial for trial in trials if trial.confirms is not None]
    if state.is_over:
        return "at its end: proposes no more points"
    if state in (SearchState.PAUSED, SearchState.STOPPING):
        waits = f"; {len(out)} trial{'s' * (len(out) != 1)} still out" if out else ""
        return ("paused: proposes no points" if state is SearchState.PAUSED else "stopping") + waits
    if confirmations:
        ended = sum(trial.state.is_over for trial in confirmations)
        return f"confirming: {ended} of {len(confirmations)} fresh runs of the best points are over"
    if state is SearchState.SUBMITTED:
        return "waiting for a service to take the search up"
    counted = [trial for trial in scanned if trial.counts]
    if len(counted) >= search.budget.trials:
        return f"done proposing: the last {len(out)} trial{'s are' if len(out) != 1 else ' is'} out"
    results = [trial for trial in scanned if trial.told is not None]
    starts = {point_key(search.space.canonical(point)) for point in search.start}
    untried = starts - {point_key(trial.point) for trial in counted}
    if untried:
        return f"trying the start points of its file: {len(starts) - len(untried)} of {len(starts)} are out"
    # Known results of the file are told to it first, as if they were of this search.
    good = sum(trial.state is TrialState.FINISHED for trial in results)
    good += sum(known.figures is not None for known in search.known)
    knowledge = Knowledge(
        known=len({point_key(trial.point) for trial in counted}) + len(search.known),
        told=len(results) + len(search.known),
        good=good,
        earlier=bool(search.warm_start),
    )
    return phase(
        search.optimizer.name,
        search.optimizer.settings,
        knowledge,
        dimensions=len(search.space.dimensions),
        trials=search.budget.trials,
        objectives=len(search.objectives),
    )
