"""A figure as a specification for plotly.js, the results that figures show, and the marks and notes they share.

Specifications are plain dictionaries: plotly's Python objects would cost every report half a second of checks that a
test makes once. The page's style sheet sets the colours of text and grid, so that figures follow its theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias, TypeGuard, TypeVar

from markupsafe import escape

from hpo_pilot.report.axes import FARTHEST, Axis, label, rounded
from hpo_pilot.report.formatting import count, number, plus_minus, scalar, stop_text
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.ranking import Standing, figure_of_merit, ranked_by_folds, ranking

_Item = TypeVar("_Item")

#: Markers in one figure: more only cost size and time.
POINT_LIMIT = 1500
FAILURE_LIMIT = 300
STOPPED_LIMIT = 300
HOVER_PARAMETERS = 12

BLUE, PALE_BLUE, ORANGE, RED, GREEN = "#3987d6", "rgba(57,135,214,0.4)", "#e0810b", "#d64545", "#2a9d6f"
GREY = "#808a95"

#: Name of the rings at the projected values of trials that were stopped early.
PROJECTED = "stopped early: its probable value"

#: Marks the vertical axis as that of figures of merit; pages offer a switch to a logarithmic one.
VALUE_AXIS = {"values": ["yaxis"]}

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


def message_figure(key: str, title: str, text: str) -> Figure:
    """Returns a figure that only says why there is nothing to show."""
    words = {"text": str(escape(text)), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    layout = {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "annotations": [words]}
    return Figure(key, title, text, spec={"data": [], "layout": layout})


def plot(key: str, title: str, description: str, data: Sequence[dict[str, Any]], *notes: str, **layout: Any) -> Figure:
    """Returns a figure of these traces; its note joins the `notes` that are not empty to a sentence."""
    note = "; ".join(filter(None, notes))
    note = note[:1].upper() + note[1:] + "." if note else ""
    return Figure(key, title, description, note, {"data": list(data), "layout": layout})


# Content of figures.

#: Intermediate values: (step, value) in the order of steps, by trial and fold; infinity means not a number.
Reports: TypeAlias = Mapping[int, Mapping[int, Sequence[tuple[int, float]]]]


@dataclass(frozen=True)
class PeerSearch:
    """Another search for comparison.

    Attributes:
        name: name of the search in the figure.
        search: its definition.
        trials: all its trials.
    """

    name: str
    search: Search
    trials: Sequence[Trial]


@dataclass(frozen=True)
class FigureData:
    """The data of a search for its figures.

    Attributes:
        search: the search.
        trials: its trials, in any order and state; may be empty.
        reports: intermediate values of the trials that `drawn_trials` names.
        peers: other searches; those with the same space and objectives are drawn for comparison.
        now: the time up to which running jobs are drawn; None: the last time in the trials.
        note: a sentence for the note of each figure, if these are not all trials of the search.
        axes: the two parameters that a user chose for figures of pairs; empty: the most important ones.
    """

    search: Search
    trials: Sequence[Trial]
    reports: Reports = field(default_factory=dict)
    peers: Sequence[PeerSearch] = ()
    now: datetime | None = None
    note: str = ""
    axes: Sequence[str] = ()

    @cached_property
    def results(self) -> list[Results]:
        """The results for each objective."""
        return [Results.of(self.search, self.trials, index) for index in range(len(self.search.objectives))]

    @property
    def reported(self) -> Results:
        """The results for the objective of the intermediate values."""
        metrics = [objective.metric for objective in self.search.objectives]
        metric = self.search.early_stopping.metric
        return self.results[metrics.index(metric) if metric in metrics else 0]

    @cached_property
    def standings(self) -> list[Standing]:
        """The ranking of all trials."""
        return self.results[0].standings if len(self.results) == 1 else ranking(self.search, self.trials)


@dataclass(frozen=True)
class Results:
    """The results of a search for one objective, in the groups that figures draw; none has confirmation runs.

    Attributes:
        search: the search with this objective only.
        trials: all trials with the figures of this objective only.
    """

    search: Search
    trials: Sequence[Trial]

    @classmethod
    def of(cls, search: Search, trials: Sequence[Trial], index: int) -> Results:
        """Returns the results for the objective at `index`."""
        if len(search.objectives) == 1:
            return cls(search, trials)
        single = search.model_copy(update={"objectives": (search.objectives[index],)})
        decides = search.objectives[index].metric == search.early_stopping.metric
        return cls(single, [_of_one_objective(trial, index, decides) for trial in trials])

    @cached_property
    def scanned(self) -> list[Trial]:
        """All trials but confirmation runs."""
        return [trial for trial in self.trials if trial.confirms is None]

    @cached_property
    def finished(self) -> list[Trial]:
        """Trials with a figure of merit."""
        return [trial for trial in self.scanned if figure_of_merit(trial) is not None]

    @cached_property
    def values(self) -> list[float]:
        """The figures of merit of `finished`."""
        return [value_of(trial) for trial in self.finished]

    @cached_property
    def failed(self) -> list[Trial]:
        """Failed trials."""
        return [trial for trial in self.scanned if trial.state is TrialState.FAILED]

    @cached_property
    def infeasible(self) -> list[Trial]:
        """Trials with a figure of merit that are not known to be within the limits."""
        return [t for t in self.scanned if t.state is TrialState.INFEASIBLE and all(map(math.isfinite, t.values))]

    @cached_property
    def stopped(self) -> list[Trial]:
        """Trials that a rule stopped early."""
        return [trial for trial in self.scanned if trial.stopped_early]

    @cached_property
    def projected(self) -> list[Trial]:
        """Trials that were stopped early and have a projected final value."""
        return [trial for trial in self.stopped if trial.stop is not None and trial.stop.projected]

    @cached_property
    def estimated(self) -> list[Trial]:
        """The finished trials, and those with a projected value as if they had finished with it, by number.

        If many trials were stopped early, those that finished are a small and biased part of all.
        """
        projected = [
            replace(trial, state=TrialState.FINISHED, values=(projected_value(trial),)) for trial in self.projected
        ]
        return sorted([*self.finished, *projected], key=lambda trial: trial.number)

    @property
    def estimated_note(self) -> str:
        """A note with the number of trials in `estimated` that did not finish; empty where all did."""
        rings = len(self.projected)
        return f"{count(rings, 'trial')} stopped early, at the projected final value" if rings else ""

    @cached_property
    def standings(self) -> list[Standing]:
        """The ranking for this objective."""
        return ranking(self.search, self.trials)

    @cached_property
    def ranked(self) -> list[Trial]:
        """Trials with a figure of merit, best first."""
        return [standing.trial for standing in self.standings]

    @property
    def best(self) -> Trial | None:
        """The best trial; None if none has a figure of merit."""
        return next(iter(self.ranked), None)

    @property
    def not_projected_note(self) -> str:
        """A note with the number of trials that were stopped early and are not shown; empty where all are."""
        without = len(self.stopped) - len(self.projected)
        return f"not shown: {count(without, 'stopped trial')} without a projected value" if without else ""


def _of_one_objective(trial: Trial, index: int, decides: bool) -> Trial:
    stop = trial.stop
    if stop is not None and stop.projected is not None:
        # Trials report one objective while they run; the projections of the others are no better than a guess.
        stop = replace(stop, projected=(stop.projected[index],) if decides else None)
    here = slice(index, index + 1)
    return replace(
        trial,
        values=trial.values[here],
        stds=trial.stds[here],
        folds=tuple(
            replace(fold, attempts=tuple(replace(one, values=one.values[here]) for one in fold.attempts))
            for fold in trial.folds
        ),
        stop=stop,
    )


def for_each_objective(
    data: FigureData, draw: Callable[[Results], Sequence[Figure]], title: str = "{title}"
) -> list[Figure]:
    """Returns the figures of all objectives.

    With several objectives, the key of each figure gets the number of its objective, and `title` names its metric.
    """
    if len(data.results) == 1:
        return list(draw(data.results[0]))
    return [
        replace(
            figure,
            key=f"{figure.key}-{index}",
            title=title.format(title=figure.title, metric=results.search.objective.metric),
        )
        for index, results in enumerate(data.results)
        for figure in draw(results)
    ]


def same_question(search: Search, other: Search) -> bool:
    """Tells whether two searches have the same space and objectives, so that their figures can be compared."""
    return (
        search.space_dimensions == other.space_dimensions
        and search.constraints == other.constraints
        and same_objectives(search, other)
    )


def same_objectives(search: Search, other: Search) -> bool:
    """Tells whether the results of two searches can be drawn on one axis."""
    return [(o.metric, o.goal) for o in search.objectives] == [(o.metric, o.goal) for o in other.objectives]


def value_of(trial: Trial) -> float:
    """Returns the figure of merit of a finished trial, rounded."""
    assert trial.value is not None
    return float(rounded(trial.value))


def projected_value(trial: Trial) -> float:
    """Returns the projected final value of a stopped trial."""
    assert trial.stop is not None
    assert trial.stop.projected is not None
    return float(rounded(trial.stop.projected[0]))


def is_finite(value: float | None) -> TypeGuard[float]:
    """Tells whether `value` can be drawn."""
    return value is not None and math.isfinite(value)


def thinned(search: Search, trials: Sequence[Trial], limit: int) -> list[Trial]:
    """Returns at most `limit` finished trials, in their order: a quarter are the best, the rest is an even sample."""
    if len(trials) <= limit:
        return list(trials)
    best = ranked_by_folds(search, trials)[: limit // 4]
    keep = {trial.number for trial in best}
    rest = [trial.number for trial in trials if trial.number not in keep]
    keep.update(evenly(rest, limit - len(keep)))
    return [trial for trial in trials if trial.number in keep]


def evenly(items: Sequence[_Item], limit: int) -> list[_Item]:
    """Returns at most `limit` items, spread evenly, in their order."""
    return [items[i * len(items) // limit] for i in range(limit)] if len(items) > limit else list(items)


# Marks.


def markers(
    name: str,
    points: Iterable[tuple[Any, Any, Trial]],
    marker: Mapping[str, Any],
    hover: str = "%{text}<extra></extra>",
    text: Callable[[Trial], str] | None = None,
) -> dict[str, Any]:
    """Returns a trace of points.

    Args:
        name: its name in the legend.
        points: (x, y, trial); a click on a point opens the trial's page.
        marker: plotly's settings of the marks.
        hover: plotly's template of the text beside the pointer.
        text: returns the text of a trial, if `hover` has one.
    """
    x, y, trials = map(list, zip(*points, strict=True)) if (points := list(points)) else ([], [], [])
    trace = {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y, "marker": dict(marker)}
    trace |= {"hovertemplate": hover, "customdata": [trial.number for trial in trials]}
    return trace | {"text": [text(trial) for trial in trials]} if text else trace


def line_trace(name: str, x: Sequence[Any], y: Sequence[Any], line: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Returns a trace of a line; `line` and `more`: plotly's settings of the line and of the trace."""
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "line": dict(line), **more}


