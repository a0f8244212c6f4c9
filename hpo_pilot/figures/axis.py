"""The axes of a report's figures: scale, range and labels, chosen from the values."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from hpo_pilot.figures.figure import FARTHEST
from hpo_pilot.figures.wording import count, number, scalar
from hpo_pilot.search import Search

#: A figure of merit that spans more than this factor is drawn on a log scale.
_LOG_FACTOR = 20.0
#: Far values are left outside the first view only where they would take more than this share of it.
_FAR_SHARE = 2.0
#: Room at each end of an axis, as a share of what it shows.
_MARGIN = 0.06
#: An integer parameter with no more values than this gets a tick at each.
_TICKS = 12


@dataclass(frozen=True)
class FigureAxis:
    """The axis of the figure of merit.

    Attributes:
        layout: plotly's settings.
        outside: how many values lie outside the first view.
        cut: whether some lie farther away than they are drawn.
    """

    layout: dict[str, Any]
    outside: int = 0
    cut: bool = False


def figure_axis(search: Search, figures: Sequence[float]) -> FigureAxis:
    """An axis that shows the differences among good values, whatever the bad ones are.

    Positive figures over several orders of magnitude get a log scale. On a linear one, values far on the bad side are
    left outside the first view.
    """
    layout: dict[str, Any] = {"title": {"text": label(search.objective.metric)}}
    if not figures:
        return FigureAxis(layout)
    drawn = [max(-FARTHEST, min(FARTHEST, figure)) for figure in figures]
    low, high = min(drawn), max(drawn)
    cut = max(high, -low) == FARTHEST
    if low > 0 and high / low > _LOG_FACTOR:
        return FigureAxis({**layout, **_log_scale(low, high)}, cut=cut)
    near = without_far(sorted(figure * search.objective.sign for figure in drawn))
    return FigureAxis(
        {**layout, **_linear_scale(*sorted((near[0] * search.objective.sign, near[-1] * search.objective.sign)))},
        len(drawn) - len(near),
        cut,
    )


def view_note(*axes: FigureAxis, what: str = "trial") -> str:
    """Says what the first view does not show, or not where it is; empty where it shows all."""
    outside = max(axis.outside for axis in axes)
    notes = [
        f"{count(outside, f'far worse {what}')} outside the first view; double-click shows all" if outside else "",
        f"what is beyond ±{number(FARTHEST)} is drawn there" if any(axis.cut for axis in axes) else "",
    ]
    return "; ".join(note for note in notes if note)


def parameter_axis(search: Search, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Plotly's settings for the axis of a numeric parameter: its whole domain, and `values` that lie outside it."""
    dimension = search.space_dimensions[name]
    assert dimension.type in ("real", "integer")
    low, high = min([dimension.low, *values]), max([dimension.high, *values])
    scale = _log_scale(low, high) if dimension.scale == "log" and low > 0 else _linear_scale(low, high)
    if dimension.type == "integer" and dimension.size <= _TICKS and dimension.scale == "linear":
        scale |= {"tickmode": "array", "tickvals": dimension.grid(_TICKS)}
    return {"title": {"text": label(name)}, **scale}


def without_far(costs: Sequence[float]) -> Sequence[float]:
    """Sorted `costs` without those, at the upper end, that would leave the others little room."""
    if len(costs) < 8:
        return costs
    largest = max(abs(costs[0]), abs(costs[-1])) or 1.0
    shares = [cost / largest for cost in costs]  # differences of the costs themselves may be beyond the floats
    first, _, third = statistics.quantiles(shares, n=4)
    near = [share for share in shares if share <= third + 3 * (third - first)]
    view = near[-1] - near[0]
    return costs[: len(near)] if view > 0 and shares[-1] - near[-1] > _FAR_SHARE * view else costs


def _linear_scale(low: float, high: float) -> dict[str, Any]:
    margin = _MARGIN * (high - low) or 0.1 * abs(low) or 1.0
    ends = [low - margin, high + margin]
    return {"range": ends} if all(map(math.isfinite, ends)) else {}  # beyond floats: plotly's own choice


def _log_scale(low: float, high: float) -> dict[str, Any]:
    """A log scale with ticks at round numbers, as many as can be read: plotly's own mix powers and lone digits."""
    decades = math.log10(high) - math.log10(low)
    digits = (1, 2, 5) if decades <= 2 else (1, 3) if decades <= 2.5 else (1,)
    every = max(1, math.ceil(decades / 6))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, every)
    ticks = [tick for power in powers for digit in digits if 0 < (tick := float(f"{digit}e{power}")) < math.inf]
    return {
        # Plotly takes the range of a log axis as powers of ten.
        **_linear_scale(math.log10(low), math.log10(high)),
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [_tick(tick) for tick in ticks],
    }


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, at most `most`: those that plotly would choose, for what it does not draw."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next((size * digit for digit in (1, 2, 5, 10, 20) if span / (size * digit) <= most - 1), span)
    if not step or not math.isfinite(step) or abs(low / step) > 1e15:  # beyond what floats can count
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(math.floor(high / step + 1e-9) - first + 1)]


def _tick(value: float) -> str:
    """`value`, short: 0.001 and 1e-4."""
    text = number(value) if 1e-3 <= value < 1e5 else f"{value:.0e}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def choice_labels(choices: Sequence[Any]) -> list[str]:
    """One distinct label per choice: the values `1`, `"1"` and `true` stay different."""
    labels = [scalar(choice) for choice in choices]
    if len(set(labels)) < len(labels):
        labels = [json.dumps(choice) for choice in choices]
    return [label(text, 24) for text in labels]


def label(text: str, limit: int = 40) -> str:
    """Text for a figure: plotly reads a few HTML tags in it, so it is escaped; shortened to `limit` characters."""
    return str(escape(text if len(text) <= limit else text[: limit - 1] + "…"))
