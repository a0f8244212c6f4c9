"""How a search ended whose budget is spent, or for which there is nothing left to try."""

from __future__ import annotations

from collections.abc import Sequence

from hpo_pilot.report.summary import best_trial
from hpo_pilot.search import Search, Trial
from hpo_pilot.store import SearchState


def search_verdict(search: Search, trials: Sequence[Trial], told: int, *, exhausted: bool) -> tuple[SearchState, str]:
    """The state in which it ends, and why, where that needs saying.

    Args:
        search: the search.
        trials: all of its trials.
        told: how many results there are.
        exhausted: whether the optimizer has no more points.
    """
    if best_trial(search, trials) is None:
        reason = f"none of its {told} trials gave a figure of merit" if told else "its budget allowed no trial"
        return SearchState.FAILED, f"{reason}; see `hpo-pilot trials {search.name}`"
    if exhausted:
        where = "grid" if search.optimizer.name == "grid" else "space"
        return SearchState.DONE, f"every point of the {where} was tried: {told} trial{'s' * (told != 1)}"
    if told < search.budget.trials:
        return SearchState.DONE, f"the time or GPU-hour budget was spent after {told} trials"
    return SearchState.DONE, ""
