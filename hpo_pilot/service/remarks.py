"""What whoever looks at a search should know beside its results."""

from __future__ import annotations

from hpo_pilot.search import TrialState
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.tallies import reported_a_number


def nothing_to_stop(store: Store, record: SearchRecord) -> list[str]:
    """That early stopping had nothing to go by, where trials have finished and none reported a number."""
    early = record.search.early_stopping
    if not early.is_on or not store.counts(record.id).get(TrialState.FINISHED):
        return []
    if reported_a_number(store.engine, record.id):
        return []
    metric, file = early.metric or record.search.objective.metric, record.search.payload.file_names.progress
    return [f"no trial reported a number {metric!r} in {file}: nothing could be stopped early"]


def remarks_of(store: Store, record: SearchRecord) -> list[str]:
    """The same, and what the search has from earlier ones."""
    earlier = [str(one) for one in store.earlier_results(record.id)] if record.search.warm_start else []
    return earlier + nothing_to_stop(store, record)
