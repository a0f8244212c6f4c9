"""How far a search is: the one definition of its counters, whoever shows them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpo_pilot.search.search import Search
from hpo_pilot.search.trial import Trial, TrialState


@dataclass(frozen=True)
class Extent:
    """The counters of a search.

    Attributes:
        over: trials that finished, failed or were stopped early. Confirmation runs count; trials that were stopped
            together with their search do not.
        planned: how many there will be, as far as one can tell; of a search that is over, as many as are over.
        failed: trials that failed, those included that were tried again: the repetition is a trial of its own.
        confirmations: how many of those that are over are confirmation runs, which come on top of the budget.
    """

    over: int
    planned: int
    failed: int
    confirmations: int


def extent(search: Search, *, is_over: bool, over: int, failed: int, confirmations: int) -> Extent:
    """The counters of a search, `planned` filled in.

    Args:
        search: the search.
        is_over: whether it has ended.
        over: as in `Extent`.
        failed: as in `Extent`.
        confirmations: as in `Extent`.
    """
    planned = over
    if not is_over:
        confirming = search.confirm.top * search.confirm.repeats if len(search.objectives) == 1 else 0
        planned = max(search.budget.trials + confirming, over)
    return Extent(over, planned, failed, confirmations)


def extent_of(search: Search, trials: Iterable[Trial], *, is_over: bool) -> Extent:
    """The counters of a search, from all its trials; folds are not needed."""
    over = [trial for trial in trials if trial.is_result]
    failed = sum(trial.state is TrialState.FAILED for trial in over)
    confirmations = sum(trial.confirms is not None for trial in over)
    return extent(search, is_over=is_over, over=len(over), failed=failed, confirmations=confirmations)
