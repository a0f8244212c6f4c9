"""What came out of a search: ranking, best trial, convergence. Pure functions of values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.search import Search, Trial, TrialState


@dataclass(frozen=True)
class Standing:
    """A trial in the ranking.

    Attributes:
        trial: the trial; never a confirmation run.
        value: what it is ranked by: the mean of its confirmation runs, or its own figure of merit where it has none.
        runs: how many figures that mean is over.
        confirmed: whether it has confirmation runs.
    """

    trial: Trial
    value: float
    runs: int = 1
    confirmed: bool = False


def figure_of(trial: Trial) -> float | None:
    """The trial's figure of merit if it finished with a finite one, else None."""
    if trial.state is not TrialState.FINISHED or trial.value is None or not math.isfinite(trial.value):
        return None
    return trial.value


def ranking(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """All trials with a figure of merit, best first; equal ones in the order of their numbers.

    Confirmation runs have no place of their own: they count for the trial that they confirm. Confirmed trials stand
    first, by the mean of their confirmation runs alone: the figure that had a trial chosen flatters it (winner's luck),
    and one that nothing confirmed must not overtake by the same luck.
    """
    confirmations: defaultdict[int, list[float]] = defaultdict(list)
    for trial in trials:
        figure = figure_of(trial)
        if trial.confirms is not None and figure is not None:
            confirmations[trial.confirms].append(figure)
    standings = []
    for trial in trials:
        figure = figure_of(trial)
        if trial.confirms is None and figure is not None:
            again = confirmations.get(trial.number, [])
            figures = again or [figure]
            standings.append(Standing(trial, _mean(figures), len(figures), bool(again)))
    return sorted(standings, key=lambda s: (not s.confirmed, s.value * search.objective.sign, s.trial.number))


def _mean(figures: Sequence[float]) -> float:
    """The mean; divided before it is summed up, so that figures near the largest float do not overflow."""
    return figures[0] if len(figures) == 1 else math.fsum(figure / len(figures) for figure in figures)


def top_trials(search: Search, trials: Sequence[Trial], count: int = 10) -> list[Trial]:
    """The `count` best trials, best first."""
    return [standing.trial for standing in ranking(search, trials)[:count]]


def best_trial(search: Search, trials: Sequence[Trial]) -> Trial | None:
    """The best finished trial; None where no trial has a figure of merit.

    Where trials were confirmed, it is the one whose confirmation runs were best.
    """
    return next(iter(top_trials(search, trials, 1)), None)


def convergence(search: Search, trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """The best figure of merit after each result, as (place in the order of results, best so far).

    Starts at the first figure of merit; failed trials repeat what was best before them. Confirmation runs are left
    out, for they try no new point. Figures are as reported, not sign-flipped.
    """
    results = [(trial.told, figure_of(trial)) for trial in trials if trial.told is not None and trial.confirms is None]
    better = min if search.objective.sign > 0 else max
    steps: list[tuple[int, float]] = []
    best: float | None = None
    for place, figure in sorted(results, key=lambda result: result[0]):
        if figure is not None:
            best = figure if best is None else better(best, figure)
        if best is not None:
            steps.append((place, best))
    return steps
