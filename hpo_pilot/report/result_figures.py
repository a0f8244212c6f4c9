"""Figures of results: convergence, Pareto front, folds and learning curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from hpo_pilot.report.figure import (
    BLUE,
    FARTHEST,
    GREEN,
    LEGEND,
    ORANGE,
    PALE_BLUE,
    POINT_LIMIT,
    RED,
    Figure,
    FigureAxis,
    add_failures,
    add_stopped,
    evenly,
    figure_axis,
    guess_of,
    guessed,
    is_finite,
    joined_notes,
    label,
    markers,
    no_ring_note,
    rings_note,
    rounded,
    sample_note,
    seen_by,
    thinned,
    value_of,
    view_note,
)
from hpo_pilot.report.formatting import count, number, plus_minus, scalar
from hpo_pilot.report.summary import (
    NOTHING_BEYOND,
    convergence,
    figure_of_merit,
    figures_of_merit,
    front_of,
    ranking,
    reference_of,
)
from hpo_pilot.search import Search, Trial, TrialState

HOVER_PARAMETERS = 12
#: Above this number of trials, error bars hide the points.
BAR_LIMIT = 200


def convergence_figure(search: Search, trials: Sequence[Trial], peers: Sequence[PeerSearch] = ()) -> Figure:
    """Draws the figures of merit in the order of results, with the best so far; peers are thin lines."""
    comparable = [peer for peer in peers if same_question(search, peer.search) and ranking(peer.search, peer.trials)]
    compared = comparable[-PEER_LIMIT:]
    told = [trial for trial in trials if trial.told is not None]
    scanned = [trial for trial in told if trial.confirms is None and figure_of_merit(trial) is not None]
    shown = sorted(thinned(search, scanned, POINT_LIMIT), key=lambda trial: trial.told or 0)
    repeated = [trial for trial in told if trial.confirms is not None and figure_of_merit(trial) is not None][
        :POINT_LIMIT
    ]
    steps = convergence(search, trials)
    stopped = guessed(told)
    axis = figure_axis(search, [*map(value_of, [*scanned, *repeated]), *map(guess_of, stopped)])
    data: list[dict[str, Any]] = [
        *(_peer(peer, first=place == 0) for place, peer in enumerate(compared)),
        {**_markers(search, shown), "name": "trial"},
        {
            "type": "scatter",
            "mode": "lines",
            "name": "best so far",
            "line": {"shape": "hv", "color": ORANGE, "width": 2.5},
            "hoverinfo": "skip",
            **corners(steps),
        },
    ]
    if repeated:
        symbols = {"symbol": "diamond-open", "color": GREEN, "size": 9}
        data.append({**_markers(search, repeated), "name": "confirmation run", "marker": symbols})
    add_stopped(data, search, [(trial.told, trial) for trial in stopped])
    failed = [trial for trial in told if trial.state is TrialState.FAILED]
    order: dict[str, Any] = {"title": {"text": "results, in the order in which they came"}}
    if len(told) <= 12:
        order["dtick"] = 1
    layout = {
        "xaxis": order,
        "yaxis": axis.layout,
        "legend": LEGEND,
    }
    add_failures(data, layout, [(trial.told, trial) for trial in failed])
    metric = search.objective.metric
    others = [(peer.name, convergence(peer.search, peer.trials)[-1][1]) for peer in compared]
    reached = f"; the best {metric} reached is {number(steps[-1][1])}" if steps else ""
    return Figure(
        "convergence",
        "Convergence",
        f"{metric} of {count(len(scanned), 'finished trial')} in the order of results, with the best so far"
        f"{reached}; {count(len(failed), 'failed trial')}.{_compared(metric, others)}",
        joined_notes(
            sample_note(len(shown), len(scanned)),
            rings_note(told),
            no_ring_note(told),
            view_note(axis),
            f"the latest {PEER_LIMIT} of {len(comparable)} searches of the same space"
            if compared != comparable
            else "",
        ),
        {"data": data, "layout": layout},
    )


def _peer(peer: PeerSearch, first: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "other searches of the same space",
        "legendgroup": "peers",
        "showlegend": first,
        "line": {"shape": "hv", "color": "rgba(128,138,149,0.8)", "width": 1.2},
        "hovertemplate": f"{label(peer.name)}: best %{{y}} after %{{x}} results<extra></extra>".replace("\n", " "),
        **corners(convergence(peer.search, peer.trials)),
    }


def _compared(metric: str, others: Sequence[tuple[str, float]]) -> str:
    """Returns a sentence about the peers; empty where there are none."""
    if not others:
        return ""
    reached = ", ".join(f"{name} {number(best)}" for name, best in others)
    return f" Other searches of the same space reached a {metric} of: {reached}."


def _markers(search: Search, trials: Sequence[Trial]) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [trial.told for trial in trials],
        "y": [value_of(trial) for trial in trials],
        "text": [hover_text(search, trial) for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": BLUE, "size": 7, "opacity": 0.75},
    }
    spreads = [trial.std if is_finite(trial.std) else None for trial in trials]
    if len(trials) <= BAR_LIMIT and any(spread is not None for spread in spreads):
        bars = [0 if spread is None else rounded(spread) for spread in spreads]
        trace["error_y"] = {"type": "data", "array": bars, "color": PALE_BLUE, "thickness": 1, "width": 0}
    return trace


def hover_text(search: Search, trial: Trial) -> str:
    """Returns the text beside a point; the page's script replaces its line ends by plotly's."""
    figures, spreads = trial.figures or (), trial.spreads or (None,) * len(search.objectives)
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


def corners(steps: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Returns the points where the best so far changes, and the last one: a step line needs no others."""
    kept = [s for i, s in enumerate(steps) if i in (0, len(steps) - 1) or s[1] != steps[i - 1][1]]
    return {"x": [place for place, _ in kept], "y": [rounded(best) for _, best in kept]}


