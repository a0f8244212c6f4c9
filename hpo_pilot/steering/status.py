"""The course of a search for users: its expected end, whether it is steered, and notes on problems."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from hpo_pilot.advice import command
from hpo_pilot.optimizers.phase import Knowledge, optimizer_phase
from hpo_pilot.search import Search, Trial, TrialState, point_key
from hpo_pilot.search.trials import Cost, estimate, spans_of, trial_counts_of, window
from hpo_pilot.store import EMBEDDED, SearchRecord, SearchState, Store
from hpo_pilot.store.lease import Holder
from hpo_pilot.store.queries import open_tasks, reported_a_number, waiting_tasks

#: Beyond ten years, in seconds, nobody waits, and a date may not be to be had.
_FURTHEST = 3650 * 86400.0

#: The points of so many trials are compared; those of more are taken for distinct, which is all but sure, and quick.
_COMPARED = 1000


@dataclass(frozen=True)
class Outlook:
    """How far a search is, and where it goes.

    Attributes:
        over: trials that are over, as `hpo_pilot.search.trials.TrialCounts` counts them.
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
    extent = trial_counts_of(search, over, is_over=state.is_over)
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
    return optimizer_phase(
        search.optimizer.name,
        search.optimizer.settings,
        knowledge,
        dimensions=len(search.space.dimensions),
        trials=search.budget.trials,
        objectives=len(search.objectives),
    )


def is_steered(record: SearchRecord, holder: Holder | None) -> bool | None:
    """Whether the holder of the store's lease steers a search; None: the search is over, so that nothing has to."""
    if record.state.is_over:
        return None
    return holder is not None and holder.steers(record.id, record.server)


def why_not(record: SearchRecord, holder: Holder | None) -> str:
    """Why nothing steers a search, in a sentence; empty where something does, or it is over."""
    if is_steered(record, holder) is not False:
        return ""
    if holder is None:
        reason = "nothing steers it now"
    elif holder.steers(record.id, None):
        reason = (
            f"nothing steers it now: `hpo-pilot {holder.mode}`, which has this store, takes tasks to "
            f"{server_phrase(str(holder.server))}, and its tasks are at {server_phrase(str(record.server))}"
        )
    else:
        reason = f"nothing steers it now: `hpo-pilot {holder.mode}`, which has this store, steers other searches only"
    return f"{reason}; no trial starts and no result is collected"


def steering_commands(record: SearchRecord) -> str:
    """The commands that would steer a search, in a sentence."""
    words = ["serve"]
    if record.server not in (None, EMBEDDED) or (record.server == EMBEDDED and os.environ.get("PANDA_URL_SSL")):
        words += ["--server", str(record.server)]
    serve = f"{command(*words)} steers it and every other search of its store"
    if not Path(record.source).is_file():  # it was submitted on another machine, or the file was moved
        return serve
    return f"{command('run', record.source)} goes on with it; {serve}"


def server_phrase(server: str) -> str:
    """A PanDA server in a sentence."""
    return "the embedded PanDA server" if server == EMBEDDED else f"the PanDA server {server}"


#: So many numbers of tasks are named.
_SHOWN = 5


def early_stopping_notes(store: Store, record: SearchRecord) -> list[str]:
    """That early stopping had nothing to go by, where trials have finished and none reported a number."""
    early = record.search.early_stopping
    if not early.is_on or not store.counts(record.id).get(TrialState.FINISHED):
        return []
    if reported_a_number(store.engine, record.id):
        return []
    metric, file = early.metric or record.search.objective.metric, record.search.payload.file_names.progress
    return [f"no trial reported a number {metric!r} in {file}: nothing could be stopped early"]


def waiting_task_notes(store: Store, record: SearchRecord) -> list[str]:
    """Why the PanDA server makes no jobs of tasks that it has, in its own words."""
    if record.state.is_over:
        return []
    numbers: dict[str, list[int]] = {}
    for number, why in waiting_tasks(store.engine, record.id):
        numbers.setdefault(why, []).append(number)
    return [f"{_tasks(waiting)} at the PanDA server: {why}" for why, waiting in numbers.items()]


def _tasks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"task {numbers[0]} waits"
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} tasks ({shown}) wait"


def search_notes(store: Store, record: SearchRecord, workdir: Path | None = None) -> list[str]:
    """The same, what the search has from earlier ones, and why its jobs wait.

    Args:
        store: its store.
        record: the search.
        workdir: the work folder whose embedded server may have its jobs; None: that is not asked for.
    """
    earlier = [str(one) for one in store.earlier_results(record.id)] if record.search.warm_start else []
    waiting: list[str] = []
    if workdir is not None and record.server == EMBEDDED and not record.state.is_over:
        from hpo_pilot.steering.target import waiting_job_notes  # noqa: PLC0415 - it brings an HTTP client

        waiting = waiting_job_notes(workdir, open_tasks(store.engine, record.id))
    return earlier + early_stopping_notes(store, record) + waiting_task_notes(store, record) + waiting
