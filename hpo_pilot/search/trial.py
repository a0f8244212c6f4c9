"""Trials and generations: what was tried, and what came of it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from hpo_pilot.search.dimension import Point


class TrialState(StrEnum):
    """The life of a trial."""

    PENDING = "pending"  #: asked for; its jobs may be submitted, waiting or lost and on their way again
    RUNNING = "running"  #: at least one of its jobs has started
    FINISHED = "finished"  #: enough folds gave a figure of merit
    FAILED = "failed"  #: it will give no figure of merit; `Trial.error` says why
    STOPPED = "stopped"  #: ended on purpose before its end (stop, early stopping); not a failure

    @property
    def is_over(self) -> bool:
        """True where nothing more will come."""
        return self in (TrialState.FINISHED, TrialState.FAILED, TrialState.STOPPED)


@dataclass(frozen=True)
class FoldResult:
    """The last word on one fold of a trial.

    Attributes:
        fold: counted from 0.
        value: the figure of merit as the payload reported it; None where there is none.
        error: why there is no value; None where there is one.
        log_tail: the end of the payload's log, for failed folds (at most 64 kB).
        attempt: how many times the fold was started, from 1.
        seconds: the payload's run time.
        metadata: what the payload itself put into its metadata (`payload.file_names.metadata`).
    """

    fold: int
    value: float | None = None
    error: str | None = None
    log_tail: str | None = None
    attempt: int = 1
    seconds: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    panda_id: int | None = None
    node: str | None = None
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True)
class Trial:
    """One hyper-parameter point and its figure of merit.

    Attributes:
        number: counted from 1 within the search.
        generation: the generation it was asked for in, counted from 1.
        value: mean of the folds' figures of merit, as reported (not sign-flipped).
        std: standard deviation of the folds (sample, n - 1); None for fewer than two.
        confirms: for a confirmation run, the number of the trial that it repeats; else None.
        told: its place in the order of results, from 1; None while it runs.
    """

    number: int
    generation: int
    point: Point
    state: TrialState = TrialState.PENDING
    value: float | None = None
    std: float | None = None
    folds: tuple[FoldResult, ...] = ()
    error: str | None = None
    seed: int = 0
    confirms: int | None = None
    told: int | None = None
    submitted: datetime | None = None
    started: datetime | None = None
    ended: datetime | None = None


@dataclass(frozen=True)
class Generation:
    """Trials asked for together.

    Attributes:
        number: counted from 1 within the search.
        history: how many results had been told when it was asked for (its cut of the history).
        pending: the numbers of the trials that were out then.
        trials: the numbers of its own trials.
    """

    number: int
    history: int
    pending: tuple[int, ...]
    trials: tuple[int, ...]


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation of the folds' figures; no deviation for a single one.

    Both are finite for any finite figures, those near the largest float included.
    """
    n = len(values)
    if n == 1:
        return values[0], None
    scale = max(1.0, max(map(abs, values)) / 1e150)
    scaled = [value / scale for value in values]
    largest = sys.float_info.max
    return statistics.fmean(scaled) * scale, min(statistics.stdev(scaled) * scale, largest)
