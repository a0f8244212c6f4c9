"""Failures of a search, grouped by reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpo_pilot.search import Trial, TrialState

#: Characters of a reason and of a log's tail that a report keeps.
REASON_LIMIT = 600
LOG_LIMIT = 6000

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class FailureGroup:
    """Failures with one reason.

    Attributes:
        reason: the reason as the first of them gave it.
        trials: the numbers of the trials concerned, each once, in order.
        folds: how many folds gave no figure of merit for this reason; 0 where the trial failed as a whole.
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
    """The failures, the most frequent reason first.

    Reasons that differ only in numbers are one: "exit status 1 after 12 s" and "exit status 1 after 14 s".
    """
    groups: dict[tuple[str, bool], list[_Failure]] = {}
    for trial in trials:
        for failure in _failures(trial):
            groups.setdefault((kind_of(failure.reason), failure.lost), []).append(failure)
    found = [_group(members) for members in groups.values()]
    return sorted(found, key=lambda group: (not group.lost, -len(group.trials), group.trials))


def _failures(trial: Trial) -> Iterator[_Failure]:
    lost = trial.state is TrialState.FAILED
    without = [fold for fold in trial.folds if fold.value is None and fold.error]
    if lost and (trial.error or not without):
        tail = next((fold.log_tail for fold in trial.folds if fold.log_tail), None)
        yield _Failure(trial.number, trial.error or "no reason was recorded", False, True, tail)
    elif lost or trial.state is TrialState.FINISHED:
        for fold in without:
            yield _Failure(trial.number, fold.error or "", True, lost, fold.log_tail)


def kind_of(reason: str) -> str:
    """What reasons have in common that differ only in numbers: the first line, without its numbers."""
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
    """`text`, or its first `limit` - 1 characters and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
