"""Figures of slots over time: running and waiting jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from hpo_pilot.report.axes import label
from hpo_pilot.report.figure import BLUE, GREEN, LEGEND, PALE_BLUE, RED, Figure, FigureData, line_trace, plot
from hpo_pilot.report.formatting import count, duration, number, utc
from hpo_pilot.search import Fold, Search, Trial, TrialState


@dataclass(frozen=True, slots=True)
class JobSpan:
    """One fold of a trial, from submission to end.

    Attributes:
        trial: number of the trial.
        fold: number of the fold, from 0; None: the whole trial, whose folds are not known yet.
        node: the node; empty: not known.
        submitted: time of submission.
        started: start of the run.
        ended: end of the run, or the time of the figure while it runs.
        end: finished, failed, stopped or running.
        attempt: attempt number, from 1.
    """

    trial: int
    fold: int | None
    node: str
    submitted: datetime
    started: datetime
    ended: datetime
    end: str
    attempt: int = 1


def jobs_of(trials: Sequence[Trial], now: datetime | None) -> tuple[list[JobSpan], int]:
    """Returns the jobs that have started, sorted by start, and the number of ended jobs without known times."""
    moments = [utc(m) for t in trials for m in (t.submitted, t.started, t.ended) if m is not None]
    until = max([utc(now)] if now is not None else moments, default=None)
    jobs: list[JobSpan] = []
    unknown = 0
    for trial in trials:
        told = [fold for fold in trial.folds if None not in (fold.result.started, fold.result.ended)]
        unknown += len(trial.folds) - len(told) if told else 0
        jobs += [_job(trial, fold) for fold in told]
        if told or trial.started is None:
            continue
        ended = trial.ended or (until if trial.state is TrialState.RUNNING else None)
        if ended is None:
            unknown += 1
            continue
        start = utc(trial.started)
        end = "finished" if trial.state is TrialState.INFEASIBLE else str(trial.state)
        submitted = utc(trial.submitted) if trial.submitted else start
        jobs.append(JobSpan(trial.number, None, "", min(submitted, start), start, max(utc(ended), start), end))
    return sorted(jobs, key=lambda job: (job.started, job.trial, job.fold or 0)), unknown


def _job(trial: Trial, fold: Fold) -> JobSpan:
    result = fold.result
    assert result.started is not None
    assert result.ended is not None
    start, ended = datetime.fromtimestamp(result.started, UTC), datetime.fromtimestamp(result.ended, UTC)
    submitted = min(utc(trial.submitted), start) if trial.submitted else start
    end = "failed" if trial.state is not TrialState.STOPPED else str(trial.state)
    end = "finished" if fold.values else end
    return JobSpan(trial.number, fold.number, result.node or "", submitted, start, max(ended, start), end, fold.attempt)


def rows_of(jobs: Sequence[JobSpan]) -> list[tuple[str, list[JobSpan]]]:
    """Returns the jobs in rows, node by node: jobs of a row ran one after another, as in a slot."""
    by_node: dict[str, list[list[JobSpan]]] = {}
    for job in jobs:
        rows = by_node.setdefault(job.node, [])
        free = next((row for row in rows if row[-1].ended <= job.started), None)
        if free is None:
            rows.append([job])
        else:
            free.append(job)
    return [(node, row) for node, rows in sorted(by_node.items()) for row in rows]


class Steps:
    """The number of time spans that include a moment, as a step function of time."""

    def __init__(self, spans: Iterable[tuple[datetime, datetime]]) -> None:
        kept = [span for span in spans if span[0] < span[1]]
        self.moments = sorted({moment for span in kept for moment in span})
        self._starts, self._ends = (np.sort([span[side].timestamp() for span in kept]) for side in (0, 1))
        self.most = max(self.heights(self.moments), default=0)

    def heights(self, moments: Sequence[datetime]) -> list[float]:
        """Returns the number from each moment on."""
        times = [moment.timestamp() for moment in moments]
        begun, over = (np.searchsorted(side, times, "right") for side in (self._starts, self._ends))
        heights: list[float] = (begun - over).tolist()
        return heights

    def means(self, moments: Sequence[datetime]) -> list[float]:
        """Returns the mean from each moment to the next; for the last moment, that of the interval before it."""
        areas = [self._area(moment.timestamp()) for moment in moments]
        width = (moments[1] - moments[0]).total_seconds() or 1.0
        means = [round((later - earlier) / width, 3) for earlier, later in itertools.pairwise(areas)]
        return [*means, means[-1]]

    def _area(self, time: float) -> float:
        """Returns the sum of the spans up to a time, in seconds."""
        begun, over = (np.maximum(time - side, 0.0).sum() for side in (self._starts, self._ends))
        return float(begun - over)


#: Largest numbers of jobs and of rows in the chart of jobs: more cannot be distinguished. The curve has no limit.
JOB_LIMIT, ROW_LIMIT = 600, 64
#: Points of the curve; with more, it shows means over this number of equal time spans.
PLACE_LIMIT = 400
#: The first view of the curve ends at this multiple of the largest number of running jobs, if more than so many jobs
#: ran and waited.
_CROWD, _FEW = 3, 10
_GREY = "#8a93a0"
_UNKNOWN = "node not known"


def slots_figures(data: FigureData) -> list[Figure]:
    """Draws the slots in use over time and, unless there are too many, the jobs; empty before any job ran."""
    search, trials = data.search, data.trials
    jobs, unknown = jobs_of(trials, data.now)
    if not jobs:
        return []
    partly = any(t.state is TrialState.RUNNING and 0 < len(t.folds) < search.folds.k for t in trials)
    repeated = sum(job.attempt > 1 for job in jobs)
    notes = (
        f"{count(unknown, 'job')} not shown: their times are not known" if unknown else "",
        "running folds of trials with ended folds are not shown" if partly else "",
        f"only the last attempt of {count(repeated, 'repeated job')} is shown" if repeated else "",
    )
    figures = [_count_curve(search, jobs, notes)]
    if len(jobs) <= JOB_LIMIT and len(rows := rows_of(jobs)) <= ROW_LIMIT:
        figures.append(_chart(search, jobs, rows, notes))
    return figures


def _count_curve(search: Search, jobs: Sequence[JobSpan], notes: Sequence[str]) -> Figure:
    running = Steps((job.started, job.ended) for job in jobs)
    # A repeated fold did not wait all the time: its lost attempts ran in between.
    waiting = Steps((job.submitted, job.started) for job in jobs if job.attempt == 1)
    first, last = min(job.submitted for job in jobs), max(job.ended for job in jobs)
    moments = sorted({*running.moments, *waiting.moments})
    averaged = len(moments) > PLACE_LIMIT
    if averaged:
        span = (last - first) / PLACE_LIMIT
        moments = [first + span * i for i in range(PLACE_LIMIT + 1)]
    heights = [(steps.means(moments) if averaged else steps.heights(moments)) for steps in (running, waiting)]
    texts = [_moment(moment) for moment in moments]
    data = [
        _area("running", texts, heights[0], BLUE, "rgba(57,135,214,0.45)"),
        _area("waiting", texts, heights[1], _GREY, "rgba(138,147,160,0.25)"),
    ]
    peak = max(map(sum, zip(*heights, strict=True)))
    crowded = peak > max(_FEW, _CROWD * running.most)
    vertical: dict[str, Any] = {"title": {"text": "jobs"}, "rangemode": "tozero"}
    if crowded:  # else the running jobs would be a line at the bottom
        vertical["range"] = [0, _CROWD * running.most]
    busy = sum((job.ended - job.started).total_seconds() for job in jobs)
    whole = (last - first).total_seconds()
    mean = busy / whole if whole > 0 else float(len(jobs))
    waited = sorted((job.started - job.submitted).total_seconds() for job in jobs if job.attempt == 1)
    middle = f"; half of the jobs waited less than {duration(waited[len(waited) // 2])}" if waited else ""
    return plot(
        "slots",
        "Slots in use",
        f"{count(len(jobs), 'job')} over {duration(whole)}: {number(mean, 3)} ran at once on average, "
        f"{running.most} at most{middle}.",
        data,
        f"means over spans of {duration(whole / PLACE_LIMIT)}" if averaged else "",
        _longer(search),
        f"up to {round(peak):,} ran and waited, beyond the first view; double-click shows all" if crowded else "",
        *notes,
        xaxis={"type": "date", "title": {"text": "time (UTC)"}},
        yaxis=vertical,
        legend=LEGEND,
        hovermode="x unified",
    )


def _longer(search: Search) -> str:
    nodes = search.resources.nodes
    return f"each job takes {count(nodes, 'node')}" if nodes > 1 else ""


def _area(name: str, x: Sequence[str], y: Sequence[float], line: str, fill: str) -> dict[str, Any]:
    more = {"stackgroup": "jobs", "fillcolor": fill, "hovertemplate": "%{y} " + name + "<extra></extra>"}
    return line_trace(name, x, y, {"shape": "hv", "color": line, "width": 1.2}, **more)


def _chart(
    search: Search, jobs: Sequence[JobSpan], rows: Sequence[tuple[str, list[JobSpan]]], notes: Sequence[str]
) -> Figure:
    idle = [
        (place, max(job.submitted, before.ended if before else job.submitted), job)
        for place, (_, row) in enumerate(rows)
        for before, job in zip([None, *row], row, strict=False)
        if job.attempt == 1
    ]
    data = [
        _bars("waiting", [(p, start, job.started, job) for p, start, job in idle if start < job.started], PALE_BLUE)
    ]
    for end, colour in (("finished", BLUE), ("running", GREEN), ("stopped", _GREY), ("failed", RED)):
        bars = [(p, job.started, job.ended, job) for p, (_, row) in enumerate(rows) for job in row if job.end == end]
        if bars:
            data.append(_bars(end, bars, colour))
    nodes = {node for node, _ in rows}
    known = len(nodes - {""})
    where = f" on {count(known, 'node')}" if known else ""
    failed = sum(job.end == "failed" for job in jobs)
    return plot(
        "slots-jobs",
        "Which job ran when and where",
        f"{count(len(jobs), 'job')} in {count(len(rows), 'row')}{where}; {failed:,} failed.",
        data,
        "a row holds jobs that ran one after another on a node",
        "pale: the job waited while its row was free",
        "the nodes of running trials are not known yet" if any(j.end == "running" for j in jobs) else "",
        *notes,
        xaxis={"type": "date", "title": {"text": "time (UTC)"}},
        yaxis={**_row_ticks(rows), "autorange": "reversed", "showgrid": False, "zeroline": False},
        legend=LEGEND,
        barmode="overlay",
        bargap=0.15,
    )


def _row_ticks(rows: Sequence[tuple[str, list[JobSpan]]]) -> dict[str, Any]:
    """Returns a tick for each node, in the middle of its rows."""
    ticks: list[float] = []
    texts = []
    for node, group in itertools.groupby(range(len(rows)), key=lambda place: rows[place][0]):
        places = list(group)
        ticks.append((places[0] + places[-1]) / 2)
        texts.append(label(node or _UNKNOWN, 22))
    return {"tickmode": "array", "tickvals": ticks, "ticktext": texts}


def _bars(name: str, bars: Sequence[tuple[int, datetime, datetime, JobSpan]], colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [place for place, *_ in bars],
        "base": [_moment(start) for _, start, _, _ in bars],
        # Widths on a time axis are in milliseconds; each bar has at least one, to be visible.
        "x": [max(1.0, round((end - start) / timedelta(milliseconds=1))) for _, start, end, _ in bars],
        "text": [_job_text(name, start, end, job) for _, start, end, job in bars],
        "customdata": [job.trial for *_, job in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "line": {"color": "rgba(255,255,255,0.6)", "width": 0.5}},
    }


def _job_text(name: str, start: datetime, end: datetime, job: JobSpan) -> str:
    fold = "" if job.fold is None else f", fold {job.fold}"
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    where = f"\n{label(job.node)}" if job.node else ""
    return f"trial {job.trial}{fold}{attempt}: {name} for {duration((end - start).total_seconds())}{where}"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
