"""Documents of searches and trials, made from a store in this process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from hpo_pilot.report.documents import (
    FailureDocument,
    FrontDocument,
    OutlookDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
    eta_document,
    failure_document,
    progress_document,
    search_document,
    status_document,
    trial_document,
    wish_document,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpo_pilot.search import Search, Trial, TrialState
    from hpo_pilot.search.trials import Estimate, TrialCounts
    from hpo_pilot.steering.results import RunResult
    from hpo_pilot.store import SearchRecord, Store
    from hpo_pilot.store.lease import Holder


#: The fronts of searches as last asked for, with the counts of trials then: a watched search is asked for often, and
#: all its trials are read for that.
_fronts: WeakKeyDictionary[Store, dict[int, tuple[Mapping[TrialState, int], FrontDocument | None]]] = (
    WeakKeyDictionary()
)

#: Different reasons of failures that are told while a search runs.
_REASONS = 5

#: First failures as last asked for, with how many there were then and how many are forgiven.
_first_failures: WeakKeyDictionary[Store, dict[int, tuple[tuple[int, int], list[FailureDocument]]]] = (
    WeakKeyDictionary()
)

_Document = TypeVar("_Document", SearchDocument, StatusDocument)


def document_of(store: Store, record: SearchRecord, holder: Holder | None) -> SearchDocument:
    """A search with its progress; `holder`: who has the store's lease."""
    from hpo_pilot.hpc.site_files import price_of

    counts, price = store.counts(record.id), price_of(record.search)
    if len(record.search.objectives) > 1:
        document = search_document(record, counts, None, price, front_document(store, record, counts))
    else:
        document = search_document(record, counts, best_of(store, record), price)
    return _standing(document, extent_in(store, record), record, holder)


def status_of(store: Store, record: SearchRecord, workdir: Path | None = None) -> StatusDocument:
    """All that is known of a search but its trials; `workdir`: whose embedded server may have its jobs."""
    from hpo_pilot.hpc.site_files import price_of
    from hpo_pilot.search.trials import gain_of, volume_gain
    from hpo_pilot.steering.status import is_steered, search_notes, why_not
    from hpo_pilot.store.lease import lease_holder
    from hpo_pilot.store.queries import first_figure, spent

    counts, price = store.counts(record.id), price_of(record.search)
    took, gain, extent, steers = (
        spent(store.engine, record.id),
        None,
        extent_in(store, record),
        lease_holder(store.engine),
    )
    steered = is_steered(record, steers) is not False
    outlook = outlook_document(store, record, counts, took.seconds, extent, steered=steered)
    if len(record.search.objectives) > 1:
        if (front := front_document(store, record, counts)) is not None:
            gain = volume_gain(front["hypervolume"], price.cost(took))
        document = status_document(record, counts, None, price, took, gain, outlook, front)
    else:
        best, first = best_of(store, record), first_figure(store.engine, record.id)
        if best is not None and best.value is not None and first is not None:
            gain = gain_of(first, best.value, record.search.objective.sign, price.cost(took))
        document = status_document(record, counts, best, price, took, gain, outlook)
    _standing(document, extent, record, steers)
    unsteered = why_not(record, steers)
    document["remarks"] = [*([unsteered] if unsteered else []), *search_notes(store, record, workdir)]
    return document


def _standing(document: _Document, extent: TrialCounts, record: SearchRecord, holder: Holder | None) -> _Document:
    """A document with how far the search is, and whether anything steers it."""
    from hpo_pilot.steering.status import is_steered

    document["over"], document["planned"] = extent.over, extent.planned
    document["confirmations"] = extent.confirmations
    document["steered"] = is_steered(record, holder)
    return document


def extent_in(store: Store, record: SearchRecord) -> TrialCounts:
    """How far a search is."""
    from hpo_pilot.store import queries

    return queries.stored_trial_counts(store.engine, record.id, record.search, is_over=record.state.is_over)


def progress_of(store: Store, record: SearchRecord) -> ProgressDocument:
    """How far a search is."""
    from hpo_pilot.steering.status import is_steered, waiting_task_notes
    from hpo_pilot.store.lease import lease_holder

    counts, extent = store.counts(record.id), extent_in(store, record)
    best = front = None
    if len(record.search.objectives) > 1:
        front = front_document(store, record, counts)
    else:
        best = store.best_so_far(record.id, record.search.objective.sign)
    document = progress_document(record, counts, (extent.over, extent.planned), best, front)
    document["steered"] = is_steered(record, lease_holder(store.engine))
    document["remarks"] = waiting_task_notes(store, record)
    document["failures"] = _failures(store, record, extent.failed)
    return document


def _failures(store: Store, record: SearchRecord, failed: int) -> list[FailureDocument]:
    """The first failed trials for different reasons, since the search last began or was resumed."""
    from hpo_pilot.report.summary import kind_of
    from hpo_pilot.store.queries import first_failures

    known = _first_failures.setdefault(store, {})
    standing = (failed, record.forgiven)
    if record.id not in known or known[record.id][0] != standing:
        found: dict[str, FailureDocument] = {}
        if failed:
            for failure in first_failures(store.engine, record.id, record.forgiven):
                found.setdefault(kind_of(failure.error), failure_document(failure))
        known[record.id] = (standing, list(found.values())[:_REASONS])
    return known[record.id][1]


