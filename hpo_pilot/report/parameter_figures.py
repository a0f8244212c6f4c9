"""Figures of parameters: slices, parallel coordinates and contours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpo_pilot.report.figure import (
    BLUE,
    FAILURE_LIMIT,
    ORANGE,
    POINT_LIMIT,
    RED,
    Figure,
    add_failures,
    add_stopped,
    choice_labels,
    evenly,
    figure_axis,
    guess_of,
    guessed,
    joined_notes,
    label,
    markers,
    message_figure,
    no_ring_note,
    parameter_axis,
    parameter_places,
    round_ticks,
    rounded,
    sample_note,
    seen_by,
    thinned,
    value_of,
    view_note,
)
from hpo_pilot.report.formatting import count, number, scalar
from hpo_pilot.report.importance import LEAST_TRIALS, QUICK, importances, too_few
from hpo_pilot.report.result_figures import hover_text
from hpo_pilot.report.summary import figure_of_merit, figures_of_merit, ranking
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.values import value_key

#: Markers in all parameter figures together.
PARAMETER_POINT_LIMIT = 10_000


def figures_by_objective(search: Search, trials: Sequence[Trial]) -> list[tuple[str, list[Figure]]]:
    """Returns for each objective its metric and its figures over each parameter."""
    several = len(search.objectives) > 1
    found = []
    for index, objective in enumerate(search.objectives):
        figures = parameter_figures(
            *seen_by(search, trials, index), most=PARAMETER_POINT_LIMIT // len(search.objectives)
        )
        if several:
            figures = [replace(figure, key=f"{figure.key}-{index}") for figure in figures]
        found.append((objective.metric, figures))
    return found


def parameter_figures(search: Search, trials: Sequence[Trial], most: int = PARAMETER_POINT_LIMIT) -> list[Figure]:
    """Draws the figure of merit over each parameter, in the order of the search file; at most `most` markers in all."""
    finished = [trial for trial in trials if trial.confirms is None and figure_of_merit(trial) is not None]
    failed = [trial for trial in trials if trial.confirms is None and trial.state is TrialState.FAILED]
    names = search.space.names
    limit = min(POINT_LIMIT, max(100, most // len(names)))
    shown = thinned(search, finished, limit)
    best = next((standing.trial for standing in ranking(search, trials)), None)
    groups = {"finished": finished, "shown": shown, "failed": failed, "stopped": [t for t in trials if t.stopped_early]}
    return [_parameter_figure(search, name, **groups, best=best) for name in names]


def _parameter_figure(
    search: Search,
    name: str,
    *,
    finished: Sequence[Trial],
    shown: Sequence[Trial],
    failed: Sequence[Trial],
    stopped: Sequence[Trial],
    best: Trial | None,
) -> Figure:
    dimension = search.space_dimensions[name]
    choices = getattr(dimension, "choices", None)
    places = {value_key(choice): place for place, choice in enumerate(choices or ())}
    labels = choice_labels(choices or ())

    def place(trial: Trial) -> Any:
        return labels[places[value_key(trial.point[name])]] if choices else rounded(trial.point[name])

    def has(trial: Trial) -> bool:
        # Trials of an older version of the space may have values that it no longer contains.
        return name in trial.point and (not choices or value_key(trial.point[name]) in places)

    marks = [trial for trial in shown if has(trial)]
    dots = markers(
        "trial",
        [place(trial) for trial in marks],
        [value_of(trial) for trial in marks],
        [trial.number for trial in marks],
        {"color": BLUE, "size": 7, "opacity": 0.65},
        "trial %{text}<br>%{x}<br>%{y}<extra></extra>",
    )
    data = [dots]
    if choices:
        del dots["mode"]
        dots |= {"type": "box", "boxpoints": "all", "jitter": 0.5, "pointpos": 0, "fillcolor": "rgba(57,135,214,0.12)"}
        dots["line"] = {"color": BLUE, "width": 1}
        horizontal: dict[str, Any] = {"title": {"text": label(name)}, "type": "category"}
        horizontal |= {"categoryorder": "array", "categoryarray": labels}
    else:
        horizontal = parameter_axis(
            search, name, [place(trial) for trial in [*finished, *failed, *stopped] if has(trial)]
        )
    if best is not None and has(best):
        hover = "best: trial %{text}<br>%{x}<br>%{y}<extra></extra>"
        star = {"symbol": "star", "color": ORANGE, "size": 14}
        data.append(markers("best", [place(best)], [value_of(best)], [best.number], star, hover))
    rings = [trial for trial in guessed(stopped) if has(trial)]
    add_stopped(data, search, [(place(trial), trial) for trial in rings])
    axis = figure_axis(search, [*map(value_of, finished), *map(guess_of, rings)])
    layout = {"xaxis": horizontal, "yaxis": axis.layout, "showlegend": False}
    add_failures(data, layout, [(place(trial), trial) for trial in failed if has(trial)])

    without = sum(name not in trial.point for trial in finished)
    at = f"; the best has {scalar(best.point[name])}" if best is not None and name in best.point else ""
    return Figure(
        f"parameter-{search.space.names.index(name)}",
        name,
        f"{search.objective.metric} against {name} for {count(len(finished) - without, 'finished trial')}{at}.",
        joined_notes(
            sample_note(len(shown), len(finished)),
            f"not active in {count(without, 'trial')}" if without else "",
            no_ring_note(stopped),
            view_note(axis),
        ),
        {"data": data, "layout": layout},
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
    """One axis with the positions of trials, for plotly's drawing and our own."""

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
    """Draws trials as lines over all axes.

    Args:
        search: the search.
        trials: all its trials; at least one has finished.
        failed: whether failed trials are drawn, too, at a separate position on the axis of the figure of merit.
    """
    finished = [standing.trial for standing in ranking(search, trials)]
    lost = [trial for trial in trials if failed and trial.confirms is None and trial.state is TrialState.FAILED]
    names = _shown_names(search, trials)
    limit = CELL_LIMIT // (len(names) + len(search.objectives) + 3)
    best_first = {trial.number: place for place, trial in enumerate(finished)}
    shown = sorted(thinned(search, finished, limit), key=lambda trial: best_first[trial.number])
    drawn = [*evenly(lost, FAILURE_LIMIT), *reversed(shown)]  # the best is drawn last, on top of the others
    axes = [_parameter_axis(search, name, [*finished, *lost]) for name in names]
    axes += [_objective_axis(search, index, finished, lane=bool(lost)) for index in range(len(search.objectives))]
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
            "customdata": [[trial.number, _line_text(search, trial)] for trial in drawn],
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
    """Returns the parameters with an axis, in the order of the search file: all, or the most important ones."""
    names = search.space.names
    if len(names) <= AXIS_LIMIT:
        return list(names)
    found = importances(*seen_by(search, trials, 0), QUICK)
    most = [one.name for one in found.parameters[:AXIS_LIMIT]] if found else names[:AXIS_LIMIT]
    return [name for name in names if name in most]