def changes(steps: Sequence[_Item], value: Callable[[_Item], float]) -> list[_Item]:
    """Returns the steps at which the value changes, and the last one: a step line needs no others."""
    return [step for i, step in enumerate(steps) if i in (0, len(steps) - 1) or value(step) != value(steps[i - 1])]


def step_line(name: str, steps: Sequence[tuple[int, float]], colour: str, width: float = 2.5) -> dict[str, Any]:
    """Returns a step line with the steps at which the value changes."""
    kept = changes(steps, lambda step: step[1])
    line = {"shape": "hv", "color": colour, "width": width}
    return line_trace(name, [place for place, _ in kept], [rounded(value) for _, value in kept], line)


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
    hover = "trial %{customdata} failed<extra></extra>"
    marks = markers("failed trial", [(place, 0, trial) for place, trial in failed], marker, hover)
    data.append({**marks, "yaxis": "y2"})


def add_stopped(data: list[dict[str, Any]], search: Search, stopped: Sequence[tuple[Any, Trial]]) -> None:
    """Adds a ring at the projected value of each trial that was stopped early; `stopped` has (x, trial) pairs."""
    if not stopped:
        return

    def text(trial: Trial) -> str:
        return (
            f"trial {trial.number}, {stop_text(trial.stop.step, trial.stop.value) if trial.stop else ''}\n"
            f"its {escape(search.objective.metric)} would probably have become {number(projected_value(trial))}"
        )

    points = [(place, projected_value(trial), trial) for place, trial in evenly(stopped, STOPPED_LIMIT)]
    data.append(markers(PROJECTED, points, {"symbol": "circle-open", "color": BLUE, "size": 7}, text=text))


