"""Ranks the trials of a search: the two meanings of best, Pareto fronts, hypervolumes and convergence.

A trial is *best by its folds* if its own figure of merit is the best: this is what steering confirms next. It is *best,
confirmed first* if its confirmation runs have the best mean; only without confirmed trials its own figure counts. This
is what people are told. Nothing else ranks trials.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hpo_pilot.search.trials import Trial, TrialState
from hpo_pilot.search.values import Point, show

if TYPE_CHECKING:
    from hpo_pilot.search.search import Search
    from hpo_pilot.search.sections import Objective


@dataclass(frozen=True, slots=True)
class Standing:
    """A trial in the ranking.

    Attributes:
        trial: the trial; never a confirmation run.
        figures: the figures of the ranking, one for each objective: the means of its confirmation runs, or its own
            figures of merit where it has none.
        runs: number of runs in each mean.
        confirmed: whether it has confirmation runs.
    """

    trial: Trial
    figures: tuple[float, ...]
    runs: int = 1
    confirmed: bool = False

    @property
    def value(self) -> float:
        """The figure of the first objective."""
        return self.figures[0]


class TimedResult(NamedTuple):
    """A result of a search with the time and the cost up to it.

    Attributes:
        told: its place in the order of results.
        trial: number of the trial.
        figures: its figures of merit; None: it has none.
        passed: seconds from the first submission to the latest end so far.
        job_seconds: run time of the jobs of all results so far.
    """

    told: int
    trial: int
    figures: tuple[float, ...] | None
    passed: float
    job_seconds: float


def costs(objectives: Sequence[Objective], figures: Sequence[float]) -> tuple[float, ...]:
    """Returns figures of merit as optimizers use them: lower is better."""
    return tuple(objective.sign * figure for objective, figure in zip(objectives, figures, strict=True))


def figure_of_merit(trial: Trial) -> float | None:
    """Returns the trial's figure of merit if it finished with a finite one, else None."""
    value = trial.value if trial.state is TrialState.FINISHED else None
    return value if value is not None and math.isfinite(value) else None


def figures_of_merit(search: Search, trial: Trial) -> tuple[float, ...] | None:
    """Returns one figure of merit for each objective if the trial finished with finite ones, else None."""
    if trial.state is not TrialState.FINISHED or len(trial.values) != len(search.objectives):
        return None
    return trial.values if all(map(math.isfinite, trial.values)) else None