def _parameter_axis(search: Search, name: str, trials: Sequence[Trial]) -> _ParallelAxis:
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
) -> _ParallelAxis:
    """Returns the axis, with a position below its lower end for trials without the parameter, if there are any."""
    low, high = ends
    if high <= low:
        low, high = low - 0.5, high + 0.5
    lane = low - _LANE * (high - low)
    if len(values) < len(trials):
        return _ParallelAxis(
            label(name, 24), scale, (lane, high), ((lane, "–"), *ticks), lambda t: values.get(t.number, lane)
        )
    return _ParallelAxis(label(name, 24), scale, (low, high), ticks, lambda t: values[t.number])


def _has_lane(axis: _ParallelAxis) -> bool:
    return bool(axis.ticks) and axis.ticks[0][1] == "–"


def _objective_axis(search: Search, index: int, finished: Sequence[Trial], *, lane: bool) -> _ParallelAxis:
    """Returns the axis of a figure of merit; failed trials have a position beyond its worse end."""
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
    return _ParallelAxis(
        title, "log" if log else "linear", (low, high), ticks, lambda trial: values.get(trial.number, failed)
    )


def _ticks(settings: dict[str, Any], low: float, high: float) -> tuple[tuple[float, str], ...]:
    if settings.get("type") == "log":
        found = zip(map(math.log10, settings["tickvals"]), settings["ticktext"], strict=True)
        return tuple((value, text) for value, text in found if low <= value <= high)
    values = settings.get("tickvals") or round_ticks(low, high)
    return tuple((value, number(value)) for value in values if low <= value <= high)


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
    """Rounds to six digits, more than a line shows; the same for ends and values, so that no value is outside."""
    return float(f"{rounded(float(value)):.6g}")


