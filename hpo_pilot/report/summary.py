"""Summarises the results of a search: gain, failures and efficiency."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpo_pilot.jobs.results import MEASURES, figure_of
from hpo_pilot.report.formatting import shortened
from hpo_pilot.search.trials import Cost, Fold, Gain, Trial, TrialState, gain_of, volume_gain

if TYPE_CHECKING:
    from hpo_pilot.search.progress import SearchProgress
    from hpo_pilot.search.ranking import Standing
    from hpo_pilot.search.search import Search


def search_gain(search: Search, progress: SearchProgress, best: Standing | None, cost: Cost) -> Gain | None:
    """Returns the gain of a search, with the gain per cost of its jobs; None while it has no result.

    Args:
        search: the search.
        progress: its progress.
        best: its best trial; not used for several objectives.
        cost: the cost of its jobs.
    """
    if progress.hypervolume is not None:
        return volume_gain(progress.hypervolume, cost)
    if best is None or best.trial.value is None or progress.first_value is None:
        return None
    return gain_of(progress.first_value, best.trial.value, search.objective.sign, cost)


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
