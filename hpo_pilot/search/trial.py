"""Trials and generations: what was tried, and what came of it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from hpo_pilot.search.cost import NOTHING_SPENT, Spent
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
        value: the figure of merit as the payload reported it; None where there is none. Of several the first.
        values: of several objectives, the figure of each; else None.
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
    values: tuple[float, ...] | None = None

    @property
    def figures(self) -> tuple[float, ...] | None:
        """One figure of merit for each objective; None where there is none."""
        return (self.value,) if self.values is None and self.value is not None else self.values


@dataclass(frozen=True)
class EarlyStop:
    """Why a trial was told to stop before its end, and how far it came.

    Attributes:
        look: which look at the values of the search's trials decided it.
        reason: in words.
        step: where it was judged or, once it has stopped, the last step that it reported.
        value: its value there, the mean of its folds, as reported: never to be taken for a figure of merit. None: it
            is no finite number, for the training diverged.
        projected: what it would probably have come to, for each objective, as reported; None while it runs, and where
            that is nothing.
    """

    look: int
    reason: str
    step: int
    value: float | None
    projected: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Trial:
    """One hyper-parameter point and its figure of merit.

    Attributes:
        number: counted from 1 within the search.
        generation: the generation it was asked for in, counted from 1.
        value: mean of the folds' figures of merit, as reported (not sign-flipped). Of several the first.
        std: standard deviation of the folds (sample, n - 1); None for fewer than two. Of several the first.
        values: of several objectives, the value of each; else None.
        stds: of several objectives, the standard deviation of each; else None.
        confirms: for a confirmation run, the number of the trial that it repeats; else None.
        retries: the number of the failed trial whose point it tries again because a user asked; else None.
        told: its place in the order of results, from 1; None while it runs.
        stop: of a trial that was told to stop early; None for all others.
        spent: what all attempts of all its jobs took that are over.
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
    values: tuple[float, ...] | None = None
    stds: tuple[float, ...] | None = None
    stop: EarlyStop | None = None
    spent: Spent = NOTHING_SPENT
    retries: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it takes a place in the budget: no confirmation run, and not stopped together with its search."""
        return self.confirms is None and (self.state is not TrialState.STOPPED or self.stopped_early)

    @property
    def stopped_early(self) -> bool:
        """Whether a rule ended it. One that was stopped with its search counts for nothing; this one is a result."""
        return self.state is TrialState.STOPPED and self.told is not None

    @property
    def is_result(self) -> bool:
        """Whether it is over by itself: finished, failed or stopped early, and not stopped together with its search."""
        return self.state.is_over and (self.state is not TrialState.STOPPED or self.stopped_early)

    @property
    def figures(self) -> tuple[float, ...] | None:
        """One figure of merit for each objective; None where there is none."""
        return (self.value,) if self.values is None and self.value is not None else self.values

    @property
    def spreads(self) -> tuple[float, ...] | None:
        """The standard deviation of each of `figures`; None where there is none."""
        return (self.std,) if self.stds is None and self.std is not None else self.stds


@dataclass(frozen=True)
class Generation:
    """Trials asked for together.

    Attributes:
        number: counted from 1 within the search.
        history: how many results had been told when it was asked for (its cut of the history).
        pending: the numbers of the trials that were out then.
        trials: the numbers of its own trials.
        asked: how many points the optimizer was asked for; None: it was not asked (start points, confirmation runs).
        budget: the trials of the search's budget then; None: not recorded.
    """

    number: int
    history: int
    pending: tuple[int, ...]
    trials: tuple[int, ...]
    asked: int | None = None
    budget: int | None = None


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


def means_and_stds(folds: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """The same of figures of several objectives: one tuple a fold; means and deviations, one for each objective."""
    pairs = [mean_and_std(figures) for figures in zip(*folds, strict=True)]
    stds = tuple(std for _, std in pairs if std is not None)
    return tuple(mean for mean, _ in pairs), stds or None