#: Number of figures of pairs of objectives; more than four objectives would have too many.
_MOST_PAIRS = 6


def front_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """Draws the trials in the plane of each pair of objectives, with the front marked."""
    finished = [trial for trial in trials if trial.confirms is None and figures_of_merit(search, trial) is not None]
    front = [standing.trial for standing in front_of(search, trials)]
    on_front = {trial.number for trial in front}
    others = [trial for trial in finished if trial.number not in on_front]
    pairs = itertools.islice(itertools.combinations(range(len(search.objectives)), 2), _MOST_PAIRS)
    stopped = sum(trial.stopped_early for trial in trials)
    return [_pair_figure(search, x, y, front, others, stopped) for x, y in pairs]


def _pair_figure(
    search: Search, x: int, y: int, front: Sequence[Trial], others: Sequence[Trial], stopped: int
) -> Figure:
    shown = evenly(others, max(0, POINT_LIMIT - len(front)))
    names = [search.objectives[index].metric for index in (x, y)]
    line: dict[str, Any] = {"mode": "markers"}
    if len(search.objectives) == 2:  # with more, the front is not a line in this plane
        line = {"mode": "lines+markers", "line": {"shape": "hv", "color": ORANGE, "width": 1.5}}
    data = []
    for name, trials, marker in (
        ("other trial", shown, {"color": PALE_BLUE, "size": 7}),
        ("front", front, {"color": ORANGE, "size": 9}),
    ):
        places = [trial.figures or () for trial in trials]
        texts = [hover_text(search, trial) for trial in trials]
        x_values, y_values = ([rounded(place[index]) for place in places] for index in (x, y))
        data.append(markers(name, x_values, y_values, texts, marker))
    data[1] |= line
    axes = []
    for index in (x, y):
        single, seen = seen_by(search, [*others, *front], index)
        axes.append(figure_axis(single, [rounded(trial.value) for trial in seen if trial.value is not None]))
    layout = {"xaxis": axes[0].layout, "yaxis": axes[1].layout, "legend": LEGEND}
    return Figure(
        f"front-{x}-{y}",
        f"{names[0]} and {names[1]}",
        f"{names[1]} against {names[0]} for {count(len(front) + len(others), 'finished trial')}; "
        f"{count(len(front), 'trial')} on the Pareto front.",
        joined_notes(
            sample_note(len(shown), len(others)),
            view_note(*axes),
            _better(search, x, y),
            f"{count(stopped, 'trial')} stopped early not shown" if stopped else "",
        ),
        {"data": data, "layout": layout},
    )


def _better(search: Search, x: int, y: int) -> str:
    across = "left" if search.objectives[x].sign > 0 else "right"
    along = "down" if search.objectives[y].sign > 0 else "up"
    return f"better is to the {across} and {along}"


def volume_figure(search: Search, trials: Sequence[Trial]) -> Figure:
    """Draws the hypervolume after each result."""
    steps, reference = convergence(search, trials), reference_of(search, trials)
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "hypervolume",
            "line": {"shape": "hv", "color": BLUE, "width": 2.5},
            "hovertemplate": "%{x}: %{y}<extra></extra>",
            **corners(steps),
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "results, in the order in which they came"}},
        "yaxis": {"title": {"text": label("hypervolume")}, "rangemode": "tozero"},
        "showlegend": False,
    }
    reached = f": {number(steps[-1][1])}" if steps else ""
    at = ", ".join(
        f"{o.metric} {number(figure)}" for o, figure in zip(search.objectives, reference or (), strict=False)
    )
    cut = FigureAxis(layout, cut=bool(steps) and steps[-1][1] > FARTHEST)
    unreached = NOTHING_BEYOND if steps and not steps[-1][1] else ""
    given = all(objective.reference is not None for objective in search.objectives)
    how = "as the search file says" if given else "from the worst of the first results, where the file says nothing"
    return Figure(
        "convergence",
        "Hypervolume",
        f"The volume between the Pareto front and the reference point after each result{reached}.",
        joined_notes(f"beyond the reference point {at} ({how}) nothing counts", unreached, view_note(cut)),
        {"data": data, "layout": layout},
    )


