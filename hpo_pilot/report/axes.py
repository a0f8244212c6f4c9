"""The axes of figures: scale, ticks and first view, and the positions of trials along a parameter."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import escape

from hpo_pilot.report.formatting import number, scalar
from hpo_pilot.search import Search, Trial
from hpo_pilot.search.ranking import without_far
from hpo_pilot.search.values import value_key

#: Larger values are drawn here: plotly shows nothing from 1.8e304 on.
FARTHEST = 1e304

#: A figure of merit that spans more than this factor is drawn on a log scale.
_LOG_FACTOR = 20.0
#: Room at each end of an axis, as a share of what it shows.
_MARGIN = 0.06
#: An integer parameter with no more values than this gets a tick at each.
_FEW = 12
#: Ticks that we choose ourselves.
_MOST_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """The axis of a figure of merit or of a parameter.

    Attributes:
        name: name of the figure of merit or parameter.
        layout: plotly's settings.
        outside: number of values outside the first view.
        cut: whether some values are beyond `FARTHEST`, and drawn there.
        places: the position of each trial along a parameter, by trial number; a choice is at its index. Trials without
            the parameter, or with a choice that the space does not have, are left out.
        bounds: lowest and highest value of a parameter.
        choices: one label per choice of a parameter; empty for numbers.
        is_integer: True for an integer parameter.
        few: the values of an integer parameter, if there are at most 12.
    """

    name: str
    layout: dict[str, Any]
    outside: int = 0
    cut: bool = False
    places: Mapping[int, float] = field(default_factory=dict)
    bounds: tuple[float, float] = (0.0, 1.0)
    choices: Sequence[str] = ()
    is_integer: bool = False
    few: Sequence[float] = ()

    @property
    def is_log(self) -> bool:
        """True if it has a log scale."""
        return self.layout.get("type") == "log"

    def scaled(self, value: float) -> float:
        """Returns the power of ten of a value on a log scale, else the value."""
        return math.log10(value) if self.is_log else float(value)

    def unscaled(self, value: float) -> float:
        """Returns the value at a scaled position."""
        return 10.0**value if self.is_log else value


def merit_axis(search: Search, figures: Sequence[float]) -> Axis:
    """Returns an axis that shows the differences among good figures of merit, also where some are very bad.

    Positive figures over several orders of magnitude get a log scale. On a linear scale, very bad values are outside
    the first view.
    """
    name = search.objective.metric
    layout: dict[str, Any] = {"title": {"text": label(name)}}
    if not figures:
        return Axis(name, layout)
    drawn = [max(-FARTHEST, min(FARTHEST, figure)) for figure in figures]
    low, high = min(drawn), max(drawn)
    cut = max(high, -low) == FARTHEST
    if low > 0 and high / low > _LOG_FACTOR:
        return Axis(name, layout | log_scale(low, high), cut=cut)
    sign = search.objective.sign
    near = without_far(sorted(figure * sign for figure in drawn))
    ends = sorted((near[0] * sign, near[-1] * sign))
    return Axis(name, layout | _linear_scale(*ends), len(drawn) - len(near), cut)


def parameter_axis(search: Search, name: str, trials: Sequence[Trial]) -> Axis:
    """Returns the axis of a parameter: its domain, extended to include the values of `trials`."""
    dimension = search.space_dimensions[name]
    having = [trial for trial in trials if name in trial.point]
    title = {"title": {"text": label(name)}}
    if dimension.type in ("categorical", "ordinal"):
        labels = choice_labels(dimension.choices)
        indices = {value_key(choice): index for index, choice in enumerate(dimension.choices)}
        found = {trial.number: indices.get(value_key(trial.point[name])) for trial in having}
        ticks = {"tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": labels}
        return Axis(
            name,
            {**title, "range": [-0.5, len(labels) - 0.5], **ticks},
            places={trial: float(index) for trial, index in found.items() if index is not None},
            bounds=(0.0, len(labels) - 1.0),
            choices=labels,
        )
    assert dimension.type in ("real", "integer")
    values = [trial.point[name] for trial in having]
    low, high = min([dimension.low, *values]), max([dimension.high, *values])
    scale = log_scale(low, high) if dimension.scale == "log" and low > 0 else _linear_scale(low, high)
    is_integer = dimension.type == "integer"
    few = dimension.grid(_FEW) if is_integer and dimension.size <= _FEW else []
    if few and dimension.scale == "linear":
        scale |= {"tickmode": "array", "tickvals": few}
    return Axis(
        name,
        title | scale,
        places={trial.number: rounded(float(value)) for trial, value in zip(having, values, strict=True)},
        bounds=(dimension.low, dimension.high),
        is_integer=is_integer,
        few=few,
    )


def _linear_scale(low: float, high: float) -> dict[str, Any]:
    margin = _MARGIN * (high - low) or 0.1 * abs(low) or 1.0
    ends = [low - margin, high + margin]
    return {"range": ends} if all(map(math.isfinite, ends)) else {}  # an overflow: plotly chooses the range


def log_scale(low: float, high: float) -> dict[str, Any]:
    """Returns a log scale with few ticks at round numbers; plotly's own ticks mix powers and single digits."""
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


def _tick(value: float) -> str:
    """Formats `value` shortly: 0.001 and 1e-4."""
    text = number(value) if 1e-3 <= value < 1e5 else f"{value:.0e}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def round_ticks(low: float, high: float) -> list[float]:
    """Returns at most `_MOST_TICKS` round numbers from `low` to `high`, as plotly would choose them."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / _MOST_TICKS))
    step = next((size * digit for digit in (1, 2, 5, 10, 20) if span / (size * digit) <= _MOST_TICKS - 1), span)
    if not step or not math.isfinite(step) or abs(low / step) > 1e15:  # floats cannot count such steps
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(math.floor(high / step + 1e-9) - first + 1)]


def choice_labels(choices: Sequence[Any]) -> list[str]:
    """Returns one distinct label per choice: the values `1`, `"1"` and `true` stay different."""
    labels = [scalar(choice) for choice in choices]
    if len(set(labels)) < len(labels):
        labels = [json.dumps(choice) for choice in choices]
    return [label(text, 24) for text in labels]


def label(text: str, limit: int = 40) -> str:
    """Escapes a text for a figure, because plotly interprets some HTML tags, and shortens it to `limit` characters."""
    return str(escape(text if len(text) <= limit else text[: limit - 1] + "…"))


def rounded(value: Any) -> Any:
    """Rounds a float to nine significant digits: more than a figure shows; the rest would only add to its size."""
    return float(f"{max(-FARTHEST, min(FARTHEST, value)):.9g}") if isinstance(value, float) else value
