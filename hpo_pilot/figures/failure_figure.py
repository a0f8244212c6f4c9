"""The figures of failures over the space: where trials fail, by the parameters that tell it best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from hpo_pilot.figures.axis import choice_labels, label, parameter_axis
from hpo_pilot.figures.figure import BLUE, FAILURE_LIMIT, RED, Figure, evenly, joined_notes, rounded
from hpo_pilot.figures.separation import Separation, separations
from hpo_pilot.figures.wording import count, number, scalar
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.dimension import value_key

#: Parameters whose share of failures is drawn.
PARAMETERS = 3
#: Spans of a numeric parameter.
SPANS = 8
#: Finished trials in the plane, beside at most `FAILURE_LIMIT` failed ones.
DOT_LIMIT = 600


def failure_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """The plane of the two parameters that separate best, and the share of failures over each; none without any."""
    scanned = [trial for trial in trials if trial.confirms is None and trial.point]
    failed = [trial for trial in scanned if trial.state is TrialState.FAILED]
    # What was stopped early ran as it should: it is no failure.
    good = [trial for trial in scanned if trial.state is TrialState.FINISHED or trial.stopped_early]
    if not failed:
        return []
    order = separations(search, good, failed) if good else [Separation(n, 0.0, False) for n in search.space.names]
    trust = _trust(order, good)
    figures = [_plane(search, [one.name for one in order[:2]], good, failed, trust)] if len(order) > 1 else []
    return [*figures, *(_share(search, one, i, good, failed, trust) for i, one in enumerate(order[:PARAMETERS]))]


def _trust(order: Sequence[Separation], good: Sequence[Trial]) -> str:
    if not good:
        return "no trial has finished yet: there is nothing to compare with"
    telling = [one.name for one in order if one.beyond_chance]
    if not telling:
        return "no parameter separates failed from finished trials better than chance would"
    rest = f" and {len(telling) - 3} more" if len(telling) > 3 else ""
    return f"more than chance would separate: {', '.join(telling[:3])}{rest}"


class _Axis:
    """Where trials stand along one parameter."""

    def __init__(self, search: Search, name: str, trials: Sequence[Trial]) -> None:
        dimension = search.space_dimensions[name]
        self.name = name
        self.is_integer = dimension.type == "integer"
        self.choices = choice_labels(getattr(dimension, "choices", ()))
        having = [trial for trial in trials if name in trial.point]
        self.places: dict[int, float]
        if dimension.type in ("categorical", "ordinal"):
            keys = {value_key(choice): place for place, choice in enumerate(dimension.choices)}
            self.places = {
                t.number: float(at) for t in having if (at := keys.get(value_key(t.point[name]))) is not None
            }
            ticks = {"tickmode": "array", "tickvals": list(range(len(keys))), "ticktext": self.choices}
            self.layout: dict[str, Any] = {"title": {"text": label(name)}, "range": [-0.5, len(keys) - 0.5], **ticks}
            return
        self.places = {trial.number: float(rounded(float(trial.point[name]))) for trial in having}
        self.layout = parameter_axis(search, name, [trial.point[name] for trial in having])

    @property
    def is_log(self) -> bool:
        return self.layout.get("type") == "log"

    def spans(self) -> list[tuple[float, float]]:
        """Equal spans of the axis, or each number of a few; each choice is one of its own."""
        if self.choices:
            return [(place - 0.5, place + 0.5) for place in range(len(self.choices))]
        distinct = sorted(set(self.places.values()))
        if self.is_integer and len(distinct) <= SPANS:
            return [(value - 0.5, value + 0.5) for value in distinct]
        values = [math.log10(value) if self.is_log else value for value in self.places.values()]
        low, high = min(values), max(values)
        if high <= low:
            return [(self._back(low - 0.5), self._back(high + 0.5))]
        edges = [self._back(low + (high - low) * i / SPANS) for i in range(SPANS + 1)]
        edges[-1] = max(*self.places.values(), edges[-1]) * (1 + 1e-12) + 1e-300  # the last span holds its end
        edges[0] = min(*self.places.values(), edges[0])
        return list(itertools.pairwise(edges))

    def _back(self, value: float) -> float:
        return 10.0**value if self.is_log else value


def _plane(search: Search, names: Sequence[str], good: Sequence[Trial], failed: Sequence[Trial], trust: str) -> Figure:
    x, y = (_Axis(search, name, [*good, *failed]) for name in names)
    data = []
    for word, trials, most, marker in (
        ("finished", good, DOT_LIMIT, {"color": BLUE, "size": 7, "opacity": 0.55}),
        ("failed", failed, FAILURE_LIMIT, {"symbol": "x-thin", "size": 8, "line": {"color": RED, "width": 2}}),
    ):
        shown = evenly([t for t in trials if t.number in x.places and t.number in y.places], most)
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": word,
                "x": [x.places[t.number] + _aside(t, x) for t in shown],
                "y": [y.places[t.number] + _aside(t, y, 7) for t in shown],
                "text": [_text(t, word, names) for t in shown],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": marker,
            }
        )
    drawn = [len(trace["x"]) for trace in data]
    legend = {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}
    return Figure(
        "failures-plane",
        f"Failures over {names[0]} and {names[1]}",
        f"{count(len(failed), 'failed trial')} among {count(len(good) + len(failed), 'trial')}, over the two "
        f"parameters that separate them best: {names[0]} and {names[1]}.",
        joined_notes(
            trust,
            f"shows {drawn[0]:,} of {len(good):,} finished and {drawn[1]:,} of {len(failed):,} failed trials"
            if drawn != [len(good), len(failed)]
            else "",
            "within a choice, trials are drawn side by side" if x.choices or y.choices else "",
        ),
        {"data": data, "layout": {"xaxis": x.layout, "yaxis": y.layout, "legend": legend}},
    )


def _share(
    search: Search, one: Separation, index: int, good: Sequence[Trial], failed: Sequence[Trial], trust: str
) -> Figure:
    axis = _Axis(search, one.name, [*good, *failed])
    spans = axis.spans() if axis.places else []
    counts = [[0, 0] for _ in spans]
    for side, trials in enumerate((good, failed)):
        for trial in trials:
            if (place := axis.places.get(trial.number)) is not None:
                at = next((i for i, (low, high) in enumerate(spans) if low <= place < high), None)
                if at is not None:
                    counts[at][side] += 1
    bars = [(span, lost, lost + kept) for span, (kept, lost) in zip(spans, counts, strict=True) if lost + kept]
    shares = [lost / total for _, lost, total in bars]
    ends = [_wilson(lost, total) for _, lost, total in bars]
    middles = [_middle(axis, span) for span, _, _ in bars]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "share of failed trials",
            "x": middles,
            "y": [round(100 * share, 2) for share in shares],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [round(100 * (high - share), 2) for share, (_, high) in zip(shares, ends, strict=True)],
                "arrayminus": [round(100 * (share - low), 2) for share, (low, _) in zip(shares, ends, strict=True)],
                "color": RED,
                "thickness": 1.5,
            },
            "text": [f"{lost} of {total} failed\n{_span_text(axis, span)}" for span, lost, total in bars],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": RED, "size": 9, "symbol": "diamond"},
        }
    ]
    worst = max(zip(shares, bars, strict=True), key=lambda pair: pair[0], default=None)
    most = f"; most at {_span_text(axis, worst[1][0])}: {worst[1][1]} of {worst[1][2]}" if worst is not None else ""
    without = len(good) + len(failed) - len(axis.places)
    return Figure(
        f"failures-{index}",
        f"Failures over {one.name}",
        f"Share of failed trials over {one.name}{most}.",
        joined_notes(
            f"separates failed from finished trials by {number(one.strength, 2)} (0: not at all, 1: wholly)"
            + ("" if one.beyond_chance or not good else ", which chance alone may do"),
            "whiskers: 95 % of what the true share may be (Wilson)",
            f"not active in {count(without, 'trial')}" if without else "",
        ),
        {
            "data": data,
            "layout": {
                "xaxis": axis.layout,
                "yaxis": {"title": {"text": "failed, %"}, "range": [-4, 104]},
                "showlegend": False,
            },
        },
    )


def _wilson(lost: int, total: int) -> tuple[float, float]:
    """The 95 % score interval of a share (Wilson, JASA 22 (1927) 209)."""
    z = 1.959964
    share = lost / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))


def _middle(axis: _Axis, span: tuple[float, float]) -> float:
    low, high = span
    return float(rounded(math.sqrt(low * high) if axis.is_log else low + (high - low) / 2))


def _span_text(axis: _Axis, span: tuple[float, float]) -> str:
    low, high = span
    if axis.choices:
        return f"{label(axis.name)} {axis.choices[round((low + high) / 2)]}"
    if axis.is_integer and high - low == 1:
        return f"{label(axis.name)} {number(low + 0.5)}"
    return f"{label(axis.name)} {number(low, 3)} to {number(high, 3)}"


def _aside(trial: Trial, axis: _Axis, salt: int = 3) -> float:
    """A little to the side among choices, where all would lie on each other; the same each time."""
    return ((trial.number * 0.618034 * salt) % 1 - 0.5) * 0.6 if axis.choices else 0.0


def _text(trial: Trial, word: str, names: Sequence[str]) -> str:
    lines = [f"<b>trial {trial.number}</b> {word}"]
    lines += [f"{label(name)}: {label(scalar(trial.point[name]))}" for name in names]
    return "\n".join(lines)
