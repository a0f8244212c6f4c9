"""Figures of parameters: slices, parallel coordinates, contours and ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hpo_pilot.report.axes import FARTHEST, Axis, label, merit_axis, parameter_axis, round_ticks, rounded
from hpo_pilot.report.figure import (
    BLUE,
    FAILURE_LIMIT,
    ORANGE,
    POINT_LIMIT,
    RED,
    VALUE_AXIS,
    Figure,
    FigureData,
    Results,
    add_failures,
    add_stopped,
    evenly,
    for_each_objective,
    hover_text,
    markers,
    message_figure,
    plot,
    projected_value,
    sample_note,
    thinned,
    value_of,
    view_note,
)
from hpo_pilot.report.formatting import count, number, scalar
from hpo_pilot.report.importance import LEAST_TRIALS, aside, ped_anova, too_few
from hpo_pilot.search import Search, Trial
from hpo_pilot.search.ranking import figures_of_merit, ranked_by_folds

#: Markers in all slices together.
SLICE_POINT_LIMIT = 10_000


def slice_figures(data: FigureData) -> list[Figure]:
    """Draws each figure of merit over each parameter, in the order of the search file."""
    limit = min(POINT_LIMIT, max(100, SLICE_POINT_LIMIT // len(data.results) // len(data.search.space.names)))

    def draw(results: Results) -> list[Figure]:
        shown = thinned(results.search, results.finished, limit)
        return [_slice(results, shown, index) for index in range(len(data.search.space.names))]

    return for_each_objective(data, draw)


def _slice(results: Results, shown: Sequence[Trial], index: int) -> Figure:
    search, finished, best = results.search, results.finished, results.best
    name = search.space.names[index]
    failed = evenly(results.failed, SLICE_POINT_LIMIT)
    stopped = evenly(results.stopped, SLICE_POINT_LIMIT)
    axis = parameter_axis(search, name, [*shown, *failed, *stopped, *results.ranked[:1]])

    def placed(trials: Sequence[Trial]) -> list[tuple[Any, Trial]]:
        """Returns the trials that have the parameter, with their positions."""
        found = [(axis.places[trial.number], trial) for trial in trials if trial.number in axis.places]
        return [(axis.choices[int(place)], trial) for place, trial in found] if axis.choices else [*found]

    def marked(name: str, trials: Sequence[Trial], marker: dict[str, Any], before: str = "") -> dict[str, Any]:
        hover = before + "trial %{customdata}<br>%{x}<br>%{y}<extra></extra>"
        return markers(name, [(place, value_of(trial), trial) for place, trial in placed(trials)], marker, hover)

    dots = marked("trial", shown, {"color": BLUE, "size": 7, "opacity": 0.65})
    traces = [dots]
    horizontal = axis.layout
    if axis.choices:
        del dots["mode"]
        dots |= {"type": "box", "boxpoints": "all", "jitter": 0.5, "pointpos": 0, "fillcolor": "rgba(57,135,214,0.12)"}
        dots["line"] = {"color": BLUE, "width": 1}
        order = {"categoryorder": "array", "categoryarray": axis.choices}
        horizontal = {"title": axis.layout["title"], "type": "category", **order}
    if best is not None and best.number in axis.places:
        traces.append(marked("best", [best], {"symbol": "star", "color": ORANGE, "size": 14}, "best: "))
    rings = placed(results.projected)
    add_stopped(traces, search, rings)
    merit = merit_axis(search, [*results.values, *(projected_value(trial) for _, trial in rings)])
    layout = {"xaxis": horizontal, "yaxis": merit.layout, "showlegend": False, "meta": VALUE_AXIS}
    add_failures(traces, layout, placed(failed))
    without = sum(name not in trial.point for trial in finished)
    at = f"; the best has {scalar(best.point[name])}" if best is not None and name in best.point else ""
    return plot(
        f"parameter-{index}",
        name,
        f"{merit.name} against {name} for {count(len(finished) - without, 'finished trial')}{at}.",
        traces,
        sample_note(len(shown), len(finished)),
        f"not active in {count(without, 'trial')}" if without else "",
        results.not_projected_note,
        view_note(merit),
        **layout,
    )


# Parallel coordinates.

#: Number of axes; with more, lines cannot be followed.
AXIS_LIMIT = 12
#: Number of values in the figure, which limits its size.
CELL_LIMIT = 36_000
#: Extra length of an axis for trials without a value, as a share of the axis.
_LANE = 0.12
_GREY = "#9aa3ad"


@dataclass(frozen=True)
class _ParallelAxis:
    """One axis with the positions of trials, for plotly's drawing and our own.

    Attributes:
        title: its title.
        scale: linear, log (positions are powers of ten) or choice (positions are indices).
        ends: lowest and highest position.
        ticks: positions with their texts.
        values: position of each trial, by number.
        lane: position of trials without a value, and its tick; None: all have one.
    """

    title: str
    scale: str
    ends: tuple[float, float]
    ticks: Sequence[tuple[float, str]]
    values: Mapping[int, float]
    lane: tuple[float, str] | None = None

    def dimension(self, trials: Sequence[Trial]) -> dict[str, Any]:
        lanes = [] if self.lane is None else [self.lane]
        missing = [place for place, _ in lanes]
        ticks = sorted([*self.ticks, *lanes])
        values = [self.values[t.number] if t.number in self.values else missing[0] for t in trials]
        low, high = min([*self.ends, *missing]), max([*self.ends, *missing])
        digits = _digits(low, high, 6)  # more than a line shows; the same for all, so that no value is outside

        def short(places: Iterable[float]) -> list[float]:
            return [float(f"{max(-FARTHEST, min(FARTHEST, place)):.{digits}g}") for place in places]

        return {
            "label": label(self.title, 24),
            "range": short([low, high]),
            "tickvals": short(value for value, _ in ticks),
            "ticktext": [text for _, text in ticks],
            "values": short(values),
        }


def parallel_figures(data: FigureData) -> list[Figure]:
    """Draws trials as lines over all axes; failed trials have a separate position on the axes of figures of merit."""
    search, lost = data.search, data.results[0].failed
    finished = [standing.trial for standing in data.standings]
    names = _shown_names(data)
    limit = CELL_LIMIT // (len(names) + len(search.objectives) + 3)
    best_first = {trial.number: place for place, trial in enumerate(finished)}
    shown = sorted(thinned(search, finished, limit), key=lambda trial: best_first[trial.number])
    drawn = [*evenly(lost, FAILURE_LIMIT), *reversed(shown)]  # the best is drawn last, on top of the others
    of_parameters = [_parameter_lines(search, name, drawn) for name in names]
    merits = [merit_axis(results.search, results.values) for results in data.results]
    pairs = zip(data.results, merits, strict=True)
    axes = [*of_parameters, *(_objective_lines(results, merit, lane=bool(lost)) for results, merit in pairs)]
    traces = [
        {
            "type": "parcoords",
            "dimensions": [axis.dimension(drawn) for axis in axes],
            "line": {
                "color": [_colour(trial, best_first) for trial in drawn],
                "cmin": 0,
                "cmax": 1.1,
                "colorscale": [[0, ORANGE], [0.4, _GREY], [0.91, BLUE], [0.92, RED], [1, RED]],
            },
            "customdata": [[trial.number, _line_text(search, trial)] for trial in drawn],
        }
    ]
    left_out = len(search.space.names) - len(names)
    far = max(merit.outside for merit in merits)
    return [
        plot(
            "parallel",
            "Parallel coordinates",
            f"{count(len(finished), 'finished trial')}{f' and {len(lost):,} failed' if lost else ''} over "
            f"{count(len(names), 'parameter')} and {' and '.join(merit.name for merit in merits)}"
            f"{_best_text(search, finished)}. The table of trials has all values.",
            traces,
            "one line per trial: orange is the best, blue the worst, grey between"
            + (", broken and red failed" if lost else ""),
            sample_note(len(shown), len(finished)),
            f"shows {FAILURE_LIMIT} of {len(lost):,} failed trials" if len(lost) > FAILURE_LIMIT else "",
            "– at the end of an axis: the parameter is not active" if any(a.lane for a in of_parameters) else "",
            f"{count(left_out, 'parameter')} not shown: the less important ones, as far as known" if left_out else "",
            f"{count(far, 'far worse trial')} drawn at the end of the axis" if far else "",
            meta={"scales": [axis.scale for axis in axes]},
            margin={"t": 60, "b": 30},
        )
    ]


def _shown_names(data: FigureData) -> list[str]:
    """Returns the parameters with an axis, in the order of the search file: all, or the most important ones."""
    names = data.search.space.names
    if len(names) <= AXIS_LIMIT:
        return list(names)
    found = ped_anova(data.results[0])
    most = [one.name for one in found[0][:AXIS_LIMIT]] if found else names[:AXIS_LIMIT]
    return [name for name in names if name in most]


def _parameter_lines(search: Search, name: str, trials: Sequence[Trial]) -> _ParallelAxis:
    axis = parameter_axis(search, name, trials)
    values = {trial: axis.scaled(place) for trial, place in axis.places.items()}
    if axis.choices:
        scale, low, high = "choice", axis.bounds[0] - 0.25, axis.bounds[1] + 0.25
        ticks = [(float(index), text) for index, text in enumerate(axis.choices)]
    else:
        scale = "log" if axis.is_log else "linear"
        ends = [*map(axis.scaled, axis.bounds), *values.values()]
        low, high = min(ends), max(ends)
        ticks = _ticks(axis, low, high)
    lane = (low - _LANE * (high - low), "–") if len(values) < len(trials) else None
    return _ParallelAxis(name, scale, (low, high), ticks, values, lane)


def _objective_lines(results: Results, axis: Axis, *, lane: bool) -> _ParallelAxis:
    """Returns the axis of a figure of merit; failed trials have a position beyond its worse end."""
    figures = {trial.number: axis.scaled(value) for trial, value in zip(results.finished, results.values, strict=True)}
    low, high = axis.layout.get("range") or (min(figures.values()), max(figures.values()))
    beyond = _LANE * (high - low)
    failed = high + beyond if results.search.objective.sign > 0 else low - beyond
    values = {trial: min(high, max(low, figure)) for trial, figure in figures.items()}
    ticks, scale = _ticks(axis, low, high), "log" if axis.is_log else "linear"
    return _ParallelAxis(axis.name, scale, (low, high), ticks, values, (failed, "failed") if lane else None)


def _ticks(axis: Axis, low: float, high: float) -> list[tuple[float, str]]:
    if axis.is_log:
        found = zip(map(math.log10, axis.layout["tickvals"]), axis.layout["ticktext"], strict=True)
        return [(value, text) for value, text in found if low <= value <= high]
    values = axis.layout.get("tickvals") or round_ticks(low, high)
    digits = _digits(low, high, 4)
    return [(value, number(value, digits)) for value in values if low <= value <= high]


def _colour(trial: Trial, best_first: dict[int, int]) -> float:
    """Returns a number by rank, 0 (best) to 1 (worst), because outliers would hide the differences; 1.1: failed."""
    place = best_first.get(trial.number)
    return 1.1 if place is None else round(place / max(1, len(best_first) - 1), 4)


def _line_text(search: Search, trial: Trial) -> str:
    """Returns the text of a line for the pointer and screen readers."""
    figures = figures_of_merit(search, trial)
    if figures is None:
        return f"trial {trial.number} failed"
    parts = [f"{label(o.metric)} {number(figure)}" for o, figure in zip(search.objectives, figures, strict=True)]
    return f"trial {trial.number}: {', '.join(parts)}"


def _best_text(search: Search, finished: Sequence[Trial]) -> str:
    if not finished or len(search.objectives) > 1:
        return ""
    best = finished[0]
    at = ", ".join(f"{name} {scalar(value)}" for name, value in list(best.point.items())[:AXIS_LIMIT])
    return f"; the best, trial {best.number}, has {search.objective.metric} {number(best.value)} at {at}"


def _digits(low: float, high: float, digits: int) -> int:
    """Returns the number of significant digits with which the difference of two numbers has `digits` of them."""
    if not high > low:
        return digits
    shared = math.log10(max(abs(low), abs(high))) - math.log10(high - low)
    return min(17, digits + math.ceil(max(0.0, shared)))


# Contours.

#: Number of parameters whose pairs are drawn, for one objective; with several objectives, only the first pair.
PARAMETERS = 3
#: Trials used for the surface, and dots of a plane.
SURFACE_LIMIT, DOT_LIMIT = 2000, 400
#: Points of the surface along each numeric axis.
GRID = 40
#: Width of the Gaussian of the local mean, as a share of an axis. The surface has a hole where the weights sum to less
#: than `_NEAR`, the weight of a trial at twice the width.
WIDTH = 0.07
#: The width for choices and few integers: a value does not contribute to the mean of its neighbour.
_APART = 1e-3
#: Figures over more powers of ten than this are averaged as logarithms.
_DECADES = 1.3
_NEAR = math.exp(-2.0)
#: Dark is better. The lightness alone gives the order, so that colour-blind users can read it.
_SCALE = ((0.0, "#08306b"), (0.25, "#2171b5"), (0.5, "#6baed6"), (0.75, "#c6dbef"), (1.0, "#f7fbff"))


@dataclass(frozen=True)
class _Side:
    """One side of the plane.

    Attributes:
        axis: the axis, with the positions of trials.
        grid: scaled positions of the surface's points.
        width: width of the local mean, scaled; choices and few integers are not mixed.
    """

    axis: Axis
    grid: list[float]
    width: float


@dataclass(frozen=True)
class _Plane:
    """The trials over two parameters.

    Attributes:
        search: the search.
        ranked: all trials with a figure of merit or a projected one, best first.
        having: the trials that have both parameters, by number.
        rings: numbers of the trials with a projected figure.
        x: the horizontal side.
        y: the vertical side.
    """

    search: Search
    ranked: Sequence[Trial]
    having: Sequence[Trial]
    rings: AbstractSet[int]
    x: _Side
    y: _Side


#: Returns what a plane shows, its traces and its notes. It gets a function that makes a trace of marks of trials.
_Layer: TypeAlias = Callable[[_Plane, Callable[..., dict[str, Any]]], tuple[str, list[dict[str, Any]], list[str]]]

_EDGE = {"color": "#1b1f24", "width": 1}


def contour_figures(data: FigureData) -> list[Figure]:
    """Draws the local mean over pairs of parameters; a figure without data says why."""
    return _planes(data, "contours", "Contours", _surface_layer)


def rank_figures(data: FigureData) -> list[Figure]:
    """Draws the trials over pairs of parameters in the colours of their ranks; a figure without data says why."""
    return _planes(data, "ranks", "Ranks", _rank_layer)


def _planes(data: FigureData, key: str, title: str, layer: _Layer) -> list[Figure]:
    if len(data.search.space.names) < 2:
        return []
    most = PARAMETERS if len(data.search.objectives) == 1 else 1

    def planes(results: Results) -> list[Figure]:
        if (order := ped_anova(results)) is None:
            return [message_figure(key, title, too_few(results))]
        finished, names = results.estimated, data.axes or [one.name for one in order[0][:PARAMETERS]]
        sides = [_side(parameter_axis(results.search, name, finished)) for name in names]
        pairs = itertools.islice(itertools.combinations(sides, 2), most)
        ranked = ranked_by_folds(results.search, finished)
        return [_plane(results, ranked, x, y, f"{key}-{index}", layer) for index, (x, y) in enumerate(pairs)]

    return for_each_objective(data, planes, "{metric}: {title}")


def _side(axis: Axis) -> _Side:
    if axis.choices:
        return _Side(axis, [float(index) for index in range(len(axis.choices))], _APART)
    ends = [axis.scaled(value) for value in (*axis.bounds, *axis.places.values())]
    low, span = min(ends), max(ends) - min(ends) or 1.0
    if axis.few:
        return _Side(axis, [axis.scaled(value) for value in axis.few], _APART * span)
    return _Side(axis, [low + span * step / (GRID - 1) for step in range(GRID)], WIDTH * span)


def _plane(results: Results, ranked: Sequence[Trial], x: _Side, y: _Side, key: str, layer: _Layer) -> Figure:
    search = results.search
    finished = sorted(ranked, key=lambda trial: trial.number)
    having = [trial for trial in finished if trial.number in x.axis.places and trial.number in y.axis.places]
    metric, title = search.objective.metric, f"{x.axis.name} and {y.axis.name}"
    if len(having) < LEAST_TRIALS:
        return message_figure(key, title, f"Only {count(len(having), 'trial')} with a value of both finished.")
    rings, numbers = {trial.number for trial in results.projected}, {trial.number for trial in having}
    best = next((one for one in ranked if one.number in numbers - rings), None)

    def marked(name: str, trials: Sequence[Trial], marker: Mapping[str, Any], extra: str = "") -> dict[str, Any]:
        points = [
            (x.axis.places[t.number] + aside(t, x.axis), y.axis.places[t.number] + aside(t, y.axis, 7), t)
            for t in trials
        ]
        return markers(name, points, marker, f"%{{text}}<extra>{extra}</extra>", text=partial(hover_text, search))

    what, traces, notes = layer(_Plane(search, ranked, having, rings, x, y), marked)
    reached = ""
    if best is not None:
        star = {"symbol": "star", "color": ORANGE, "size": 14, "line": _EDGE}
        traces.append(marked("best", [best], star, "best"))
        at = ", ".join(f"{side.axis.name} {scalar(best.point[side.axis.name])}" for side in (x, y))
        reached = f"; the best has {at}, with {metric} {number(best.value)}"
    among = len(rings & numbers)
    whole = count(len(having) - among, "finished trial")
    return plot(
        key,
        title,
        f"{what} of {metric} over {x.axis.name} and {y.axis.name} for {whole}"
        f"{f' and {among:,} stopped early' if among else ''}{reached}.",
        traces,
        *notes,
        f"rings: {results.estimated_note}" if among else "",
        f"not active in {count(len(finished) - len(having), 'trial')}" if len(having) < len(finished) else "",
        xaxis=x.axis.layout,
        yaxis=y.axis.layout,
        showlegend=False,
    )


def _rank_layer(plane: _Plane, marked: Callable[..., dict[str, Any]]) -> tuple[str, list[dict[str, Any]], list[str]]:
    best_first = {trial.number: place for place, trial in enumerate(plane.ranked)}
    shown = thinned(plane.search, plane.having, DOT_LIMIT)
    shown.sort(key=lambda trial: -best_first[trial.number])  # the best is drawn last, on top of the others
    marker = {
        "color": [_colour(trial, best_first) for trial in shown],
        "symbol": ["circle-open" if trial.number in plane.rings else "circle" for trial in shown],
        "cmin": 0,
        "cmax": 1,
        "colorscale": [[0, ORANGE], [0.4, _GREY], [1, BLUE]],
        "colorbar": {"thickness": 12, "tickvals": [0, 0.5, 1], "ticktext": ["best", "median", "worst"]},
        "size": 7,
    }
    notes = ["orange is the best, blue the worst, grey between", sample_note(len(shown), len(plane.having))]
    return "Ranks", [marked("trial", shown, marker)], notes


def _surface_layer(plane: _Plane, marked: Callable[..., dict[str, Any]]) -> tuple[str, list[dict[str, Any]], list[str]]:
    x, y, metric = plane.x, plane.y, plane.search.objective.metric
    surface, log = _surface(evenly(plane.having, SURFACE_LIMIT), x, y)
    dots = evenly(plane.having, DOT_LIMIT)
    known = [value for row in surface for value in row if value is not None]
    smooth = len(x.grid) == len(y.grid) == GRID
    shape = {"type": "contour", "ncontours": 12, "line": {"width": 0.4}} if smooth else {"type": "heatmap"}
    traces: list[dict[str, Any]] = [
        {
            **shape,
            "colorscale": _scale(plane.search.objective.sign),
            "colorbar": {
                "thickness": 12,
                "title": {"text": label(metric, 20), "side": "right"},
                **_bar_ticks(known, log),
            },
            "name": "local mean",
            "x": [rounded(x.axis.unscaled(place)) for place in x.grid],
            "y": [rounded(y.axis.unscaled(place)) for place in y.grid],
            "z": surface,
            "text": [[_mean_text(value, metric, log) for value in row] for row in surface],
            "hoverinfo": "text",
            "hoverongaps": False,
        },
        marked(
            "trial",
            [trial for trial in dots if trial.number not in plane.rings],
            {"color": "#ffffff", "size": 5, "line": _EDGE},
        ),
    ]
    if stopped := [trial for trial in dots if trial.number in plane.rings]:
        ring = {"symbol": "circle-open", "color": "#ffffff", "size": 6}
        traces.append(marked("stopped early", stopped, ring, "stopped early: projected"))
    notes = [
        f"the surface is the local {'geometric ' if log else ''}mean of nearby trials, for all values of the other "
        "parameters; it has holes where no trial is near",
        "dark is better",
        sample_note(len(dots), len(plane.having), "an even sample as dots"),
    ]
    return "Local mean", traces, notes


def _scale(sign: int) -> list[list[Any]]:
    if sign > 0:
        return [[at, colour] for at, colour in _SCALE]
    return [[1 - at, colour] for at, colour in reversed(_SCALE)]


def _surface(trials: Sequence[Trial], x: _Side, y: _Side) -> tuple[list[list[float | None]], bool]:
    """Returns local means on the grid, shape (len(y.grid), len(x.grid)), and whether they are powers of ten."""
    figures = np.array([value_of(trial) for trial in trials])
    low, high = np.quantile(figures, [0.0, 0.95]).tolist()
    log = low > 0 and math.log10(high) - math.log10(low) > _DECADES
    # Values are cut at the 5 % quantiles, so that a few diverged trainings do not dominate their surroundings.
    ends = np.quantile(figures, [0.05, 0.95])
    values = np.log10(figures) if log else figures
    values = np.clip(values, *(np.log10(ends) if log else ends))
    weights = []
    for side in (x, y):
        places = [side.axis.scaled(side.axis.places[trial.number]) for trial in trials]
        weights.append(np.exp(-0.5 * ((np.array(side.grid)[:, None] - places) / side.width) ** 2))
    total = weights[1] @ weights[0].T
    scale = float(np.abs(values).max()) or 1.0
    sums = weights[1] @ (weights[0] * (values / scale)).T * scale
    return [
        [float(f"{s / t:.4g}") if t >= _NEAR else None for s, t in zip(row, weight, strict=True)]
        for row, weight in zip(sums.tolist(), total.tolist(), strict=True)
    ], log


def _bar_ticks(values: Sequence[float], log: bool) -> dict[str, Any]:
    """Returns the ticks of the colour bar for powers of ten; empty otherwise."""
    if not log or not values:
        return {}
    low, high = min(values), max(values)
    ticks = [low + (high - low) * i / 4 for i in range(5)]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": [number(10**tick, 2) for tick in ticks]}


def _mean_text(value: float | None, metric: str, log: bool) -> str:
    return "" if value is None else f"{label(metric)} about {number(10**value if log else value, 3)}"
