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
    decides = search.objectives[index].metric == search.early_stopping.metric
    return single, [_trial(trial, index, decides) for trial in trials]


def _trial(trial: Trial, index: int, decides: bool) -> Trial:
    stop = trial.stop
    if stop is not None and stop.projected is not None:
        # Of the others nothing was seen: what they would have come to is no guess worth a mark.
        stop = replace(stop, projected=(stop.projected[index],) if decides else None)
    return replace(
        trial,
        value=None if trial.values is None else trial.values[index],
        std=None if trial.stds is None else trial.stds[index],
        folds=tuple(_fold(fold, index) for fold in trial.folds),
        values=None,
        stds=None,
        stop=stop,
    )


def _fold(fold: FoldResult, index: int) -> FoldResult:
    return replace(fold, value=None if fold.values is None else fold.values[index], values=None)
