"""What came out of a search: ranking, best trial, convergence. Pure functions of values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.figures.front import members, reference_point, volume, volumes
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.cost import Cost
from hpo_pilot.search.gain import Gain, gain_of, volume_gain

#: What a hypervolume of nothing means.
NOTHING_BEYOND = "no trial is better than the reference point in every objective"


@dataclass(frozen=True)
class Standing:
    """A trial in the ranking.

    Attributes:
        trial: the trial; never a confirmation run.
        figures: what it is ranked by, one for each objective: the means of its confirmation runs, or its own figures
            of merit where it has none.
        runs: how many figures each mean is over.
        confirmed: whether it has confirmation runs.
    """

    trial: Trial
    figures: tuple[float, ...]
    runs: int = 1
    confirmed: bool = False

    @property
    def value(self) -> float:
        """The figure; of several the first."""
        return self.figures[0]


def figure_of(trial: Trial) -> float | None:
    """The trial's figure of merit if it finished with a finite one, else None."""
    if trial.state is not TrialState.FINISHED or trial.value is None or not math.isfinite(trial.value):
        return None
    return trial.value


def figures_of(search: Search, trial: Trial) -> tuple[float, ...] | None:
    """One figure of merit for each objective if the trial finished with finite ones, else None."""
    figures = trial.figures
    if trial.state is not TrialState.FINISHED or figures is None or len(figures) != len(search.objectives):
        return None
    return figures if all(map(math.isfinite, figures)) else None


def ranking(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """All trials with a figure of merit, best first; equal ones in the order of their numbers.

    Confirmation runs have no place of their own: they count for the trial that they confirm. Confirmed trials stand
    first, by the mean of their confirmation runs alone: the figure that had a trial chosen flatters it (winner's luck),
    and one that nothing confirmed must not overtake by the same luck.

    Of several objectives, the trials of the Pareto front stand first, the least crowded before the others.
    """
    standings = _standings(search, trials)
    if len(search.objectives) > 1:
        ahead, behind = members(search.objectives, standings)
        return ahead + behind
    sign = search.objective.sign
    return sorted(standings, key=lambda s: (not s.confirmed, s.value * sign, s.trial.number))


def _standings(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """All trials with figures of merit, by number."""
    confirmations: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for trial in trials:
        figures = figures_of(search, trial)
        if trial.confirms is not None and figures is not None:
            confirmations[trial.confirms].append(figures)
    standings = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        figures = figures_of(search, trial)
        if trial.confirms is None and figures is not None:
            again = confirmations.get(trial.number, [])
            means = tuple(_mean(column) for column in zip(*again, strict=True)) if again else figures
            standings.append(Standing(trial, means, len(again) or 1, bool(again)))
    return standings


def front_of(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """The trials that none is better than: the Pareto front in the order of the first objective, the best first.

    With one objective it is the best trial. What was confirmed counts by the mean of its confirmation runs, and leaves
    the front only for another confirmed trial.
    """
    if len(search.objectives) == 1:
        return ranking(search, trials)[:1]
    ahead, _ = members(search.objectives, _standings(search, trials))
    sign = search.objective.sign
    return sorted(ahead, key=lambda standing: (standing.value * sign, standing.trial.number))


def results_in_order(search: Search, trials: Sequence[Trial]) -> list[tuple[int, tuple[float, ...] | None]]:
    """(place in the order of results, figures) of all but confirmation runs; figures are None where a trial failed."""
    told = [(trial.told, figures_of(search, trial)) for trial in trials if trial.told is not None]
    return sorted(told, key=lambda result: result[0])


def reference_of(search: Search, trials: Sequence[Trial]) -> tuple[float, ...] | None:
    """The reference point of the hypervolume, as reported; None while no trial has finished."""
    results = results_in_order(search, trials)
    return reference_point(search.objectives, (figures for _, figures in results if figures is not None))


def front_volume(search: Search, trials: Sequence[Trial]) -> float | None:
    """The hypervolume of a search with several objectives; None while no trial has finished."""
    reference = reference_of(search, trials)
    found = [figures for _, figures in results_in_order(search, trials) if figures is not None]
    return None if reference is None else volume(search.objectives, found, reference)


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


def search_gain(search: Search, trials: Sequence[Trial], cost: Cost) -> Gain | None:
    """What the search gained for what its jobs cost; None while it has no result."""
    if len(search.objectives) > 1:
        dominated = front_volume(search, trials)
        return None if dominated is None else volume_gain(dominated, cost)
    results = [figures for _, figures in results_in_order(search, trials) if figures is not None]
    best = best_trial(search, trials)
    if not results or best is None or best.value is None:
        return None
    return gain_of(results[0][0], best.value, search.objective.sign, cost)


def convergence(search: Search, trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """The best figure of merit after each result, as (place in the order of results, best so far).

    Starts at the first figure of merit; failed trials repeat what was best before them. Confirmation runs are left
    out, for they try no new point. Figures are as reported, not sign-flipped. Of several objectives, it is the
    hypervolume.
    """
    if len(search.objectives) > 1:
        reference = reference_of(search, trials)
        return volumes(search.objectives, results_in_order(search, trials), reference) if reference else []
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
