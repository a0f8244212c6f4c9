"""How a search ended whose budget is spent, or for which there is nothing left to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpo_pilot.advice import command
from hpo_pilot.figures.summary import best_trial
from hpo_pilot.search import Budget, Search, Trial
from hpo_pilot.store import SearchState


def search_verdict(
    search: Search, trials: Sequence[Trial], told: int, *, exhausted: bool, waiting: int = 0
) -> tuple[SearchState, str]:
    """The state in which it ends, and why, where that needs saying.

    Args:
        search: the search.
        trials: all of its trials.
        told: how many results there are.
        exhausted: whether the optimizer has no more points.
        waiting: how many points that users asked for are left over, for lack of time or GPU-hours.
    """
    state, message = _verdict(search, trials, told, exhausted=exhausted)
    if waiting:
        wait = "a point that was asked for waits" if waiting == 1 else f"{waiting} points that were asked for wait"
        more = extend_command(search.name, search.budget)
        message = f"{message}; {wait}: {more} gives more of what was spent".removeprefix("; ")
    return state, message


def _verdict(search: Search, trials: Sequence[Trial], told: int, *, exhausted: bool) -> tuple[SearchState, str]:
    if best_trial(search, trials) is None:
        reason = f"none of its {told} trials gave a figure of merit" if told else "its budget allowed no trial"
        return SearchState.FAILED, f"{reason}; see `hpo-pilot trials {search.name}`"
    if exhausted:
        where = "grid" if search.optimizer.name == "grid" else "space"
        return SearchState.DONE, f"every point of the {where} was tried: {told} trial{'s' * (told != 1)}"
    if told < search.budget.trials:
        return SearchState.DONE, f"the time, GPU-hours or core-hours were spent after {told} trials"
    return SearchState.DONE, ""


def overspent(search: Search, trials: Mapping[int, Trial], limits: str, out: int) -> tuple[SearchState, str]:
    """The same of a search whose jobs have used up what they may.

    Args:
        search: the search.
        trials: all of its trials.
        limits: its GPU-hours and core-hours, in words.
        out: how many trials are not over.
    """
    state = SearchState.FAILED if best_trial(search, list(trials.values())) is None else SearchState.DONE
    others = "the trial that was still out was" if out == 1 else f"the {out} trials that were still out were"
    return state, f"the budget of {limits} is used up; {others} stopped"


def extend_command(name: str, budget: Budget, *limits: str) -> str:
    """The command that adds to the limits of a search's time.

    Args:
        name: the search's.
        budget: the search's; limits that it does not have are left out.
        limits: those that matter, of hours, gpu_hours and core_hours; none named: all.
    """
    spent = [limit for limit in limits or ("hours", "gpu_hours", "core_hours") if getattr(budget, limit) is not None]
    return command("extend", name, *(word for limit in spent for word in (f"--{limit.replace('_', '-')}", "+H")))
