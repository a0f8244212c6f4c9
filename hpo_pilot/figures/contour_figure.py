"""The figures of pairs of parameters: the figure of merit over the plane of the two that matter most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpo_pilot.figures.axis import choice_labels, label, parameter_axis
from hpo_pilot.figures.convergence_figure import hover_text
from hpo_pilot.figures.figure import (
    ORANGE,
    Figure,
    evenly,
    joined_notes,
    message_figure,
    rounded,
    sample_note,
    value_of,
)
from hpo_pilot.figures.importance import LEAST, QUICK, importances
from hpo_pilot.figures.importance_figure import too_few
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.summary import figure_of, ranking
from hpo_pilot.figures.wording import count, number, scalar
from hpo_pilot.search import Search, Trial
from hpo_pilot.search.dimension import value_key

#: Of so many parameters each pair is drawn, for one objective; of more objectives the first pair alone.
PARAMETERS = 3
#: Trials from which the surface is made, and dots on top of it.
SURFACE_LIMIT, DOT_LIMIT = 2000, 400
#: Places of the surface along each numeric axis.
GRID = 40
#: Width of the Gaussian of the local mean, as a share of an axis; where the weights sum to less than `_NEAR`, that of a
#: trial at twice the width, the surface has a hole.
WIDTH = 0.07
#: The same where values stand apart, as choices do: none has a share in its neighbour's mean.
_APART = 1e-3
#: Integers with no more values than this stand apart.
_FEW = 12
#: Figures over more powers of ten than this are averaged as powers.
_DECADES = 1.3
_NEAR = math.exp(-2.0)
#: Dark is better; even to those who see no red or no green (the lightness alone orders it).
_SCALE = ((0.0, "#08306b"), (0.25, "#2171b5"), (0.5, "#6baed6"), (0.75, "#c6dbef"), (1.0, "#f7fbff"))


@dataclass(frozen=True)
class _Axis:
    """One parameter's axis.

    Attributes:
        name: of the parameter.
        layout: plotly's settings.
        grid: where the surface has values, as plotly takes them.
        grid_units: the same places in [0, 1].
        width: of the local mean in [0, 1]; choices are not mixed.
        units: each trial's place in [0, 1], by number; trials that do not have the parameter are missing.
        places: the same as plotly takes them.
    """

    name: str
    layout: dict[str, Any]
    grid: list[float]
    grid_units: list[float]
    width: float
    units: dict[int, float]
    places: dict[int, float]


def contour_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """The planes of the pairs; where nothing can be said yet, why."""
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
        (trial for trial in trials if trial.confirms is None and figure_of(trial) is not None),
        key=lambda trial: trial.number,
    )
    names = [one.name for one in order.parameters[:PARAMETERS]]
    axes = {name: _axis(search, name, finished) for name in names}
    pairs = list(itertools.islice(itertools.combinations(names, 2), most))
    return [_plane(search, finished, axes[x], axes[y], f"contours-{i}") for i, (x, y) in enumerate(pairs)]


def _axis(search: Search, name: str, trials: Sequence[Trial]) -> _Axis:
    dimension = search.space_dimensions[name]
    having = [trial for trial in trials if name in trial.point]
    if dimension.type in ("categorical", "ordinal"):
        choices = dimension.choices
        keys = {value_key(choice): place for place, choice in enumerate(choices)}
        places = {t.number: float(at) for t in having if (at := keys.get(value_key(t.point[name]))) is not None}
        last = max(1, len(choices) - 1)
        ticks = {"tickmode": "array", "tickvals": list(range(len(choices))), "ticktext": choice_labels(choices)}
        layout = {"title": {"text": label(name)}, "range": [-0.5, len(choices) - 0.5], **ticks}
        grid = [float(place) for place in range(len(choices))]
        units = {number: place / last for number, place in places.items()}
        return _Axis(name, layout, grid, [place / last for place in grid], _APART, units, places)
    assert dimension.type in ("real", "integer")
    few = dimension.type == "integer" and dimension.size <= _FEW
    layout = parameter_axis(search, name, [trial.point[name] for trial in having])
    log = layout.get("type") == "log"

    def scaled(value: float) -> float:
        return math.log10(value) if log else float(value)

    places = {trial.number: float(rounded(float(trial.point[name]))) for trial in having}
    ends = [scaled(dimension.low), scaled(dimension.high), *map(scaled, places.values())]
    low, span = min(ends), max(ends) - min(ends) or 1.0
    if few:  # numbers one by one: between them there is nothing to smooth
        grid = [float(value) for value in dimension.grid(_FEW)]
        grid_units = [(scaled(value) - low) / span for value in grid]
    else:
        grid_units = [place / (GRID - 1) for place in range(GRID)]
        grid = [10 ** (low + unit * span) if log else low + unit * span for unit in grid_units]
    units = {number: (scaled(place) - low) / span for number, place in places.items()}
    return _Axis(name, layout, [rounded(place) for place in grid], grid_units, _APART if few else WIDTH, units, places)


def _plane(search: Search, finished: Sequence[Trial], x: _Axis, y: _Axis, key: str) -> Figure:
    having = [trial for trial in finished if trial.number in x.units and trial.number in y.units]
    metric = search.objective.metric
    title = f"{x.name} and {y.name}"
    if len(having) < LEAST:
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
        {
            "type": "scatter",
            "mode": "markers",
            "name": "trial",
            "x": [x.places[trial.number] for trial in dots],
            "y": [y.places[trial.number] for trial in dots],
            "text": [hover_text(search, trial) for trial in dots],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": "#ffffff", "size": 5, "line": {"color": "#1b1f24", "width": 1}},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "best",
            "x": [x.places[best.number]],
            "y": [y.places[best.number]],
            "text": [hover_text(search, best)],
            "hovertemplate": "%{text}<extra>best</extra>",
            "marker": {"symbol": "star", "color": ORANGE, "size": 14, "line": {"color": "#1b1f24", "width": 1}},
        },
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


def _surface(trials: Sequence[Trial], x: _Axis, y: _Axis) -> tuple[list[list[float | None]], bool]:
    """The local means over the grid, in powers of ten where figures span decades; shape (len(y.grid), len(x.grid))."""
    import numpy as np  # noqa: PLC0415 - takes half a second; commands that draw nothing load this module

    figures = np.array([value_of(trial) for trial in trials])
    low, high = np.quantile(figures, [0.0, 0.95]).tolist()
    log = low > 0 and math.log10(high) - math.log10(low) > _DECADES
    # A few diverged trainings must not colour everything around them: they count as the 5 % worst.
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
    """Ticks of the colour bar; of powers of ten their numbers."""
    if not log or not values:
        return {}
    low, high = min(values), max(values)
    ticks = [low + (high - low) * i / 4 for i in range(5)]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": [number(10**tick, 2) for tick in ticks]}


def _mean_text(value: float | None, metric: str, log: bool) -> str:
    return "" if value is None else f"{label(metric)} about {number(10**value if log else value, 3)}"
