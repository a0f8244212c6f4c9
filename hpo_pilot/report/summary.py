"""Summarises the results of a search: ranking, Pareto front, convergence, failures and efficiency."""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpo_pilot.jobs.results import MEASURES, figure_of
from hpo_pilot.search import Fold, Objective, Search, Trial, TrialState
from hpo_pilot.search.sections import costs
from hpo_pilot.search.trials import Cost, Gain, gain_of, volume_gain

#: The meaning of a hypervolume of 0.
NOTHING_BEYOND = "no trial is better than the reference point in every objective"


@dataclass(frozen=True)
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

    Confirmation runs count for the trial that they confirm, and have no rank of their own. Confirmed trials come first,
    ranked by the mean of their confirmation runs only: the figure by which a trial was selected is too good on average
    (winner's curse), and an unconfirmed trial must not overtake by the same luck.

    With several objectives, the trials of the Pareto front come first, sorted by crowding, the least crowded first.
    """
    standings = _standings(search, trials)
    if len(search.objectives) > 1:
        ahead, behind = front_members(search.objectives, standings)
        return ahead + behind
    sign = search.objective.sign
    return sorted(standings, key=lambda s: (not s.confirmed, s.value * sign, s.trial.number))


def _standings(search: Search, trials: Sequence[Trial]) -> list[Standing]:
    """Returns all trials with figures of merit, sorted by number."""
    confirmations: defaultdict[int, list[tuple[float, ...]]] = defaultdict(list)
    for trial in trials:
        figures = figures_of_merit(search, trial)
        if trial.confirms is not None and figures is not None:
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
    ahead, _ = front_members(search.objectives, _standings(search, trials))
    sign = search.objective.sign
    return sorted(ahead, key=lambda standing: (standing.value * sign, standing.trial.number))


def results_in_order(search: Search, trials: Sequence[Trial]) -> list[tuple[int, tuple[float, ...] | None]]:
    """Returns (number of the result, figures) of all but confirmation runs; figures are None where a trial failed."""
    told = [(trial.told, figures_of_merit(search, trial)) for trial in trials if trial.told is not None]
    return sorted(told, key=lambda result: result[0])


def reference_of(search: Search, trials: Sequence[Trial]) -> tuple[float, ...] | None:
    """Returns the reference point of the hypervolume, in the payload's units; None while no trial has finished."""
    results = results_in_order(search, trials)
    return reference_point(search.objectives, (figures for _, figures in results if figures is not None))


def front_volume(search: Search, trials: Sequence[Trial]) -> float | None:
    """Returns the hypervolume of a search with several objectives; None while no trial has finished."""
    reference = reference_of(search, trials)
    found = [figures for _, figures in results_in_order(search, trials) if figures is not None]
    return None if reference is None else hypervolume_of(search.objectives, found, reference)


def _overflow_safe_mean(figures: Sequence[float]) -> float:
    """Returns the mean; divides before it sums, so that figures near the largest float do not overflow."""
    return figures[0] if len(figures) == 1 else math.fsum(figure / len(figures) for figure in figures)


def top_trials(search: Search, trials: Sequence[Trial], count: int = 10) -> list[Trial]:
    """Returns the `count` best trials, best first."""
    return [standing.trial for standing in ranking(search, trials)[:count]]


def best_trial(search: Search, trials: Sequence[Trial]) -> Trial | None:
    """Returns the best finished trial; None where no trial has a figure of merit.

    Where trials were confirmed, it is the trial with the best confirmation runs.
    """
    return next(iter(top_trials(search, trials, 1)), None)


def search_gain(search: Search, trials: Sequence[Trial], cost: Cost) -> Gain | None:
    """Returns the gain of the search, with the gain per cost of its jobs; None while it has no result."""
    if len(search.objectives) > 1:
        dominated = front_volume(search, trials)
        return None if dominated is None else volume_gain(dominated, cost)
    results = [figures for _, figures in results_in_order(search, trials) if figures is not None]
    best = best_trial(search, trials)
    if not results or best is None or best.value is None:
        return None
    return gain_of(results[0][0], best.value, search.objective.sign, cost)


def convergence(search: Search, trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """Returns the best figure of merit after each result, as (number of the result, best so far).

    Starts at the first figure of merit; failed trials repeat the best value before them. Confirmation runs are left
    out, because they try no new point. Figures are in the payload's units, without a change of sign. With several
    objectives, it is the hypervolume.
    """
    if len(search.objectives) > 1:
        reference = reference_of(search, trials)
        return hypervolumes(search.objectives, results_in_order(search, trials), reference) if reference else []
    results = [
        (trial.told, figure_of_merit(trial)) for trial in trials if trial.told is not None and trial.confirms is None
    ]
    better = min if search.objective.sign > 0 else max
    steps: list[tuple[int, float]] = []
    best: float | None = None
    for place, figure in sorted(results, key=lambda result: result[0]):
        if figure is not None:
            best = figure if best is None else better(best, figure)
        if best is not None:
            steps.append((place, best))
    return steps


#: The reference point depends on this number of first results; it is worse than the worst of them by this share of
#: their range.
_FIRST, _BEYOND = 20, 0.1

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
    first = [figures for figures, _ in zip(results, range(_FIRST), strict=False)]
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
    from hpo_pilot.optimizers.nondominated import costs_of, hypervolume  # noqa: PLC0415 - takes 0.2 s, seldom needed

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
    from hpo_pilot.optimizers.nondominated import costs_of, front, hypervolume  # noqa: PLC0415 - as above

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


def front_members(
    objectives: Sequence[Objective], standings: Sequence[Standing]
) -> tuple[list[Standing], list[Standing]]:
    """Returns the trials of the front, the least crowded first, and all others, sorted by their rank.

    Only a confirmed trial can dominate a confirmed trial, because the figures of an unconfirmed one may be luck. Any
    trial can dominate an unconfirmed one.
    """
    from hpo_pilot.optimizers.nondominated import costs_of, front, ranked  # noqa: PLC0415 - as above

    if not standings:
        return [], []
    rows = costs_of([costs(objectives, standing.figures) for standing in standings])
    confirmed = [row for row, standing in enumerate(standings) if standing.confirmed]
    first = {confirmed[row] for row in front(rows[confirmed])}
    first |= {row for row in front(rows) if not standings[row].confirmed}
    ahead = sorted(first)
    behind = [row for row in range(len(standings)) if row not in first]
    return (
        [standings[ahead[row]] for row in ranked(rows[ahead])],
        [standings[behind[row]] for row in ranked(rows[behind])],
    )


#: Characters of a reason and of a log tail that a report keeps.
REASON_LIMIT = 600
LOG_LIMIT = 6000

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class FailureGroup:
    """Failures with the same reason.

    Attributes:
        reason: the reason, in the words of the first failure.
        trials: the numbers of the trials, each once, in order.
        folds: number of folds without a figure of merit for this reason; 0 where the trial failed as a whole.
        lost: True where the trials failed; False where they finished with their other folds.
        log_tail: the end of the log of one of them; None where none was kept.
    """

    reason: str
    trials: tuple[int, ...]
    folds: int
    lost: bool
    log_tail: str | None


@dataclass(frozen=True)
class _Failure:
    trial: int
    reason: str
    is_fold: bool
    lost: bool
    log_tail: str | None


def failure_groups(trials: Sequence[Trial]) -> list[FailureGroup]:
    """Returns the failures in groups, the most frequent reason first.

    Reasons that differ only in numbers are one group: "exit status 1 after 12 s" and "exit status 1 after 14 s".
    """
    groups: dict[tuple[str, bool], list[_Failure]] = {}
    for trial in trials:
        for failure in _failures(trial):
            groups.setdefault((kind_of(failure.reason), failure.lost), []).append(failure)
    found = [_group(members) for members in groups.values()]
    return sorted(found, key=lambda group: (not group.lost, -len(group.trials), group.trials))


def _failures(trial: Trial) -> Iterator[_Failure]:
    lost = trial.state is TrialState.FAILED
    results = [fold.result for fold in trial.folds]
    without = [result for result in results if not result.values and result.error]
    if lost and (trial.error or not without):
        tail = next((result.log_tail for result in results if result.log_tail and result.error), None)
        yield _Failure(trial.number, trial.error or "no reason was recorded", False, True, tail)
    elif lost or trial.state is TrialState.FINISHED:
        for result in without:
            yield _Failure(trial.number, result.error or "", True, lost, result.log_tail)


def kind_of(reason: str) -> str:
    """Returns the first line of a reason without its numbers, to group reasons."""
    return _NUMBER.sub("#", reason.strip().partition("\n")[0])


def _group(members: Sequence[_Failure]) -> FailureGroup:
    tail = next((member.log_tail for member in members if member.log_tail), None)
    return FailureGroup(
        reason=shortened(members[0].reason.strip(), REASON_LIMIT),
        trials=tuple(sorted({member.trial for member in members})),
        folds=sum(member.is_fold for member in members),
        lost=members[0].lost,
        log_tail=tail[-LOG_LIMIT:] if tail else None,
    )


def shortened(text: str, limit: int) -> str:
    """Returns `text`, or its first `limit` - 1 characters and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


#: The measures of the table of ranks.
RANK_MEASURES = tuple(measure for measure in MEASURES if measure.of_ranks)
_MEASURED = "pop_parallel_efficiency"


@dataclass(frozen=True)
class Efficiency:
    """The measured efficiency of one trial.

    Attributes:
        number: number of the trial.
        figures: one for each of `RANK_MEASURES`, the mean over the measured folds; None: not measured.
        slowest: the rank with the longest computation of all folds, and the excess over the mean; empty: not known.
    """

    number: int
    figures: tuple[float | None, ...]
    slowest: str


def efficiencies(trials: Iterable[Trial]) -> list[Efficiency]:
    """Returns the efficiencies of the trials that were measured, in their order."""
    found = []
    for trial in trials:
        folds = tuple(fold for fold in trial.folds if figure_of(fold.metrics, _MEASURED) is not None)
        if folds:
            measured = replace(trial, folds=folds)
            figures = tuple(measured.mean_metric(measure.name) for measure in RANK_MEASURES)
            found.append(Efficiency(trial.number, figures, _slowest(folds)))
    return found


def _slowest(folds: Sequence[Fold]) -> str:
    """Describes the slowest rank in words; empty where there is only one rank, or single ranks are not known."""
    most: tuple[float, str] = (0.0, "")
    for fold in folds:
        ranks = _ranks(fold.result.metadata)
        mean = figure_of(fold.metrics, "compute_seconds") or 0.0
        if len(ranks) < 2 or mean <= 0:
            continue
        longest, rank, host = max(ranks)
        ratio = longest / mean - 1
        if ratio > most[0]:
            most = (ratio, f"rank {rank} on {host}: {100 * ratio:.0f}% longer than the mean")
    return most[1]


def _ranks(metadata: Mapping[str, Any] | None) -> list[tuple[float, int, str]]:
    """Returns (seconds of computation, rank, host) of each rank in the metadata."""
    listed = (metadata or {}).get("hpo_pilot_ranks")
    found = []
    for rank in listed if isinstance(listed, list) else ():
        if isinstance(rank, Mapping) and isinstance(rank.get("rank"), int):
            compute = figure_of(rank, "compute")
            if compute is not None:
                found.append((compute, int(rank["rank"]), str(rank.get("host", ""))[:100]))
    return found
