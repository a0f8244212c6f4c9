"""Small pictures that need no script: sparklines, and the curve of one trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from hpo_pilot.figures.figure import evenly
from hpo_pilot.figures.wording import number

#: Places of a line: more than pixels say nothing.
_MOST = 120

_WIDTH, _HEIGHT = 640.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 12.0, 12.0, 30.0

Curve = Sequence[tuple[float, float]]


def sparkline(steps: Sequence[tuple[int, float]], label: str) -> Markup:
    """The best so far as a step line; `label` says it to those who do not see it. Empty for fewer than two steps."""
    points = [(float(x), y) for x, y in steps if math.isfinite(y)]
    if len(points) < 2:
        return Markup("")
    points = [*evenly(points, _MOST - 1), points[-1]]
    xs, ys = [x for x, _ in points], _tamed([y for _, y in points])
    low, high = min(ys), max(ys)
    across, up = (xs[-1] - xs[0]) or 1.0, (high - low) or 1.0
    places = [(2 + 96 * (x - xs[0]) / across, 22 - 20 * (y - low) / up) for x, y in zip(xs, ys, strict=True)]
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path d="{}"/></svg>'
    ).format(label, path)


def _tamed(values: Sequence[float]) -> list[float]:
    """Over orders of magnitude a line of logarithms; the first values, often far off, leave the others room."""
    if min(values) > 0 and max(values) / min(values) > 20:
        return [math.log(value) for value in values]
    largest = max(map(abs, values)) or 1.0
    return [value / largest for value in values]


def curves(folds: Mapping[int, Curve], metric: str) -> Markup:
    """What a trial's folds reported over their steps; empty where none reported two finite values."""
    lines = {}
    for fold, curve in folds.items():
        finite = [(float(x), float(y)) for x, y in curve if math.isfinite(y)]
        if len(finite) > 1:
            lines[fold] = evenly(finite, _MOST * 2)
    if not lines:
        return Markup("")
    xs = [x for line in lines.values() for x, _ in line]
    ys = [y for line in lines.values() for _, y in line]
    logarithmic = min(ys) > 0 and max(ys) / min(ys) > 50

    def height(value: float) -> float:
        seen = math.log(value) if logarithmic else value
        low, high = (math.log(min(ys)), math.log(max(ys))) if logarithmic else (min(ys), max(ys))
        share = 0.5 if high == low else (seen / 2 - low / 2) / (high / 2 - low / 2)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    def across(step: float) -> float:
        share = 0.5 if max(xs) == min(xs) else (step - min(xs)) / (max(xs) - min(xs))
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    drawn = Markup("").join(
        Markup('<polyline class="curve c{}" points="{}"><title>{}</title></polyline>').format(
            index % 6, " ".join(f"{across(x):.1f},{height(y):.1f}" for x, y in line), f"fold {fold}"
        )
        for index, (fold, line) in enumerate(sorted(lines.items()))
    )
    ends = Markup("").join(
        Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
        for x, y, anchor, text in (
            (_LEFT - 8, _TOP + 8, "end", number(max(ys))),
            (_LEFT - 8, _HEIGHT - _BOTTOM, "end", number(min(ys))),
            (_LEFT, _HEIGHT - 8, "start", f"step {number(min(xs))}"),
            (_WIDTH - _RIGHT, _HEIGHT - 8, "end", f"step {number(max(xs))}"),
        )
    )
    label = (
        f"{metric} over the steps, {len(lines)} fold{'s' * (len(lines) != 1)}, {number(min(ys))} to {number(max(ys))}"
    )
    frame = Markup('<path class="frame" d="M{0} {1}V{2}H{3}"/>').format(_LEFT, _TOP, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT)
    return Markup('<svg class="curves" viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}{}{}</svg>').format(
        _WIDTH, _HEIGHT, label, frame, drawn, ends
    )
