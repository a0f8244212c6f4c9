"""A figure as a specification for plotly.js, and the axes, marks, colours and notes that all figures share.

Specifications are plain dictionaries: plotly's Python objects would cost every report half a second of checks that a
test makes once. The page's style sheet sets the colours of text and grid, so that figures follow its theme.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from markupsafe import escape

from hpo_pilot.report.formatting import count, number, scalar
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.values import value_key

_Item = TypeVar("_Item")

#: Markers in one figure: more only cost size and time.
POINT_LIMIT = 1500
FAILURE_LIMIT = 300
STOPPED_LIMIT = 300

#: Larger values are drawn here: plotly shows nothing from 1.8e304 on.
FARTHEST = 1e304

BLUE, PALE_BLUE, ORANGE, RED, GREEN = "#3987d6", "rgba(57,135,214,0.4)", "#e0810b", "#d64545", "#2a9d6f"

#: The legend is above the plot, where it hides nothing.
LEGEND = {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom"}


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        key: its id in the page.
        title: its title.
        description: a sentence with the main numbers, for users of a screen reader.
        note: how to read the figure correctly; may be empty.
        spec: plotly's ``data`` and ``layout``.
    """

    key: str
    title: str
    description: str
    note: str = ""
    spec: dict[str, Any] = field(default_factory=dict)


def markers(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    texts: Sequence[Any],
    marker: Mapping[str, Any],
    hover: str = "%{text}<extra></extra>",
) -> dict[str, Any]:
    """Returns a trace of points; `texts` are shown beside the pointer, in the form that `hover` gives."""
    points = {"x": list(x), "y": list(y), "text": list(texts), "hovertemplate": hover}
    return {"type": "scatter", "mode": "markers", "name": name, **points, "marker": dict(marker)}


