"""A search with several objectives as if it had but one of them: for the figures that show one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpo_pilot.search import FoldResult, Search, Trial


def seen_by(search: Search, trials: Sequence[Trial], index: int) -> tuple[Search, list[Trial]]:
    """The search and its trials with the objective at `index` alone."""
    if len(search.objectives) == 1:
        return search, list(trials)
    single = search.model_copy(update={"objectives": (search.objectives[index],)})
    return single, [_trial(trial, index) for trial in trials]


def _trial(trial: Trial, index: int) -> Trial:
    return replace(
        trial,
        value=None if trial.values is None else trial.values[index],
        std=None if trial.stds is None else trial.stds[index],
        folds=tuple(_fold(fold, index) for fold in trial.folds),
        values=None,
        stds=None,
    )


def _fold(fold: FoldResult, index: int) -> FoldResult:
    return replace(fold, value=None if fold.values is None else fold.values[index], values=None)