def run_document(result: RunResult) -> RunDocument:
    """What came of a run."""
    from hpo_pilot.hpc.site_files import price_of
    from hpo_pilot.search.trials import trial_counts_of

    record, trials = result.record, result.trials
    counts = {trial.state: 0 for trial in trials}
    for trial in trials:
        counts[trial.state] += 1
    front = _front_of(record, trials) if len(record.search.objectives) > 1 else None
    document = search_document(record, counts, result.best, price_of(record.search), front)
    _standing(document, trial_counts_of(record.search, trials, is_over=record.state.is_over), record, None)
    return {**document, "report": str(result.report), "remarks": list(result.remarks)}


def trial_documents(search: Search, trials: Sequence[Trial], *, logs: bool) -> list[TrialDocument]:
    """Trials of a search."""
    from hpo_pilot.hpc.site_files import price_of

    price = price_of(search)
    return [trial_document(trial, price, logs=logs) for trial in trials]


def best_of(store: Store, record: SearchRecord) -> Trial | None:
    """The best trial; where nothing is confirmed, without reading all of them."""
    from hpo_pilot.report.summary import best_trial

    if record.search.confirm.top:
        return best_trial(record.search, store.trials(record.id))
    found = store.best_so_far(record.id, record.search.objective.sign)
    return None if found is None else next(iter(store.trials(record.id, after=found[0] - 1, limit=1)), None)


def best_documents(store: Store, record: SearchRecord) -> TrialDocument | list[TrialDocument] | None:
    """The best trial; of several objectives the trials of the Pareto front."""
    from hpo_pilot.hpc.site_files import price_of
    from hpo_pilot.report.summary import front_of

    price = price_of(record.search)
    if len(record.search.objectives) > 1:
        front = front_of(record.search, store.trials(record.id))
        return [trial_document(standing.trial, price) for standing in front] or None
    found = best_of(store, record)
    return None if found is None else trial_document(found, price)


def front_document(store: Store, record: SearchRecord, counts: Mapping[TrialState, int]) -> FrontDocument | None:
    """The Pareto front of a search whose trials are so many; None while no trial has finished."""
    known = _fronts.setdefault(store, {})
    if record.id not in known or known[record.id][0] != counts:
        known[record.id] = (counts, _front_of(record, store.trials(record.id, folds=False)))
    return known[record.id][1]


def _front_of(record: SearchRecord, trials: list[Trial]) -> FrontDocument | None:
    from hpo_pilot.report.summary import front_of, front_volume, reference_of

    volume, reference = front_volume(record.search, trials), reference_of(record.search, trials)
    if volume is None or reference is None:
        return None
    numbers = [standing.trial.number for standing in front_of(record.search, trials)]
    return {"trials": numbers, "hypervolume": volume, "reference": list(reference)}


#: Points of the course of the best value: as many as a line of a terminal holds.
_COURSE = 60

#: What optimizers did when they were last asked for, with state, version and counts of trials then: all trials are
#: read for that.
_words: WeakKeyDictionary[Store, dict[int, tuple[object, str]]] = WeakKeyDictionary()


def outlook_document(
    store: Store,
    record: SearchRecord,
    counts: Mapping[TrialState, int],
    job_seconds: float,
    extent: TrialCounts,
    *,
    steered: bool,
) -> OutlookDocument:
    """When it will be over, what failed last, how the best value went, and what is asked for.

    Args:
        store: the store.
        record: the search.
        counts: its trials by state.
        job_seconds: what all its jobs ran.
        extent: how far it is.
        steered: whether anything steers it.
    """
    from hpo_pilot.panda.bigpanda_link import search_link
    from hpo_pilot.store.queries import best_values, last_failure

    now, objectives = time.time(), record.search.objectives
    expected = _estimate(store, record, job_seconds, extent, now) if steered else None
    failed = last_failure(store.engine, record.id) if extent.failed else None
    return {
        "eta": None if expected is None else eta_document(expected, now),
        "last_failure": None if failed is None else failure_document(failed),
        "course": best_values(store.engine, record.id, objectives[0].sign, _COURSE) if len(objectives) == 1 else None,
        "wishes": [wish_document(wish) for wish in store.wishes(record.id)],
        "hours_used": _hours_used(record, now),
        "optimizer_state": _optimizer_words(store, record, counts, steered=steered),
        "monitor": search_link(record.server, record.uid, monitor=record.search.panda.monitor),
    }


def _estimate(
    store: Store, record: SearchRecord, job_seconds: float, extent: TrialCounts, now: float
) -> Estimate | None:
    from hpo_pilot.search.trials import estimate, window
    from hpo_pilot.store import SearchState
    from hpo_pilot.store.queries import last_spans, running_since

    if record.state is not SearchState.RUNNING:
        return None
    return estimate(
        record.search,
        last_spans(store.engine, record.id, window(record.search)),
        over=extent.over - extent.confirmations,
        confirmed=extent.confirmations,
        out=running_since(store.engine, record.id),
        job_seconds=job_seconds,
        clock=None if record.clock is None else record.clock.timestamp(),
        now=now,
    )


def _hours_used(record: SearchRecord, now: float) -> float | None:
    if record.clock is None:
        return None
    until = now if record.ended is None else record.ended.timestamp()
    return max(0.0, until - record.clock.timestamp()) / 3600


def _optimizer_words(store: Store, record: SearchRecord, counts: Mapping[TrialState, int], *, steered: bool) -> str:
    from hpo_pilot.steering.status import optimizer_words

    known = _words.setdefault(store, {})
    standing = (record.state, record.version, counts, steered)
    if record.id not in known or known[record.id][0] != standing:
        trials = store.trials(record.id, folds=False) if steered and not record.state.is_over else []
        known[record.id] = (standing, optimizer_words(record.search, record.state, trials, steered=steered))
    return known[record.id][1]