def ranking(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """Returns all trials with a figure of merit, best first; equal ones in the order of their numbers.

    Trials of higher levels of the training come first, whatever their figures.

    Confirmation runs count for the trial that they confirm, and have no rank of their own. Confirmed trials come first,
    ranked by the mean of their confirmation runs only: the figure by which a trial was selected is too good on average
    (winner's curse), and an unconfirmed trial must not overtake by the same luck.

    With several objectives, the trials of the Pareto front come first, sorted by crowding, the least crowded first.
    """
    standings = _standings(search, trials)
    if len(search.objectives) > 1:
        by_level = sorted(standings, key=lambda s: -(s.trial.level or 0))
        groups = [list(group) for _, group in itertools.groupby(by_level, lambda s: s.trial.level)]
        return [one for group in groups for part in _front_members(search.objectives, group) for one in part]
    sign = search.objective.sign
    return sorted(standings, key=lambda s: (-(s.trial.level or 0), not s.confirmed, s.value * sign, s.trial.number))


def top_level(search: Search, trials: Iterable[Trial]) -> float | None:
    """Returns the highest level at which a trial has figures of merit; None: none has, or the search has no levels."""
    levels = (trial.level for trial in trials if trial.level and figures_of_merit(search, trial) is not None)
    return max(levels, default=None) if search.levels is not None else None


def _standings(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """Returns all trials with figures of merit, sorted by number."""
    confirmations: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for trial in trials:
        if trial.confirms is not None and (figures := figures_of_merit(search, trial)) is not None:
            confirmations[trial.confirms].append(figures)
    standings = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        figures = figures_of_merit(search, trial)
        if trial.confirms is None and figures is not None:
            again = confirmations.get(trial.number, [])
            means = tuple(_overflow_safe_mean(column) for column in zip(*again, strict=True)) if again else figures
            standings.append(Standing(trial, means, len(again) or 1, bool(again)))
    return standings


def front_of(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """Returns the Pareto front, sorted by the first objective, best first.

    With one objective it is the best trial. A confirmed trial counts with the mean of its confirmation runs, and only
    another confirmed trial can dominate it.
    """
    if len(search.objectives) == 1:
        return ranking(search, trials)[:1]
    top = top_level(search, trials)
    standings = [one for one in _standings(search, trials) if top is None or one.trial.level == top]
    ahead, _ = _front_members(search.objectives, standings)
    sign = search.objective.sign
    return sorted(ahead, key=lambda standing: (standing.value * sign, standing.trial.number))


def results_in_order(search: Search, trials: Sequence[Trial]) -> list[tuple[int, tuple[float, ...] | None]]:
    """Returns (number of the result, figures) of all but confirmation runs.

    Figures are None where a trial failed, and at lower levels than the highest one with a result.
    """
    top = top_level(search, trials)
    told = [
        (trial.told, figures_of_merit(search, trial) if top in (None, trial.level) else None)
        for trial in trials
        if trial.told is not None and trial.confirms is None
    ]
    return sorted(told, key=lambda result: result[0])


def reference_of(search: Search, trials: Sequence[Trial]) -> tuple[float, ...] | None:
    """Returns the reference point of the hypervolume, in the payload's units; None while no trial has finished."""
    results = results_in_order(search, trials)
    return reference_point(search.objectives, (figures for _, figures in results if figures is not None))


def _overflow_safe_mean(figures: Sequence[float]) -> float:
    """Returns the mean; divides before it sums, so that figures near the largest float do not overflow."""
    return figures[0] if len(figures) == 1 else math.fsum(figure / len(figures) for figure in figures)


def ranked_by_folds(search: Search, trials: Iterable[Trial]) -> list[Trial]:
    """Returns all trials with a figure of merit, best by their folds first: confirmation runs are ignored.

    Steering confirms the first of these trials, and their outputs are kept.
    """
    return [standing.trial for standing in ranking(search, [trial for trial in trials if trial.confirms is None])]


def best_confirmed_first(search: Search, trials: Sequence[Trial]) -> Standing | None:
    """Returns the best trial for people: among confirmed trials if there are any; None while there is no figure."""
    return next(iter(ranking(search, trials)), None)


def convergence(search: Search, trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """Returns the best figure of merit after each result, as (number of the result, best so far).

    Starts at the first figure of merit; failed trials repeat the best value before them. Confirmation runs are left
    out, because they try no new point, as are results below the highest level. Figures are in the payload's units,
    without a change of sign. With several objectives, it is the hypervolume.
    """
    if len(search.objectives) > 1:
        reference = reference_of(search, trials)
        return hypervolumes(search.objectives, results_in_order(search, trials), reference) if reference else []
    results = results_in_order(search, trials)
    return best_so_far(search.objective, [(told, None if one is None else one[0]) for told, one in results])


def best_so_far(objective: Objective, results: Iterable[tuple[int, float | None]]) -> list[tuple[int, float]]:
    """Returns the best value after each result, as `convergence`; `results`: (number, figure), sorted by number."""
    better = min if objective.sign > 0 else max
    steps: list[tuple[int, float]] = []
    best: float | None = None
    for place, figure in results:
        if figure is not None:
            best = figure if best is None else better(best, figure)
        if best is not None:
            steps.append((place, best))
    return steps


#: The reference point depends on this number of first results; it is worse than the worst of them by this share of
#: their range.
FIRST_RESULTS, _BEYOND = 20, 0.1

#: Hypervolumes that are computed for a search, at most: with many objectives, each takes a while.
_MOST_VOLUMES = 400


def reference_point(objectives: Sequence[Objective], results: Iterable[Sequence[float]]) -> tuple[float, ...] | None:
    """Returns the reference point: worse figures add nothing to the hypervolume; None while there is no result.

    If the search file does not set it, it is the worst of the first 20 results, without far outliers, plus a tenth of
    their range. So it does not change after the twentieth result, and the hypervolume can only grow.

    Args:
        objectives: the objectives of the search.
        results: the figures of finished trials, in the order of their arrival and in the payload's units.
    """
    first = [figures for figures, _ in zip(results, range(FIRST_RESULTS), strict=False)]
    if not first:
        return None
    point = []
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            point.append(objective.reference)
            continue
        near = without_far(sorted(objective.sign * figures[index] for figures in first))
        span = min(near[-1] - near[0], sys.float_info.max) or abs(near[-1]) or 1.0
        point.append(objective.sign * min(near[-1] + _BEYOND * span, sys.float_info.max))
    return tuple(point)


#: Far values are left out only where they would take more than this multiple of the range of the others.
_FAR_SHARE = 2.0


def without_far(costs: Sequence[float]) -> Sequence[float]:
    """Returns sorted `costs` without far outliers at the upper end, which would leave the others little room."""
    if len(costs) < 8:
        return costs
    largest = max(abs(costs[0]), abs(costs[-1])) or 1.0
    shares = [cost / largest for cost in costs]  # differences of the costs themselves may be beyond the floats
    first, _, third = statistics.quantiles(shares, n=4)
    near = [share for share in shares if share <= third + 3 * (third - first)]
    view = near[-1] - near[0]
    return costs[: len(near)] if view > 0 and shares[-1] - near[-1] > _FAR_SHARE * view else costs


def hypervolume_of(
    objectives: Sequence[Objective], results: Sequence[Sequence[float]], reference: Sequence[float]
) -> float:
    """Returns the hypervolume of results, in the product of the payload's units."""
    from hpo_pilot.search.nondominated import costs_of, hypervolume  # noqa: PLC0415 - takes 0.2 s, seldom needed

    return hypervolume(costs_of([costs(objectives, figures) for figures in results]), costs(objectives, reference))


def hypervolumes(
    objectives: Sequence[Objective], results: Sequence[tuple[int, Sequence[float] | None]], reference: Sequence[float]
) -> list[tuple[int, float]]:
    """Returns the hypervolume after each result, as (number of the result, volume); failed trials repeat it.

    Args:
        objectives: the objectives of the search.
        results: (number, figures), sorted by number; figures of failed trials are None.
        reference: the reference point, in the payload's units.
    """
    from hpo_pilot.search.nondominated import costs_of, front, hypervolume  # noqa: PLC0415 - as above

    every = max(1, sum(figures is not None for _, figures in results) // _MOST_VOLUMES)
    steps: list[tuple[int, float]] = []
    best: list[tuple[float, ...]] = []
    reached, known = 0.0, 0
    for index, (place, figures) in enumerate(results):
        if figures is not None:
            known += 1
            best.append(costs(objectives, figures))
            if known % every == 0 or index == len(results) - 1:
                rows = costs_of(best)
                best = list(dict.fromkeys(best[row] for row in front(rows)))
                reached = max(reached, hypervolume(rows, costs(objectives, reference)))
        if known:
            steps.append((place, reached))
    return steps


def _front_members(
    objectives: Sequence[Objective], standings: Sequence[Standing]
) -> tuple[list[Standing], list[Standing]]:
    """Returns the trials of the front, the least crowded first, and all others, sorted by their rank.

    Only a confirmed trial can dominate a confirmed trial, because the figures of an unconfirmed one may be luck. Any
    trial can dominate an unconfirmed one.
    """
    from hpo_pilot.search.nondominated import costs_of, front, ranked  # noqa: PLC0415 - as above

    if not standings:
        return [], []
    rows = costs_of([costs(objectives, standing.figures) for standing in standings])
    confirmed = [row for row, standing in enumerate(standings) if standing.confirmed]
    first = {confirmed[row] for row in front(rows[confirmed])}
    first |= {row for row in front(rows) if not standings[row].confirmed}
    ahead = sorted(first)
    behind = [row for row in range(len(standings)) if row not in first]
    first_ones, others = ([standings[some[row]] for row in ranked(rows[some])] for some in (ahead, behind))
    return first_ones, others


#: A real number is at a bound if it is within this share of its range.
_AT_BOUND = 1e-3

#: Counts, shares and probabilities end here: such a bound is not remarked.
_NATURAL = (0, 1)


def best_remarks(search: Search, point: Point, ties: int) -> list[str]:
    """Returns remarks on the best trial: parameters at a bound of the space, and other trials with the same value.

    With several objectives there are none: the ends of a front are often at bounds.

    Args:
        search: the search.
        point: the point of the best trial.
        ties: number of trials with its value.
    """
    from hpo_pilot.search.parameters import Integer, Real  # noqa: PLC0415 - lists load no pydantic

    if len(search.objectives) > 1:
        return []
    remarks = [f"{ties} trials have this value"] if ties > 1 else []
    for name, value in point.items():
        dimension = search.space.dimensions.get(name)
        if not isinstance(dimension, Real | Integer):
            continue
        for side, end in (("lower", 0.0), ("upper", 1.0)):
            bound = dimension.from_unit(end)
            is_near = not dimension.is_discrete and abs(dimension.to_unit(value) - end) <= _AT_BOUND
            if (value == bound or is_near) and bound not in _NATURAL:
                remarks.append(f"{name} is at its {side} bound, {show(bound)}: a wider range may have better points")
    return remarks
