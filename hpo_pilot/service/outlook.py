"""How a search goes and when it will probably end: pure functions of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hpo_pilot.optimizers.phase import Knowledge, phase
from hpo_pilot.search import Search, Trial, TrialState, point_key
from hpo_pilot.search.cost import Cost
from hpo_pilot.search.eta import estimate, spans_of, window
from hpo_pilot.search.extent import extent_of
from hpo_pilot.store import SearchState

#: Beyond ten years, in seconds, nobody waits, and a date may not be to be had.
_FURTHEST = 3650 * 86400.0

#: The points of so many trials are compared; those of more are taken for distinct, which is all but sure, and quick.
_COMPARED = 1000


@dataclass(frozen=True)
class Outlook:
    """How far a search is, and where it goes.

    Attributes:
        over: trials that are over, as `hpo_pilot.search.extent.Extent` counts them.
        planned: how many there will be, counted alike.
        end: when its budget will be spent at that pace; None: nobody can tell, or it does not run.
        limit: what ends it then: `trials`, `hours`, `gpu_hours` or `core_hours`.
        basis: by what that is judged, in words.
        since_best: how many results came since the best one; None: there is none yet.
    """

    over: int
    planned: int
    end: datetime | None
    limit: str
    basis: str
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
    steered: bool = True,
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
        steered: whether anything steers it; else nobody can tell when it will end.
    """
    over = [trial for trial in trials if trial.is_result]
    extent = extent_of(search, over, is_over=state.is_over)
    told = max((trial.told for trial in trials if trial.told is not None), default=0)
    of_best = next((trial.told for trial in trials if trial.number == best), None)
    expected = None
    if state is SearchState.RUNNING and steered:
        expected = estimate(
            search,
            spans_of(over, window(search)),
            over=extent.over - extent.confirmations,
            confirmed=extent.confirmations,
            out=[trial.started.timestamp() for trial in trials if trial.started and not trial.state.is_over],
            job_seconds=cost.job_seconds,
            clock=None if clock is None else clock.timestamp(),
            now=now.timestamp(),
        )
    end, limit, basis = None, "trials", ""
    if expected is not None and expected.seconds < _FURTHEST:
        end, limit, basis = now + timedelta(seconds=expected.seconds), expected.limit, expected.basis
    since_best = None if of_best is None else told - of_best
    return Outlook(extent.over, extent.planned, end, limit, basis, since_best)


def optimizer_words(search: Search, state: SearchState, trials: Sequence[Trial], *, steered: bool = True) -> str:
    """What the search's optimizer does at the moment, in words; folds are not needed."""
    if not (steered or state.is_over):
        return "nothing steers the search: proposes no points"
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
    tried = {point_key(trial.point) for trial in counted} if len(counted) <= _COMPARED else None
    starts = {point_key(search.space.canonical(point)) for point in search.start}
    untried = set() if tried is None else starts - tried
    if untried:
        return f"trying the start points of its file: {len(starts) - len(untried)} of {len(starts)} are out"
    # Known results of the file are told to it first, as if they were of this search.
    good = sum(trial.state is TrialState.FINISHED for trial in results)
    good += sum(known.figures is not None for known in search.known)
    knowledge = Knowledge(
        known=len(counted if tried is None else tried) + len(search.known),
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