FOLD_TRIALS = 20


def fold_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """Draws for each objective the folds of its best trials; empty where no trial has two folds."""
    found = [fold_figure(*seen_by(search, trials, index)) for index in range(len(search.objectives))]
    if len(found) == 1:
        return [figure for figure in found if figure is not None]
    return [
        replace(figure, key=f"{figure.key}-{index}", title=f"{figure.title}: {search.objectives[index].metric}")
        for index, figure in enumerate(found)
        if figure is not None
    ]


def fold_figure(search: Search, trials: Sequence[Trial]) -> Figure | None:
    """Draws the folds of the best trials; None where no trial has two folds with a figure of merit."""
    top = [standing.trial for standing in ranking(search, trials)[:FOLD_TRIALS]]
    values = {trial.number: [fold.value for fold in trial.folds if is_finite(fold.value)] for trial in top}
    if not any(len(figures) > 1 for figures in values.values()):
        return None
    dots = [(str(trial.number), figure) for trial in top for figure in values[trial.number]]
    spreads = [trial.std if is_finite(trial.std) else 0 for trial in top]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "fold",
            "x": [trial for trial, _ in dots],
            "y": [rounded(figure) for _, figure in dots],
            "marker": {"symbol": "circle-open", "color": BLUE, "size": 7},
            "hovertemplate": "trial %{x}<br>%{y}<extra>fold</extra>",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "mean ± standard deviation",
            "x": [str(trial.number) for trial in top],
            "y": [value_of(trial) for trial in top],
            "error_y": {"type": "data", "array": [rounded(s) for s in spreads], "color": ORANGE, "thickness": 1.5},
            "marker": {"symbol": "line-ew-open", "color": ORANGE, "size": 14, "line": {"width": 2.5}},
            "hovertemplate": "trial %{x}<br>%{y}<extra>mean</extra>",
        },
    ]
    layout = {
        "xaxis": {"title": {"text": "trial, best first"}, "type": "category"},
        "yaxis": figure_axis(search, [figure for _, figure in dots]).layout,
        "legend": LEGEND,
    }
    first = top[0]
    return Figure(
        "folds",
        "Spread over the folds",
        f"{search.objective.metric} in each fold of the {count(len(top), 'best trial')}; "
        f"trial {first.number}: {plus_minus(first.value, first.std)}.",
        spec={"data": data, "layout": layout},
    )


#: Number of curves in the figure, and points of each: more cannot be distinguished.
CURVE_LIMIT = 100
PLACE_LIMIT = 60
#: Steps over more than this factor are drawn on a log scale.
_LOG_FACTOR = 200

#: Intermediate values: (step, value) in the order of steps, by trial and fold; infinity means not a number.
Reports: TypeAlias = Mapping[int, Mapping[int, Sequence[tuple[int, float]]]]

_Curve: TypeAlias = list[tuple[int, float]]

_PALE_RED = "rgba(214,69,69,0.45)"


