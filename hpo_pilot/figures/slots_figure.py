"""The figures of slots over time: how many jobs ran and waited, and which ran when and where."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from hpo_pilot.figures.axis import label
from hpo_pilot.figures.figure import BLUE, LEGEND, PALE_BLUE, RED, Figure, joined_notes
from hpo_pilot.figures.slot_jobs import Job, Steps, jobs_of, rows_of
from hpo_pilot.figures.wording import count, duration, number
from hpo_pilot.search import Search, Trial, TrialState

#: More jobs, or more rows, cannot be told apart in the chart of jobs; the curve shows any number.
JOB_LIMIT, ROW_LIMIT = 600, 64
#: Places of the curve: beyond, it shows means over as many equal spans of time.
PLACE_LIMIT = 400
#: The first view of the curve ends at this many times of the slots that were in use at once.
_CROWD = 3
_GREY = "#8a93a0"
_UNKNOWN = "node not known"


def slots_figures(search: Search, trials: Sequence[Trial], now: datetime | None = None) -> list[Figure]:
    """Slots in use over time and, where there are few enough to be told apart, the jobs; none before any job ran."""
    jobs, unknown = jobs_of(trials, now)
    if not jobs:
        return []
    partly = any(t.state is TrialState.RUNNING and 0 < len(t.folds) < search.folds.k for t in trials)
    repeated = sum(job.attempt > 1 for job in jobs)
    notes = (
        f"{count(unknown, 'job')} not shown, for their times are not known" if unknown else "",
        "folds that have not ended are not shown where others of their trial have" if partly else "",
        f"of {count(repeated, 'repeated job')} only the last attempt is shown" if repeated else "",
    )
    figures = [_curve(search, jobs, notes)]
    rows = rows_of(jobs)
    if len(jobs) <= JOB_LIMIT and len(rows) <= ROW_LIMIT:
        figures.append(_chart(search, jobs, rows, notes))
    return figures


def _curve(search: Search, jobs: Sequence[Job], notes: Sequence[str]) -> Figure:
    running = Steps((job.started, job.ended) for job in jobs)
    # A job of a repeated fold did not wait all that time: its lost attempts ran in between.
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
    crowded = peak > _CROWD * running.most
    vertical: dict[str, Any] = {"title": {"text": "jobs"}, "rangemode": "tozero"}
    if crowded:  # else those that run would be a line at the bottom
        vertical["range"] = [0, _CROWD * running.most]
    busy = sum((job.ended - job.started).total_seconds() for job in jobs)
    whole = (last - first).total_seconds()
    mean = busy / whole if whole > 0 else float(len(jobs))
    waited = sorted((job.started - job.submitted).total_seconds() for job in jobs if job.attempt == 1)
    middle = f"; half of the jobs waited less than {duration(waited[len(waited) // 2])}" if waited else ""
    return Figure(
        "slots",
        "Slots in use",
        f"{count(len(jobs), 'job')} over {duration(whole)}: {number(mean, 3)} ran at once on average, "
        f"{running.most} at most{middle}.",
        joined_notes(
            f"means over spans of {duration(whole / PLACE_LIMIT)}" if averaged else "",
            _longer(search),
            f"up to {round(peak):,} ran and waited, beyond the first view; double-click shows all" if crowded else "",
            *notes,
        ),
        {
            "data": data,
            "layout": {
                "xaxis": {"type": "date", "title": {"text": "time (UTC)"}},
                "yaxis": vertical,
                "legend": LEGEND,
                "hovermode": "x unified",
            },
        },
    )


def _longer(search: Search) -> str:
    nodes = search.resources.nodes
    return f"each job takes {count(nodes, 'node')}" if nodes > 1 else ""


def _area(name: str, x: Sequence[str], y: Sequence[float], line: str, fill: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "stackgroup": "jobs",
        "line": {"shape": "hv", "color": line, "width": 1.2},
        "fillcolor": fill,
        "hovertemplate": "%{y} " + name + "<extra></extra>",
    }


def _chart(search: Search, jobs: Sequence[Job], rows: Sequence[tuple[str, list[Job]]], notes: Sequence[str]) -> Figure:
    idle = [
        (place, max(job.submitted, before.ended if before else job.submitted), job)
        for place, (_, row) in enumerate(rows)
        for before, job in zip([None, *row], row, strict=False)
        if job.attempt == 1
    ]
    data = [
        _bars("waiting", [(p, start, job.started, job) for p, start, job in idle if start < job.started], PALE_BLUE)
    ]
    for end, colour in (("finished", BLUE), ("running", "#2a9d6f"), ("stopped", _GREY), ("failed", RED)):
        bars = [(p, job.started, job.ended, job) for p, (_, row) in enumerate(rows) for job in row if job.end == end]
        if bars:
            data.append(_bars(end, bars, colour))
    nodes = {node for node, _ in rows}
    known = len(nodes - {""})
    where = f" on {count(known, 'node')}" if known else ""
    failed = sum(job.end == "failed" for job in jobs)
    return Figure(
        "slots-jobs",
        "Which job ran when and where",
        f"{count(len(jobs), 'job')} in {count(len(rows), 'row')}{where}; {failed:,} failed.",
        joined_notes(
            "a row holds jobs that ran one after another on a node",
            "pale: the job waited while its row was free",
            "of trials that still run the nodes are not known yet" if any(j.end == "running" for j in jobs) else "",
            *notes,
        ),
        {
            "data": data,
            "layout": {
                "xaxis": {"type": "date", "title": {"text": "time (UTC)"}},
                "yaxis": {**_row_ticks(rows), "autorange": "reversed", "showgrid": False, "zeroline": False},
                "legend": LEGEND,
                "barmode": "overlay",
                "bargap": 0.15,
            },
        },
    )


def _row_ticks(rows: Sequence[tuple[str, list[Job]]]) -> dict[str, Any]:
    """A tick for each node, in the middle of its rows."""
    ticks: list[float] = []
    texts = []
    for node, group in itertools.groupby(range(len(rows)), key=lambda place: rows[place][0]):
        places = list(group)
        ticks.append((places[0] + places[-1]) / 2)
        texts.append(label(node or _UNKNOWN, 22))
    return {"tickmode": "array", "tickvals": ticks, "ticktext": texts}


def _bars(name: str, bars: Sequence[tuple[int, datetime, datetime, Job]], colour: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [place for place, *_ in bars],
        "base": [_moment(start) for _, start, _, _ in bars],
        # Widths on an axis of dates are milliseconds; one that shows nothing gets a hair.
        "x": [max(1.0, round((end - start) / timedelta(milliseconds=1))) for _, start, end, _ in bars],
        "text": [_job_text(name, start, end, job) for _, start, end, job in bars],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "line": {"color": "rgba(255,255,255,0.6)", "width": 0.5}},
    }


def _job_text(name: str, start: datetime, end: datetime, job: Job) -> str:
    fold = "" if job.fold is None else f", fold {job.fold}"
    attempt = f", attempt {job.attempt}" if job.attempt > 1 else ""
    where = f"\n{label(job.node)}" if job.node else ""
    return f"trial {job.trial}{fold}{attempt}: {name} for {duration((end - start).total_seconds())}{where}"


def _moment(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
