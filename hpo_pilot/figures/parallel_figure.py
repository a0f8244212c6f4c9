"""The figure of parallel coordinates: a line a trial, through its value on each axis, to brush."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpo_pilot.figures.axis import choice_labels, figure_axis, label, parameter_axis, round_ticks
from hpo_pilot.figures.figure import (
    BLUE,
    FAILURE_LIMIT,
    ORANGE,
    RED,
    Figure,
    evenly,
    joined_notes,
    rounded,
    sample_note,
    thinned,
)
from hpo_pilot.figures.importance import QUICK, importances
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.summary import figures_of, ranking
from hpo_pilot.figures.wording import count, number, scalar
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.dimension import value_key

#: Axes of parameters; more stand too close to follow a line.
AXIS_LIMIT = 12
#: Values in the figure: they bound its size.
CELL_LIMIT = 36_000
#: Room beyond an axis for what has no place on it, as a share of the axis.
_LANE = 0.12
_GREY = "#9aa3ad"


@dataclass(frozen=True)
class _Axis:
    """One axis: where a trial stands on it, for its end in plotly's and in our own drawing."""

    label: str
    scale: str  # linear, log (values are powers of ten) or choice (values are places)
    range: tuple[float, float]
    ticks: tuple[tuple[float, str], ...]
    place: Callable[[Trial], float]

    def dimension(self, trials: Sequence[Trial]) -> dict[str, Any]:
        return {
            "label": self.label,
            "range": [_short(end) for end in self.range],
            "tickvals": [_short(value) for value, _ in self.ticks],
            "ticktext": [text for _, text in self.ticks],
            "values": [_short(self.place(trial)) for trial in trials],
        }


def parallel_figure(search: Search, trials: Sequence[Trial], *, failed: bool = True) -> Figure:
    """Finished trials, and by choice failed ones, over all axes.

    Args:
        search: the search.
        trials: all its trials, of which one or more have finished.
        failed: whether failed trials are drawn too, on a place of their own on the axis of the figure of merit.
    """
    finished = [standing.trial for standing in ranking(search, trials)]
    lost = [trial for trial in trials if failed and trial.confirms is None and trial.state is TrialState.FAILED]
    names = _shown_names(search, trials)
    limit = CELL_LIMIT // (len(names) + len(search.objectives) + 3)
    best_first = {trial.number: place for place, trial in enumerate(finished)}
    shown = sorted(thinned(search, finished, limit), key=lambda trial: best_first[trial.number])
    drawn = [*evenly(lost, FAILURE_LIMIT), *reversed(shown)]  # the best last: on top of the others
    axes = [_parameter(search, name, [*finished, *lost]) for name in names]
    axes += [_objective(search, index, finished, lane=bool(lost)) for index in range(len(search.objectives))]
    data = [
        {
            "type": "parcoords",
            "dimensions": [axis.dimension(drawn) for axis in axes],
            "line": {
                "color": [_colour(trial, best_first) for trial in drawn],
                "cmin": 0,
                "cmax": 1.1,
                "colorscale": [[0, ORANGE], [0.4, _GREY], [0.91, BLUE], [0.92, RED], [1, RED]],
            },
            "customdata": [[trial.number, _text(search, trial)] for trial in drawn],
        }
    ]
    metrics = " and ".join(objective.metric for objective in search.objectives)
    left_out = len(search.space.names) - len(names)
    return Figure(
        "parallel",
        "Parallel coordinates",
        f"{count(len(finished), 'finished trial')}{f' and {len(lost):,} failed' if lost else ''} over "
        f"{count(len(names), 'parameter')} and {metrics}{_best(search, finished)}. "
        "The table of trials has all of it.",
        joined_notes(
            "a line a trial: orange the best, over grey to blue the worst"
            + (", broken and red failed" if lost else ""),
            sample_note(len(shown), len(finished)),
            f"shows {FAILURE_LIMIT} of {len(lost):,} failed trials" if len(lost) > FAILURE_LIMIT else "",
            "– at the end of an axis: the parameter is not active" if any(_has_lane(axis) for axis in axes) else "",
            f"{count(left_out, 'parameter')} not shown: those that matter less, as far as that is known"
            if left_out
            else "",
            _outside(search, finished),
        ),
        {"data": data, "layout": {"meta": {"scales": [axis.scale for axis in axes]}, "margin": {"t": 60, "b": 30}}},
    )


def _shown_names(search: Search, trials: Sequence[Trial]) -> list[str]:
    """Those of the axes, in the order of the search file: all, or the ones that matter most."""
    names = search.space.names
    if len(names) <= AXIS_LIMIT:
        return list(names)
    found = importances(*seen_by(search, trials, 0), QUICK)
    most = [one.name for one in found.parameters[:AXIS_LIMIT]] if found else names[:AXIS_LIMIT]
    return [name for name in names if name in most]