def drawn_trials(search: Search, trials: Sequence[Trial]) -> list[int]:
    """Returns the numbers of the trials whose curves are drawn: a quarter are the best, the rest is an even sample."""
    scanned = [trial.number for trial in trials if trial.confirms is None]
    if len(scanned) <= CURVE_LIMIT:
        return scanned
    keep = {standing.trial.number for standing in ranking(*_deciding(search, trials))[: CURVE_LIMIT // 4]}
    keep.update(evenly([number for number in scanned if number not in keep], CURVE_LIMIT - len(keep)))
    return [number for number in scanned if number in keep]


def curve_figure(search: Search, trials: Sequence[Trial], reports: Reports) -> Figure | None:
    """Draws intermediate values over steps; None where no trial reported two values.

    Args:
        search: the search.
        trials: all its trials.
        reports: the intermediate values of the trials to draw.
    """
    search, trials = _deciding(search, trials)
    curves = {number: mean_curve(folds) for number, folds in reports.items()}
    known = [trial for trial in trials if len(curves.get(trial.number, ())) > 1]
    if not known:
        return None
    best = next((standing.trial.number for standing in ranking(search, trials)), None)
    stopped = [trial.number for trial in known if trial.stopped_early]
    others = [trial.number for trial in known if not trial.stopped_early and trial.number != best]
    data = [
        _lines(name, {number: curves[number] for number in numbers}, line)
        for name, numbers, line in (
            ("trial", others, {"color": PALE_BLUE, "width": 1.2}),
            ("stopped early", stopped, {"color": _PALE_RED, "width": 1.2}),
            ("best", [trial.number for trial in known if trial.number == best], {"color": ORANGE, "width": 2.5}),
        )
        if numbers
    ]
    if ends := {number: last for number in stopped if (last := _last(curves[number])) is not None}:
        data.append(
            markers(
                "stopped here",
                [step for step, _ in ends.values()],
                [rounded(value) for _, value in ends.values()],
                [f"trial {number}" for number in ends],
                {"symbol": "x-thin", "size": 6, "line": {"color": RED, "width": 1.5}},
                "%{text}<br>stopped at step %{x}<br>%{y}<extra></extra>",
            )
        )
    steps = [step for trial in known for step, _ in curves[trial.number]]
    horizontal: dict[str, Any] = {"title": {"text": "step"}}
    if min(steps) > 0 and max(steps) > _LOG_FACTOR * min(steps):
        horizontal["type"] = "log"
    axis = figure_axis(search, [value for trial in known for _, value in curves[trial.number] if math.isfinite(value)])
    diverged = sum(not math.isfinite(curves[trial.number][-1][1]) for trial in known)
    scanned = sum(trial.confirms is None for trial in trials)
    return Figure(
        "curves",
        "Learning curves",
        f"{search.objective.metric} over the steps of {count(len(known), 'trial')}; {len(stopped):,} stopped early.",
        joined_notes(
            f"shows {len(known):,} of {scanned:,} trials" if len(known) < scanned else "",
            "means over the folds" if search.folds.k > 1 else "",
            f"{count(diverged, 'trial')} ended with no number" if diverged else "",
            view_note(axis, what="value"),
        ),
        {"data": data, "layout": {"xaxis": horizontal, "yaxis": axis.layout, "legend": LEGEND}},
    )


def mean_curve(folds: Mapping[int, Sequence[tuple[int, float]]]) -> _Curve:
    """Returns the means over a trial's folds at the steps that most of them reported; at most `PLACE_LIMIT` points."""
    at: dict[int, list[float]] = {}
    for values in folds.values():
        for step, value in values:
            at.setdefault(step, []).append(value)
    most = max(map(len, at.values()), default=0)
    curve = [(step, sum(one / most for one in values)) for step, values in sorted(at.items()) if len(values) == most]
    return curve if len(curve) <= PLACE_LIMIT else [*evenly(curve[:-1], PLACE_LIMIT - 1), curve[-1]]


def _deciding(search: Search, trials: Sequence[Trial]) -> tuple[Search, list[Trial]]:
    """Returns the search and its trials with only the objective of the intermediate values."""
    metrics = [objective.metric for objective in search.objectives]
    metric = search.early_stopping.metric
    return seen_by(search, trials, metrics.index(metric) if metric in metrics else 0)


def _last(curve: _Curve) -> tuple[int, float] | None:
    """Returns the last point that can be drawn."""
    return next((place for place in reversed(curve) if math.isfinite(place[1])), None)


def _lines(name: str, curves: Mapping[int, _Curve], line: dict[str, Any]) -> dict[str, Any]:
    """Returns curves as one trace, because a hundred would be slow; gaps are between curves and at missing values."""
    steps: list[int | None] = []
    values: list[float | None] = []
    texts: list[str] = []
    for trial, curve in curves.items():
        if steps:
            steps.append(None)
            values.append(None)
            texts.append("")
        steps += [step for step, _ in curve]
        values += [rounded(value) if math.isfinite(value) else None for _, value in curve]
        texts += [f"trial {trial}"] * len(curve)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": steps,
        "y": values,
        "text": texts,
        "connectgaps": False,
        "hovertemplate": "%{text}<br>step %{x}<br>%{y}<extra></extra>",
        "line": line,
    }


#: Number of other searches, the latest, in the figure: more lines cannot be distinguished.
PEER_LIMIT = 6


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
        trials: all its trials, in any order and state; may be empty.
        reports: intermediate values of the trials that `drawn_trials` names.
        peers: other searches; those with the same space and objectives are drawn for comparison.
        now: the time up to which running jobs are drawn; None: the last time in the trials.
    """

    search: Search
    trials: Sequence[Trial]
    reports: Reports = field(default_factory=dict)
    peers: Sequence[PeerSearch] = ()
    now: datetime | None = None


def same_question(search: Search, other: Search) -> bool:
    """Tells whether two searches have the same space and objectives, so that their figures can be compared."""
    return (
        search.space_dimensions == other.space_dimensions
        and search.constraints == other.constraints
        and [(o.metric, o.goal) for o in search.objectives] == [(o.metric, o.goal) for o in other.objectives]
    )
