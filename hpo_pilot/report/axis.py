"""The axes of a report's figures: scale, range and labels, chosen from the values."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from hpo_pilot.report.wording import scalar
from hpo_pilot.search import Search

#: A figure of merit that spans more than this factor is drawn on a log scale.
_LOG_FACTOR = 20.0
#: Far values are left outside the first view only where they would take more than this share of it.
_FAR_SHARE = 2.0


@dataclass(frozen=True)
class FigureAxis:
    """The axis of the figure of merit.

    Attributes:
        layout: plotly's settings.
        outside: how many values lie outside the first view.
    """

    layout: dict[str, Any]
    outside: int = 0


def figure_axis(search: Search, figures: Sequence[float]) -> FigureAxis:
    """An axis that shows the differences among good values, whatever the bad ones are.

    Positive figures over several orders of magnitude get a log scale. On a linear one, values far on the bad side are
    left outside the first view.
    """
    layout: dict[str, Any] = {"title": {"text": label(search.objective.metric)}, "exponentformat": "power"}
    if not figures:
        return FigureAxis(layout)
    low, high = min(figures), max(figures)
    if low > 0 and high / low > _LOG_FACTOR:
        return FigureAxis({**layout, "type": "log"})
    sign = search.objective.sign
    costs = sorted(figure * sign for figure in figures)
    if len(costs) < 8:
        return FigureAxis(layout)
    first, _, third = statistics.quantiles(costs, n=4)
    fence = third + 3 * (third - first)
    near = [cost for cost in costs if cost <= fence]
    view = near[-1] - near[0]
    if view <= 0 or costs[-1] - near[-1] <= _FAR_SHARE * view:
        return FigureAxis(layout)
    ends = sorted((sign * (near[0] - 0.06 * view), sign * (near[-1] + 0.06 * view)))
    return FigureAxis({**layout, "range": ends}, len(costs) - len(near))


def parameter_axis(search: Search, name: str) -> dict[str, Any]:
    """Plotly's settings for the axis of a numeric parameter."""
    dimension = search.space_dimensions[name]
    layout: dict[str, Any] = {"title": {"text": label(name)}, "exponentformat": "power"}
    if getattr(dimension, "scale", "linear") == "log":
        layout |= {"type": "log"}
    elif dimension.type == "integer" and dimension.size <= 12:
        layout |= {"tickmode": "array", "tickvals": dimension.grid(12)}
    return layout


def choice_labels(choices: Sequence[Any]) -> list[str]:
    """One distinct label per choice: the values `1`, `"1"` and `true` stay different."""
    labels = [scalar(choice) for choice in choices]
    if len(set(labels)) < len(labels):
        labels = [json.dumps(choice) for choice in choices]
    return [label(text, 24) for text in labels]


def label(text: str, limit: int = 40) -> str:
    """Text for a figure: plotly reads a few HTML tags in it, so it is escaped; shortened to `limit` characters."""
    return str(escape(text if len(text) <= limit else text[: limit - 1] + "…"))