# Contours.

#: Number of parameters whose pairs are drawn, for one objective; with several objectives, only the first pair.
PARAMETERS = 3
#: Trials used for the surface, and dots on top of it.
SURFACE_LIMIT, DOT_LIMIT = 2000, 400
#: Points of the surface along each numeric axis.
GRID = 40
#: Width of the Gaussian of the local mean, as a share of an axis. The surface has a hole where the weights sum to less
#: than `_NEAR`, the weight of a trial at twice the width.
WIDTH = 0.07
#: The width for choices and few integers: a value does not contribute to the mean of its neighbour.
_APART = 1e-3
#: Integers with up to this number of values are not smoothed.
_FEW = 12
#: Figures over more powers of ten than this are averaged as logarithms.
_DECADES = 1.3
_NEAR = math.exp(-2.0)
#: Dark is better. The lightness alone gives the order, so that colour-blind users can read it.
_SCALE = ((0.0, "#08306b"), (0.25, "#2171b5"), (0.5, "#6baed6"), (0.75, "#c6dbef"), (1.0, "#f7fbff"))


@dataclass(frozen=True)
class _PlaneAxis:
    """The axis of one parameter.

    Attributes:
        name: name of the parameter.
        layout: plotly's settings.
        grid: positions of the surface's points, in plotly's form.
        grid_units: the same positions in [0, 1].
        width: width of the local mean in [0, 1]; choices are not mixed.
        units: position of each trial in [0, 1], by number; without trials that do not have the parameter.
        places: the same positions in plotly's form.
    """

    name: str
    layout: dict[str, Any]
    grid: list[float]
    grid_units: list[float]
    width: float
    units: dict[int, float]
    places: dict[int, float]


def contour_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """Draws the planes of pairs of parameters; a figure without data says why."""
    if len(search.space.names) < 2:
        return []
    several = len(search.objectives) > 1
    found = []
    for index in range(len(search.objectives)):
        figures = _of_one(*seen_by(search, trials, index), most=1 if several else PARAMETERS)
        if several:
            metric = search.objectives[index].metric
            figures = [replace(f, key=f"{f.key}-{index}", title=f"{metric}: {f.title}") for f in figures]
        found += figures
    return found


def _of_one(search: Search, trials: Sequence[Trial], most: int) -> list[Figure]:
    order = importances(search, trials, QUICK)
    if order is None:
        return [message_figure("contours", "Contours", too_few(search, trials))]
    finished = sorted(
        (trial for trial in trials if trial.confirms is None and figure_of_merit(trial) is not None),
        key=lambda trial: trial.number,
    )
    names = [one.name for one in order.parameters[:PARAMETERS]]
    axes = {name: _axis(search, name, finished) for name in names}
    pairs = list(itertools.islice(itertools.combinations(names, 2), most))
    return [_plane(search, finished, axes[x], axes[y], f"contours-{i}") for i, (x, y) in enumerate(pairs)]


def _axis(search: Search, name: str, trials: Sequence[Trial]) -> _PlaneAxis:
    dimension = search.space_dimensions[name]
    places, layout = parameter_places(search, name, trials)
    if dimension.type in ("categorical", "ordinal"):
        last = max(1, len(dimension.choices) - 1)
        grid = [float(place) for place in range(len(dimension.choices))]
        units = {number: place / last for number, place in places.items()}
        return _PlaneAxis(name, layout, grid, [place / last for place in grid], _APART, units, places)
    assert dimension.type in ("real", "integer")
    few = dimension.type == "integer" and dimension.size <= _FEW
    log = layout.get("type") == "log"

    def scaled(value: float) -> float:
        return math.log10(value) if log else float(value)

    ends = [scaled(dimension.low), scaled(dimension.high), *map(scaled, places.values())]
    low, span = min(ends), max(ends) - min(ends) or 1.0
    if few:  # single numbers, without smoothing
        grid = [float(value) for value in dimension.grid(_FEW)]
        grid_units = [(scaled(value) - low) / span for value in grid]
    else:
        grid_units = [place / (GRID - 1) for place in range(GRID)]
        grid = [10 ** (low + unit * span) if log else low + unit * span for unit in grid_units]
    units = {number: (scaled(place) - low) / span for number, place in places.items()}
    return _PlaneAxis(
        name, layout, [rounded(place) for place in grid], grid_units, _APART if few else WIDTH, units, places
    )


