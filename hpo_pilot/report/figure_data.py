"""Reads the data of figures from a store: of a large search a sample, as the notes of its figures say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import islice

from hpo_pilot.report.figure import FigureData, PeerSearch, same_question
from hpo_pilot.report.result_figures import FOLD_TRIALS, PEER_LIMIT, drawn_trials
from hpo_pilot.search import Trial
from hpo_pilot.search.progress import SearchProgress
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.progress import all_progress
from hpo_pilot.store.queries import trials_with_folds
from hpo_pilot.store.trial_queries import best_numbers, confirmation_runs, sampled_trials, sampling_step, trials_told

#: With more trials, figures show a sample of this size; the best trials are always in it.
SAMPLE, _BEST = 20_000, 500

#: Figures of all results: more of the best ones would bias them.
_EVEN = frozenset({"importance", "correlations", "distribution"})


@dataclass(frozen=True)
class FigureReader:
    """Reads the data for the figures of one search. Most kinds share their trials, which it reads once.

    Attributes:
        store: the store.
        record: the search.
        progress: its progress.
        others: returns other searches to compare with, newest first.
        slot_trials: most trials in the figure of slots, which needs their folds: the last ones.
        now: the time up to which running jobs are drawn; None: the last time in the trials.
    """

    store: Store
    record: SearchRecord
    progress: SearchProgress
    others: Callable[[], Iterable[SearchRecord]]
    slot_trials: int
    now: datetime | None

    def data(self, key: str) -> FigureData:
        """Returns the data for figures of a kind."""
        if key == "slots":
            return self._with_last_folds()
        if key == "folds":
            return FigureData(self.record.search, self._best_with_folds())
        if key == "curves":
            numbers = drawn_trials(self._common)
            return replace(self._common, reports=self.store.intermediate_values(self.record.id, numbers))
        if key == "convergence":
            return replace(self._common, peers=peer_searches(self.store, self.record, self.others()))
        return self._even if key in _EVEN else self._common

    @cached_property
    def _common(self) -> FigureData:
        """All trials without folds, or a sample."""
        search, count = self.record.search, self.progress.trials
        if count <= SAMPLE:
            return FigureData(search, self.store.trials(self.record.id, folds=False))
        engine, number = self.store.engine, self.record.id
        best = best_numbers(engine, number, search, _BEST)
        trials = sampled_trials(engine, number, self.progress, best, SAMPLE)
        note = f"Drawn from {len(trials):,} of {count:,} trials: the best, and an even sample."
        return FigureData(search, trials, note=note)

    @property
    def _even(self) -> FigureData:
        """As `_common`, but without the trials that are not in its even sample."""
        count = self.progress.trials
        if count <= SAMPLE:
            return self._common
        trials = [trial for trial in self._common.trials if trial.number % sampling_step(count, SAMPLE) == 0]
        return replace(
            self._common, trials=trials, note=f"Drawn from an even sample: {len(trials):,} of {count:,} trials."
        )

    def _with_last_folds(self) -> FigureData:
        count = self.progress.trials
        last = max(0, count - self.slot_trials)
        trials = trials_with_folds(self.store.engine, self.record.id, range(last + 1, count + 1) if last else None)
        note = f"Only the last {self.slot_trials:,} of {count:,} trials." if last else ""
        return FigureData(self.record.search, trials, now=self.now, note=note)

    def _best_with_folds(self) -> list[Trial]:
        engine, number = self.store.engine, self.record.id
        best = best_numbers(engine, number, self.record.search, FOLD_TRIALS)
        runs = confirmation_runs(engine, number) if self.progress.confirmations_over else []
        best += [trial for run in runs for trial in (run.number, run.confirms or 0)]
        return trials_with_folds(engine, number, set(best))


def peer_searches(store: Store, record: SearchRecord, others: Iterable[SearchRecord]) -> list[PeerSearch]:
    """Returns the newest other searches with the same question that have a result, oldest first.

    Only the trials with which their best value changed are read.

    Args:
        store: the store.
        record: the search.
        others: searches to choose from, newest first.
    """
    alike = (other for other in others if other.id != record.id and _same_question(record, other))
    newest = list(islice(alike, 2 * PEER_LIMIT))
    progress = all_progress(store.engine, [other.id for other in newest])
    with_result = [other for other in newest if other.id in progress and progress[other.id].course][:PEER_LIMIT]
    peers = []
    for other in reversed(with_result):
        told = [*(place for place, _ in progress[other.id].course), progress[other.id].told]
        peers.append(PeerSearch(other.name, other.search, trials_told(store.engine, other.id, told)))
    return peers


def _same_question(record: SearchRecord, other: SearchRecord) -> bool:
    # Most searches differ in the names of their parameters: their definitions need not be parsed.
    spaces = [one.definition["space"].keys() for one in (record, other)]
    return spaces[0] == spaces[1] and same_question(record.search, other.search)
