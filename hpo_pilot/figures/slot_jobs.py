"""The jobs of a search as spans of time on nodes: what the figures of slots show."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hpo_pilot.figures.wording import utc
from hpo_pilot.search import FoldResult, Trial, TrialState


@dataclass(frozen=True)
class Job:
    """One trial's fold, from submission to end.

    Attributes:
        trial: its number.
        fold: counted from 0; None: the trial as a whole, whose folds are not told yet.
        node: where it ran; empty: not known.
        submitted: when it began to wait.
        started: when it ran.
        ended: when it ended, or the moment of the figure where it still runs.
        end: finished, failed, stopped or running.
        attempt: which this was, from 1.
    """

    trial: int
    fold: int | None
    node: str
    submitted: datetime
    started: datetime
    ended: datetime
    end: str
    attempt: int = 1


def jobs_of(trials: Sequence[Trial], now: datetime | None) -> tuple[list[Job], int]:
    """All jobs that have started, by their start, and the number of ended ones whose times are not known."""
    moments = [utc(m) for t in trials for m in (t.submitted, t.started, t.ended) if m is not None]
    until = max([utc(now)] if now is not None else moments, default=None)
    jobs: list[Job] = []
    unknown = 0
    for trial in trials:
        told = [fold for fold in trial.folds if fold.started is not None and fold.ended is not None]
        unknown += len(trial.folds) - len(told) if told else 0
        jobs += [_job(trial, fold) for fold in told]
        if told or trial.started is None:
            continue
        ended = trial.ended or (until if trial.state is TrialState.RUNNING else None)
        if ended is None:
            unknown += 1
            continue
        start = utc(trial.started)
        end = "running" if trial.state is TrialState.RUNNING else str(trial.state)
        submitted = utc(trial.submitted) if trial.submitted else start
        jobs.append(Job(trial.number, None, "", min(submitted, start), start, max(utc(ended), start), end))
    return sorted(jobs, key=lambda job: (job.started, job.trial, job.fold or 0)), unknown


def _job(trial: Trial, fold: FoldResult) -> Job:
    assert fold.started is not None
    assert fold.ended is not None
    start = utc(fold.started)
    submitted = min(utc(trial.submitted), start) if trial.submitted else start
    end = "failed" if fold.value is None and trial.state is not TrialState.STOPPED else str(trial.state)
    if fold.value is not None:
        end = "finished"
    node = fold.node or ""
    return Job(trial.number, fold.fold, node, submitted, start, max(utc(fold.ended), start), end, fold.attempt)


def rows_of(jobs: Sequence[Job]) -> list[tuple[str, list[Job]]]:
    """The jobs in rows, node by node: those of a row ran one after another, as in a slot."""
    by_node: dict[str, list[list[Job]]] = {}
    for job in jobs:
        rows = by_node.setdefault(job.node, [])
        free = next((row for row in rows if row[-1].ended <= job.started), None)
        if free is None:
            rows.append([job])
        else:
            free.append(job)
    return [(node, row) for node, rows in sorted(by_node.items()) for row in rows]


class Steps:
    """How many of some spans of time hold at each moment."""

    def __init__(self, spans: Iterable[tuple[datetime, datetime]]) -> None:
        changes: dict[datetime, int] = {}
        for start, end in spans:
            if end > start:
                changes[start] = changes.get(start, 0) + 1
                changes[end] = changes.get(end, 0) - 1
        self.moments = sorted(changes)
        self._heights = list(itertools.accumulate(changes[moment] for moment in self.moments))
        areas = [
            height * (later - moment).total_seconds()
            for moment, later, height in zip(self.moments, self.moments[1:], self._heights, strict=False)
        ]
        self._areas = [0.0, *itertools.accumulate(areas)]
        self.most = max(self._heights, default=0)

    def heights(self, moments: Sequence[datetime]) -> list[float]:
        """From each moment on."""
        places = [bisect.bisect_right(self.moments, moment) - 1 for moment in moments]
        return [self._heights[place] if place >= 0 else 0 for place in places]

    def means(self, moments: Sequence[datetime]) -> list[float]:
        """The mean from each moment to the next; of the last moment that of before it."""
        areas = [self._area(moment) for moment in moments]
        width = (moments[1] - moments[0]).total_seconds() or 1.0
        means = [round((later - earlier) / width, 3) for earlier, later in itertools.pairwise(areas)]
        return [*means, means[-1]]

    def _area(self, moment: datetime) -> float:
        place = bisect.bisect_right(self.moments, moment) - 1
        if place < 0:
            return 0.0
        return self._areas[place] + self._heights[place] * (moment - self.moments[place]).total_seconds()