def _plane(search: Search, finished: Sequence[Trial], x: _PlaneAxis, y: _PlaneAxis, key: str) -> Figure:
    having = [trial for trial in finished if trial.number in x.units and trial.number in y.units]
    metric = search.objective.metric
    title = f"{x.name} and {y.name}"
    if len(having) < LEAST_TRIALS:
        return message_figure(key, title, f"Only {count(len(having), 'trial')} with a value of both finished.")
    surface, log = _surface(evenly(having, SURFACE_LIMIT), x, y)
    best = next(s.trial for s in ranking(search, having))
    dots = evenly(having, DOT_LIMIT)
    known = [value for row in surface for value in row if value is not None]
    colours = {
        "colorscale": _scale(search.objective.sign),
        "colorbar": {"thickness": 12, "title": {"text": label(metric, 20), "side": "right"}, **_bar_ticks(known, log)},
    }
    smooth = len(x.grid) == len(y.grid) == GRID
    shape = {"type": "contour", "ncontours": 12, "line": {"width": 0.4}} if smooth else {"type": "heatmap"}
    data: list[dict[str, Any]] = [
        {
            **shape,
            **colours,
            "name": "local mean",
            "x": x.grid,
            "y": y.grid,
            "z": surface,
            "text": [[_mean_text(value, metric, log) for value in row] for row in surface],
            "hoverinfo": "text",
            "hoverongaps": False,
        },
        markers(
            "trial",
            [x.places[trial.number] for trial in dots],
            [y.places[trial.number] for trial in dots],
            [hover_text(search, trial) for trial in dots],
            {"color": "#ffffff", "size": 5, "line": {"color": "#1b1f24", "width": 1}},
        ),
        markers(
            "best",
            [x.places[best.number]],
            [y.places[best.number]],
            [hover_text(search, best)],
            {"symbol": "star", "color": ORANGE, "size": 14, "line": {"color": "#1b1f24", "width": 1}},
            "%{text}<extra>best</extra>",
        ),
    ]
    at = ", ".join(f"{axis.name} {scalar(best.point[axis.name])}" for axis in (x, y))
    return Figure(
        key,
        title,
        f"Local mean of {metric} over {x.name} and {y.name} for {count(len(having), 'finished trial')}; "
        f"the best has {at}, with {metric} {number(best.value)}.",
        joined_notes(
            f"the surface is the local {'geometric ' if log else ''}mean of the trials near a place, whatever their "
            "other parameters; no trial near: no surface",
            "dark is better",
            sample_note(len(dots), len(having)).replace("the best and an even sample", "an even sample as dots"),
            f"not active in {count(len(finished) - len(having), 'trial')}" if len(having) < len(finished) else "",
        ),
        {"data": data, "layout": {"xaxis": x.layout, "yaxis": y.layout, "showlegend": False}},
    )


def _scale(sign: int) -> list[list[Any]]:
    if sign > 0:
        return [[at, colour] for at, colour in _SCALE]
    return [[1 - at, colour] for at, colour in reversed(_SCALE)]


def _surface(trials: Sequence[Trial], x: _PlaneAxis, y: _PlaneAxis) -> tuple[list[list[float | None]], bool]:
    """Returns local means on the grid, shape (len(y.grid), len(x.grid)), and whether they are powers of ten."""
    import numpy as np  # noqa: PLC0415 - takes half a second; commands that draw nothing load this module

    figures = np.array([value_of(trial) for trial in trials])
    low, high = np.quantile(figures, [0.0, 0.95]).tolist()
    log = low > 0 and math.log10(high) - math.log10(low) > _DECADES
    # Values are cut at the 5 % quantiles, so that a few diverged trainings do not dominate their surroundings.
    ends = np.quantile(figures, [0.05, 0.95])
    values = np.log10(figures) if log else figures
    values = np.clip(values, *(np.log10(ends) if log else ends))
    weights = [
        np.exp(-0.5 * ((np.array(axis.grid_units)[:, None] - [axis.units[t.number] for t in trials]) / axis.width) ** 2)
        for axis in (x, y)
    ]
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
