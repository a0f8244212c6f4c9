"""Draws the points and lines of a figure as SVG: notebooks show and update it without scripts or extensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import unescape
from typing import Any

from markupsafe import Markup

from hpo_pilot.report.axes import log_scale, round_ticks
from hpo_pilot.report.figure import BLUE, Figure
from hpo_pilot.report.formatting import number

#: Kinds that have only points and lines over numbers.
SVG_KINDS = ("convergence", "front", "distribution", "curves")

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 630, 30, 276
_SVG = Markup(
    '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" style="max-width:45em;display:block;font:12px sans-serif">'
    '<path d="M{} {}V{}H{}" fill="none" stroke="#888"/>{}</svg>'
)
_LINE = Markup('<path d="{}" fill="none" stroke="{}" stroke-width="2"/>')
_DOT = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>')
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}">{}</text>')


def figure_svg(figure: Figure) -> Markup:
    """Returns a figure of one of `SVG_KINDS` as SVG; its texts have the colour of the page's."""
    traces = [trace for trace in figure.spec["data"] if "yaxis" not in trace]  # the strip of failed trials has its own
    layout, parts = figure.spec["layout"], []
    title = unescape(layout["yaxis"]["title"]["text"])
    legend = 30 + 8 * len(title)
    across, x_ticks = _axis(layout["xaxis"], [trace["x"] for trace in traces], _LEFT, _RIGHT)
    up, y_ticks = _axis(layout["yaxis"], [trace["y"] for trace in traces], _BOTTOM, _TOP)
    for trace in traces:
        line, points = trace.get("line", {}), zip(trace["x"], trace["y"], strict=True)
        colour = trace.get("marker", line).get("color", BLUE)
        places = [None if None in point else (across(point[0]), up(point[1])) for point in points]
        if "lines" in trace["mode"]:
            parts.append(_LINE.format(_path(places, is_step=line.get("shape") == "hv"), colour))
        if "markers" in trace["mode"]:
            parts += [_DOT.format(*place, colour) for place in places if place]
        parts.append(_TEXT.format(legend, 16, "start", colour, trace["name"]))
        legend += 24 + 7 * len(trace["name"])
    texts: list[tuple[float, float, str, str]] = [(x, _BOTTOM + 16, "middle", text) for x, text in x_ticks]
    texts += [(_LEFT - 6, y + 4, "end", text) for y, text in y_ticks]
    texts += [(_RIGHT, _HEIGHT - 8, "end", unescape(layout["xaxis"]["title"]["text"]))]
    texts += [(4, 16, "start", title)]
    parts += [_TEXT.format(x, y, anchor, "currentColor", text) for x, y, anchor, text in texts]
    description = figure.description
    return _SVG.format(_WIDTH, _HEIGHT, description, _LEFT, _TOP, _BOTTOM, _RIGHT, Markup("").join(parts))


def _axis(
    axis: dict[str, Any], values: Sequence[Sequence[float | None]], start: float, end: float
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Returns a function that places values between `start` and `end`, and the places and texts of the ticks."""
    is_log = axis.get("type") == "log"
    scaled: Callable[[float], float] = math.log10 if is_log else float
    seen = [scaled(value) for column in values for value in column if value is not None] or [0.0, 1.0]
    low, high = axis.get("range") or (min(seen), max(seen))

    def place(value: float) -> float:
        return start + (end - start) * (min(high, max(low, scaled(value))) - low) / ((high - low) or 1.0)

    ticks = axis.get("tickvals") or (log_scale(10**low, 10**high)["tickvals"] if is_log else round_ticks(low, high))
    return place, [(place(value), number(value)) for value in ticks if low <= scaled(value) <= high]


def _path(places: Sequence[tuple[float, float] | None], *, is_step: bool) -> str:
    """Returns the path of a line; None is a gap."""
    path, is_down = "", False
    for place in places:
        if place is not None:
            x, y = place
            path += f"H{x:.1f}V{y:.1f}" if is_down and is_step else f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}"
        is_down = place is not None
    return path