def hover_text(search: Search, trial: Trial) -> str:
    """Returns the text beside a point; the page's script replaces its line ends by plotly's."""
    figures, spreads = trial.values, trial.stds or (None,) * len(search.objectives)
    texts = [
        f"{label(objective.metric)} {plus_minus(figure, spread)}"
        for objective, figure, spread in zip(search.objectives, figures, spreads, strict=False)
    ]
    lines = [f"<b>trial {trial.number}</b>  {', '.join(texts)}"]
    if trial.confirms is not None:
        lines.append(f"confirms trial {trial.confirms}")
    names = list(trial.point)[:HOVER_PARAMETERS]
    lines += [f"{label(name)}: {label(scalar(trial.point[name]))}" for name in names]
    if len(trial.point) > len(names):
        lines.append(f"and {len(trial.point) - len(names)} more")
    return "\n".join(lines)


# Notes.


def sample_note(shown: int, all_of_them: int, sample: str = "the best and an even sample") -> str:
    """Returns a note that a figure shows only some of the trials; empty where it shows all."""
    return f"shows {shown:,} of {all_of_them:,} trials: {sample}" if shown < all_of_them else ""


def view_note(*axes: Axis, what: str = "trial") -> str:
    """Returns a note on values that are outside the first view or drawn elsewhere; empty where there are none."""
    outside = max(axis.outside for axis in axes)
    notes = [
        f"{count(outside, f'far worse {what}')} outside the first view; double-click shows all" if outside else "",
        f"values beyond ±{number(FARTHEST)} are drawn there" if any(axis.cut for axis in axes) else "",
    ]
    return "; ".join(note for note in notes if note)


# For plotly.

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