def _parameter(search: Search, name: str, trials: Sequence[Trial]) -> _Axis:
    dimension = search.space_dimensions[name]
    having = [trial for trial in trials if name in trial.point]
    if choices := getattr(dimension, "choices", None):
        places = {value_key(choice): place for place, choice in enumerate(choices)}
        ticks = tuple((float(place), text) for place, text in enumerate(choice_labels(choices)))
        values = {t.number: float(at) for t in having if (at := places.get(value_key(t.point[name]))) is not None}
        return _with_lane(name, "choice", (-0.25, len(choices) - 0.75), ticks, values, trials)
    assert dimension.type in ("real", "integer")
    settings = parameter_axis(search, name, [trial.point[name] for trial in having])
    scale = "log" if settings.get("type") == "log" else "linear"
    values = {t.number: math.log10(t.point[name]) if scale == "log" else float(t.point[name]) for t in having}
    bounds = [math.log10(end) if scale == "log" else float(end) for end in (dimension.low, dimension.high)]
    low, high = min([bounds[0], *values.values()]), max([bounds[1], *values.values()])
    return _with_lane(name, scale, (low, high), _ticks(settings, low, high), values, trials)


def _with_lane(
    name: str,
    scale: str,
    ends: tuple[float, float],
    ticks: tuple[tuple[float, str], ...],
    values: dict[int, float],
    trials: Sequence[Trial],
) -> _Axis:
    """The axis, with a place below its end for trials that do not have the parameter, if there are any."""
    low, high = ends
    if high <= low:
        low, high = low - 0.5, high + 0.5
    lane = low - _LANE * (high - low)
    if len(values) < len(trials):
        return _Axis(label(name, 24), scale, (lane, high), ((lane, "–"), *ticks), lambda t: values.get(t.number, lane))
    return _Axis(label(name, 24), scale, (low, high), ticks, lambda t: values[t.number])


def _has_lane(axis: _Axis) -> bool:
    return bool(axis.ticks) and axis.ticks[0][1] == "–"


def _objective(search: Search, index: int, finished: Sequence[Trial], *, lane: bool) -> _Axis:
    """The axis of a figure of merit; failed trials have a place of their own beyond its worse end."""
    single, seen = seen_by(search, finished, index)
    figures = [float(rounded(trial.value)) for trial in seen if trial.value is not None]
    settings = figure_axis(single, figures).layout
    log = settings.get("type") == "log"
    low, high = settings.get("range") or ((min(figures), max(figures)) if figures else (0.0, 1.0))
    ticks = _ticks(settings, low, high)
    beyond = _LANE * (high - low)
    failed = high + beyond if single.objective.sign > 0 else low - beyond
    values = {
        trial.number: min(high, max(low, math.log10(figure) if log else figure))
        for trial, figure in zip(seen, figures, strict=True)
    }
    if lane:
        low, high = min(low, failed), max(high, failed)
        ticks = (*ticks, (failed, "failed"))
    title = label(search.objectives[index].metric, 24)
    return _Axis(title, "log" if log else "linear", (low, high), ticks, lambda trial: values.get(trial.number, failed))


def _ticks(settings: dict[str, Any], low: float, high: float) -> tuple[tuple[float, str], ...]:
    if settings.get("type") == "log":
        found = zip(map(math.log10, settings["tickvals"]), settings["ticktext"], strict=True)
        return tuple((value, text) for value, text in found if low <= value <= high)
    values = settings.get("tickvals") or round_ticks(low, high)
    return tuple((value, number(value)) for value in values if low <= value <= high)


def _colour(trial: Trial, best_first: dict[int, int]) -> float:
    """From 0, the best, to 1, the worst, by rank: one far value must not make all others look alike. 1.1: failed."""
    place = best_first.get(trial.number)
    return 1.1 if place is None else round(place / max(1, len(best_first) - 1), 4)


def _text(search: Search, trial: Trial) -> str:
    """What the pointer and screen readers are told of a line."""
    figures = figures_of(search, trial)
    if figures is None:
        return f"trial {trial.number} failed"
    parts = [f"{label(o.metric)} {number(figure)}" for o, figure in zip(search.objectives, figures, strict=True)]
    return f"trial {trial.number}: {', '.join(parts)}"


def _best(search: Search, finished: Sequence[Trial]) -> str:
    if not finished or len(search.objectives) > 1:
        return ""
    best = finished[0]
    at = ", ".join(f"{name} {scalar(value)}" for name, value in list(best.point.items())[:AXIS_LIMIT])
    return f"; the best, trial {best.number}, has {search.objective.metric} {number(best.value)} at {at}"


def _outside(search: Search, finished: Sequence[Trial]) -> str:
    far = 0
    for index in range(len(search.objectives)):
        single, seen = seen_by(search, finished, index)
        far = max(far, figure_axis(single, [rounded(t.value) for t in seen if t.value is not None]).outside)
    return f"{count(far, 'far worse trial')} drawn at the end of the axis" if far else ""


def _short(value: float) -> float:
    """Six digits are more than a line shows; the same for ends and values, so that none lies outside."""
    return float(f"{rounded(float(value)):.6g}")
