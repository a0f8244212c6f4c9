"""Documents of what a store in this process has."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hpo_pilot.client.documents import (
    FrontDocument,
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
    progress_document,
    search_document,
    status_document,
    trial_document,
)
from hpo_pilot.client.local_outlook import outlook_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hpo_pilot.search import Search, Trial, TrialState
    from hpo_pilot.service.result import RunResult
    from hpo_pilot.store import SearchRecord, Store

#: The fronts of searches as last asked for, with the counts of trials then: a watched search is asked for often, and
#: all its trials are read for that.
_fronts: WeakKeyDictionary[Store, dict[int, tuple[Mapping[TrialState, int], FrontDocument | None]]] = (
    WeakKeyDictionary()
)


def document_of(store: Store, record: SearchRecord) -> SearchDocument:
    """A search with its progress."""
    from hpo_pilot.config.site_power import price_of

    counts, price = store.counts(record.id), price_of(record.search)
    if len(record.search.objectives) > 1:
        document = search_document(record, counts, None, price, front_document(store, record, counts))
    else:
        document = search_document(record, counts, best_of(store, record), price)
    over, planned = _extent(store, record, counts)
    return {**document, "over": over, "planned": planned, "confirmations": _confirmations(store, record)}


def status_of(store: Store, record: SearchRecord, workdir: Path | None = None) -> StatusDocument:
    """All that is known of a search but its trials; `workdir`: whose embedded server may have its jobs."""
    from hpo_pilot.config.site_power import price_of
    from hpo_pilot.search.gain import gain_of, volume_gain
    from hpo_pilot.service.remarks import remarks_of
    from hpo_pilot.store.tallies import first_figure, spent

    counts, price = store.counts(record.id), price_of(record.search)
    took, gain, confirmations = spent(store.engine, record.id), None, _confirmations(store, record)
    outlook = outlook_document(store, record, counts, took.seconds, confirmations)
    if len(record.search.objectives) > 1:
        if (front := front_document(store, record, counts)) is not None:
            gain = volume_gain(front["hypervolume"], price.cost(took))
        document = status_document(record, counts, None, price, took, gain, outlook, front)
    else:
        best, first = best_of(store, record), first_figure(store.engine, record.id)
        if best is not None and best.value is not None and first is not None:
            gain = gain_of(first, best.value, record.search.objective.sign, price.cost(took))
        document = status_document(record, counts, best, price, took, gain, outlook)
    over, planned = _extent(store, record, counts)
    return {
        **document,
        "over": over,
        "planned": planned,
        "confirmations": confirmations,
        "remarks": remarks_of(store, record, workdir),
    }


def _confirmations(store: Store, record: SearchRecord) -> int:
    from hpo_pilot.store.tallies import confirmations_over

    return confirmations_over(store.engine, record.id) if record.search.confirm.top else 0


def _extent(store: Store, record: SearchRecord, counts: Mapping[TrialState, int]) -> tuple[int, int]:
    """How many trials are over, and of how many."""
    from hpo_pilot.search import TrialState
    from hpo_pilot.service.outlook import planned
    from hpo_pilot.store.tallies import stopped_with_search

    over = sum(count for state, count in counts.items() if state.is_over)
    if counts.get(TrialState.STOPPED):
        over -= stopped_with_search(store.engine, record.id)
    return over, planned(record.search, record.state, over)


def progress_of(store: Store, record: SearchRecord) -> ProgressDocument:
    """How far a search is."""
    from hpo_pilot.service.remarks import waiting_at_the_server

    counts = store.counts(record.id)
    extent = _extent(store, record, counts)
    if len(record.search.objectives) > 1:
        document = progress_document(record, counts, extent, None, front_document(store, record, counts))
    else:
        best = store.best_so_far(record.id, record.search.objective.sign)
        document = progress_document(record, counts, extent, best)
    return {**document, "remarks": waiting_at_the_server(store, record)}


def run_document(result: RunResult) -> RunDocument:
    """What came of a run."""
    from hpo_pilot.config.site_power import price_of
    from hpo_pilot.service.outlook import planned

    counts = {trial.state: 0 for trial in result.trials}
    for trial in result.trials:
        counts[trial.state] += 1
    front = _front_of(result.record, result.trials) if len(result.record.search.objectives) > 1 else None
    confirmations = sum(trial.confirms is not None and trial.state.is_over for trial in result.trials)
    document = search_document(result.record, counts, result.best, price_of(result.record.search), front)
    over = sum(trial.state.is_over and (trial.counts or trial.confirms is not None) for trial in result.trials)
    return {
        **document,
        "over": over,
        "planned": planned(result.record.search, result.record.state, over),
        "confirmations": confirmations,
        "report": str(result.report),
        "remarks": list(result.remarks),
    }


def trial_documents(search: Search, trials: Sequence[Trial], *, logs: bool) -> list[TrialDocument]:
    """Trials of a search."""
    from hpo_pilot.config.site_power import price_of

    price = price_of(search)
    return [trial_document(trial, price, logs=logs) for trial in trials]


def best_of(store: Store, record: SearchRecord) -> Trial | None:
    """The best trial; where nothing is confirmed, without reading all of them."""
    from hpo_pilot.figures.summary import best_trial

    if record.search.confirm.top:
        return best_trial(record.search, store.trials(record.id))
    found = store.best_so_far(record.id, record.search.objective.sign)
    return None if found is None else next(iter(store.trials(record.id, after=found[0] - 1, limit=1)), None)


def best_documents(store: Store, record: SearchRecord) -> TrialDocument | list[TrialDocument] | None:
    """The best trial; of several objectives the trials of the Pareto front."""
    from hpo_pilot.config.site_power import price_of
    from hpo_pilot.figures.summary import front_of

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
    from hpo_pilot.figures.summary import front_of, front_volume, reference_of

    volume, reference = front_volume(record.search, trials), reference_of(record.search, trials)
    if volume is None or reference is None:
        return None
    numbers = [standing.trial.number for standing in front_of(record.search, trials)]
    return {"trials": numbers, "hypervolume": volume, "reference": list(reference)}
