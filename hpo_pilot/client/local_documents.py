"""Documents of what a store in this process has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpo_pilot.client.documents import (
    ProgressDocument,
    RunDocument,
    SearchDocument,
    StatusDocument,
    progress_document,
    search_document,
    status_document,
)

if TYPE_CHECKING:
    from hpo_pilot.search import Trial
    from hpo_pilot.service.run import RunResult
    from hpo_pilot.store import SearchRecord, Store


def document_of(store: Store, record: SearchRecord) -> SearchDocument:
    """A search with its progress."""
    return search_document(record, store.counts(record.id), best_of(store, record))


def status_of(store: Store, record: SearchRecord) -> StatusDocument:
    """All that is known of a search but its trials."""
    return status_document(record, store.counts(record.id), best_of(store, record), store.job_seconds(record.id))


def progress_of(store: Store, record: SearchRecord) -> ProgressDocument:
    """How far a search is."""
    best = store.best_so_far(record.id, record.search.objective.sign)
    return progress_document(record, store.counts(record.id), best)


def run_document(result: RunResult) -> RunDocument:
    """What came of a run."""
    counts = {trial.state: 0 for trial in result.trials}
    for trial in result.trials:
        counts[trial.state] += 1
    return {**search_document(result.record, counts, result.best), "report": str(result.report)}


def best_of(store: Store, record: SearchRecord) -> Trial | None:
    """The best trial; where nothing is confirmed, without reading all of them."""
    from hpo_pilot.report import best_trial

    if record.search.confirm.top:
        return best_trial(record.search, store.trials(record.id))
    found = store.best_so_far(record.id, record.search.objective.sign)
    return None if found is None else next(iter(store.trials(record.id, after=found[0] - 1, limit=1)), None)
