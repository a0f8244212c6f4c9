"""The outlook of a search that a store in this process has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hpo_pilot.client.outlook_documents import OutlookDocument, eta_document, failure_document, wish_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpo_pilot.search import TrialState
    from hpo_pilot.search.eta import Estimate
    from hpo_pilot.search.extent import Extent
    from hpo_pilot.store import SearchRecord, Store

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
    extent: Extent,
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
    from hpo_pilot.store.outlook import course, last_failure

    now, objectives = time.time(), record.search.objectives
    expected = _estimate(store, record, job_seconds, extent, now) if steered else None
    failed = last_failure(store.engine, record.id) if extent.failed else None
    return {
        "eta": None if expected is None else eta_document(expected, now),
        "last_failure": None if failed is None else failure_document(failed),
        "course": course(store.engine, record.id, objectives[0].sign, _COURSE) if len(objectives) == 1 else None,
        "wishes": [wish_document(wish) for wish in store.wishes(record.id)],
        "hours_used": _hours_used(record, now),
        "optimizer_state": _optimizer_words(store, record, counts, steered=steered),
        "monitor": search_link(record.server, record.uid, monitor=record.search.panda.monitor),
    }


def _estimate(store: Store, record: SearchRecord, job_seconds: float, extent: Extent, now: float) -> Estimate | None:
    from hpo_pilot.search.eta import estimate, window
    from hpo_pilot.store import SearchState
    from hpo_pilot.store.outlook import last_spans, running_since

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
    from hpo_pilot.service.outlook import optimizer_words

    known = _words.setdefault(store, {})
    standing = (record.state, record.version, counts, steered)
    if record.id not in known or known[record.id][0] != standing:
        trials = store.trials(record.id, folds=False) if steered and not record.state.is_over else []
        known[record.id] = (standing, optimizer_words(record.search, record.state, trials, steered=steered))
    return known[record.id][1]