def add_failures(data: list[dict[str, Any]], layout: dict[str, Any], failed: Sequence[tuple[Any, Trial]]) -> None:
    """Marks failed trials in a strip under the plot: they have no value on its axis."""
    if not failed:
        return
    failed = evenly(failed, FAILURE_LIMIT)
    layout["yaxis"] = {**layout["yaxis"], "domain": [0.14, 1]}
    layout["xaxis"] = {**layout["xaxis"], "anchor": "y2"}
    layout["yaxis2"] = {
        "domain": [0, 0.09],
        "range": [-1, 1],
        "tickvals": [0],
        "ticktext": ["failed"],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
    marker = {"symbol": "x-thin", "size": 7, "line": {"color": RED, "width": 2}}
    texts = [f"trial {trial.number} failed" for _, trial in failed]
    data.append({**markers("failed trial", [x for x, _ in failed], [0] * len(failed), texts, marker), "yaxis": "y2"})


def add_stopped(data: list[dict[str, Any]], search: Search, stopped: Sequence[tuple[Any, Trial]]) -> None:
    """Adds a ring at the projected value of each trial that was stopped early; `stopped` has (x, trial) pairs."""
    if not stopped:
        return
    stopped = evenly(stopped, STOPPED_LIMIT)
    x, y = [x for x, _ in stopped], [guess_of(trial) for _, trial in stopped]
    texts = [_stopped_text(search, trial) for _, trial in stopped]
    marker = {"symbol": "circle-open", "color": BLUE, "size": 7}
    data.append(markers("stopped early: its probable value", x, y, texts, marker))


def _stopped_text(search: Search, trial: Trial) -> str:
    assert trial.stop is not None
    return (
        f"trial {trial.number}, stopped at step {trial.stop.step}\n"
        f"its {escape(search.objective.metric)} would probably have become {number(guess_of(trial))}"
    )


def guessed(trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials that were stopped early and have a projected final value."""
    return [t for t in trials if t.confirms is None and t.stopped_early and t.stop is not None and t.stop.projected]


def guess_of(trial: Trial) -> float:
    """Returns the projected final value of a stopped trial."""
    assert trial.stop is not None
    assert trial.stop.projected is not None
    return float(rounded(trial.stop.projected[0]))


def rings_note(trials: Sequence[Trial]) -> str:
    """Returns a note that explains the rings; empty where there are none."""
    shown = len(guessed(trials))
    return f"rings: {count(shown, 'trial')} stopped early, each at its probable final value" if shown else ""


def no_ring_note(trials: Sequence[Trial]) -> str:
    """Returns a note with the number of trials that were stopped early and are not shown; empty where all are."""
    without = sum(trial.confirms is None and trial.stopped_early for trial in trials) - len(guessed(trials))
    return f"{count(without, 'stopped trial')} not shown, for lack of a guess" if without else ""


def thinned(search: Search, trials: Sequence[Trial], limit: int) -> list[Trial]:
    """Returns at most `limit` finished trials, in their order: a quarter are the best, the rest is an even sample."""
    if len(trials) <= limit:
        return list(trials)
    best = sorted(trials, key=lambda trial: value_of(trial) * search.objective.sign)[: limit // 4]
    keep = {trial.number for trial in best}
    rest = [trial.number for trial in trials if trial.number not in keep]
    keep.update(evenly(rest, limit - len(keep)))
    return [trial for trial in trials if trial.number in keep]


def evenly(items: Sequence[_Item], limit: int) -> list[_Item]:
    """Returns at most `limit` items, spread evenly, in their order."""
    return [items[i * len(items) // limit] for i in range(limit)] if len(items) > limit else list(items)


def value_of(trial: Trial) -> float:
    """Returns the figure of merit of a finished trial, rounded."""
    assert trial.value is not None
    return float(rounded(trial.value))


def rounded(value: Any) -> Any:
    """Rounds a float to nine significant digits: more than a figure shows; the rest would only add to its size."""
    return float(f"{max(-FARTHEST, min(FARTHEST, value)):.9g}") if isinstance(value, float) else value


def is_finite(value: float | None) -> TypeGuard[float]:
    """Tells whether `value` can be drawn."""
    return value is not None and math.isfinite(value)


def finished_count(trials: Sequence[Trial]) -> int:
    """Counts the trials with a figure of merit, without confirmation runs."""
    return sum(t.confirms is None and t.state is TrialState.FINISHED and is_finite(t.value) for t in trials)


def message_figure(key: str, title: str, text: str) -> Figure:
    """Returns a figure that only says why there is nothing to show."""
    words = {"text": str(escape(text)), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    layout = {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "annotations": [words]}
    return Figure(key, title, text, spec={"data": [], "layout": layout})


def sample_note(shown: int, all_of_them: int) -> str:
    """Returns a note that a figure shows only some of the trials; empty where it shows all."""
    return f"shows {shown:,} of {all_of_them:,} trials: the best and an even sample" if shown < all_of_them else ""


def joined_notes(*notes: str) -> str:
    """Joins the notes that are not empty to a sentence."""
    text = "; ".join(note for note in notes if note)
    return text[:1].upper() + text[1:] + "." if text else ""


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
        outside: number of values outside the first view.
        cut: whether some values are beyond `FARTHEST`, and drawn there.
    """

    layout: dict[str, Any]
    outside: int = 0
    cut: bool = False


def figure_axis(search: Search, figures: Sequence[float]) -> FigureAxis:
    """Returns an axis that shows the differences among good values, also where some values are very bad.

    Positive figures over several orders of magnitude get a log scale. On a linear scale, very bad values are outside
    the first view.
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
    """Returns a note on values that are outside the first view or drawn elsewhere; empty where there are none."""
    outside = max(axis.outside for axis in axes)
    notes = [
        f"{count(outside, f'far worse {what}')} outside the first view; double-click shows all" if outside else "",
        f"what is beyond ±{number(FARTHEST)} is drawn there" if any(axis.cut for axis in axes) else "",
    ]
    return "; ".join(note for note in notes if note)


def parameter_axis(search: Search, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Returns plotly's settings for the axis of a numeric parameter: its domain, extended to include `values`."""
    dimension = search.space_dimensions[name]
    assert dimension.type in ("real", "integer")
    low, high = min([dimension.low, *values]), max([dimension.high, *values])
    scale = _log_scale(low, high) if dimension.scale == "log" and low > 0 else _linear_scale(low, high)
    if dimension.type == "integer" and dimension.size <= _TICKS and dimension.scale == "linear":
        scale |= {"tickmode": "array", "tickvals": dimension.grid(_TICKS)}
    return {"title": {"text": label(name)}, **scale}


def parameter_places(search: Search, name: str, trials: Sequence[Trial]) -> tuple[dict[int, float], dict[str, Any]]:
    """Returns the position of each trial along a parameter, by trial number, and plotly's settings for the axis.

    A choice is at its index. Trials without the parameter, or with a choice that the space does not have, are left
    out.
    """
    dimension = search.space_dimensions[name]
    having = [trial for trial in trials if name in trial.point]
    if dimension.type not in ("categorical", "ordinal"):
        places = {trial.number: float(rounded(float(trial.point[name]))) for trial in having}
        return places, parameter_axis(search, name, [trial.point[name] for trial in having])
    choices = dimension.choices
    keys = {value_key(choice): place for place, choice in enumerate(choices)}
    places = {t.number: float(at) for t in having if (at := keys.get(value_key(t.point[name]))) is not None}
    ticks = {"tickmode": "array", "tickvals": list(range(len(choices))), "ticktext": choice_labels(choices)}
    return places, {"title": {"text": label(name)}, "range": [-0.5, len(choices) - 0.5], **ticks}


def without_far(costs: Sequence[float]) -> Sequence[float]:
    """Returns sorted `costs` without far outliers at the upper end, which would leave the others little room."""
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
    return {"range": ends} if all(map(math.isfinite, ends)) else {}  # an overflow: plotly chooses the range


def _log_scale(low: float, high: float) -> dict[str, Any]:
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


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Returns at most `most` round numbers from `low` to `high`, as plotly would choose them."""
    span = high - low
    if not 0 < span < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / most))
    step = next((size * digit for digit in (1, 2, 5, 10, 20) if span / (size * digit) <= most - 1), span)
    if not step or not math.isfinite(step) or abs(low / step) > 1e15:  # floats cannot count such steps
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    return [(first + i) * step for i in range(math.floor(high / step + 1e-9) - first + 1)]


def _tick(value: float) -> str:
    """Formats `value` shortly: 0.001 and 1e-4."""
    text = number(value) if 1e-3 <= value < 1e5 else f"{value:.0e}"
    return text.replace("e-0", "e-").replace("e+0", "e")


def choice_labels(choices: Sequence[Any]) -> list[str]:
    """Returns one distinct label per choice: the values `1`, `"1"` and `true` stay different."""
    labels = [scalar(choice) for choice in choices]
    if len(set(labels)) < len(labels):
        labels = [json.dumps(choice) for choice in choices]
    return [label(text, 24) for text in labels]


def label(text: str, limit: int = 40) -> str:
    """Escapes a text for a figure, because plotly interprets some HTML tags, and shortens it to `limit` characters."""
    return str(escape(text if len(text) <= limit else text[: limit - 1] + "…"))


def seen_by(search: Search, trials: Sequence[Trial], index: int) -> tuple[Search, list[Trial]]:
    """Returns the search and its trials with only the objective at `index`."""
    if len(search.objectives) == 1:
        return search, list(trials)
    single = search.model_copy(update={"objectives": (search.objectives[index],)})
    decides = search.objectives[index].metric == search.early_stopping.metric
    return single, [_trial(trial, index, decides) for trial in trials]


def _trial(trial: Trial, index: int, decides: bool) -> Trial:
    stop = trial.stop
    if stop is not None and stop.projected is not None:
        # Trials report one objective while they run; the projections of the others are no better than a guess.
        stop = replace(stop, projected=(stop.projected[index],) if decides else None)
    return replace(
        trial,
        value=None if trial.values is None else trial.values[index],
        std=None if trial.stds is None else trial.stds[index],
        folds=tuple(
            replace(fold, value=None if fold.values is None else fold.values[index], values=None)
            for fold in trial.folds
        ),
        values=None,
        stds=None,
        stop=stop,
    )


_AXIS = {"automargin": True, "gridcolor": "#dde2e8", "linecolor": "#888", "zerolinecolor": "#bbc2ca", "showline": True}
_COMMON = {
    "paper_bgcolor": "#ffffff",
    "plot_bgcolor": "#ffffff",
    "font": {"size": 12, "color": "#1b1f24"},
    "hoverlabel": {"bgcolor": "#1b1f24", "font": {"color": "#ffffff"}, "align": "left"},
    "hovermode": "closest",
}


def plotly_spec(figure: Figure, *, title: bool = False) -> dict[str, Any]:
    """Returns plotly's ``data`` and ``layout`` of a figure, black on white; `title` adds the title."""
    layout: dict[str, Any] = {**_COMMON, **figure.spec.get("layout", {})}
    for name in ("xaxis", "yaxis", "yaxis2"):
        if name in layout:
            layout[name] = {**_AXIS, **layout[name]}
    above = (34 if "legend" in layout else 8) + (30 if title else 0)
    layout["margin"] = {"l": 62, "r": 20, "b": 46, **layout.get("margin", {})}
    layout["margin"]["t"] = layout["margin"].get("t", 0) + above
    if title:
        layout["title"] = {"text": str(escape(figure.title)), "x": 0, "xref": "paper", "yref": "container", "y": 0.97}
    return {"data": [_broken(trace) for trace in figure.spec.get("data", ())], "layout": layout}


def _broken(trace: dict[str, Any]) -> dict[str, Any]:
    """Returns a trace with plotly's line breaks in its texts."""
    text = trace.get("text")
    if not isinstance(text, list) or trace["type"] in ("contour", "heatmap"):
        return trace
    return {**trace, "text": [str(one).replace("\n", "<br>") for one in text]}


#: Scripts and style sheets of pages and reports; a server may serve every file of this folder.
STATIC_FOLDER = Path(__file__).parent / "static"


def static_text(name: str) -> str:
    """Returns the text of a file of `STATIC_FOLDER`."""
    return (STATIC_FOLDER / name).read_text(encoding="utf-8")
