"""The figure of learning curves: what trials reported while they ran, and where hopeless ones were stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hpo_pilot.figures.axis import figure_axis, view_note
from hpo_pilot.figures.figure import LEGEND, ORANGE, PALE_BLUE, RED, Figure, evenly, joined_notes, rounded
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.summary import ranking
from hpo_pilot.figures.wording import count
from hpo_pilot.search import Search, Trial

#: Curves in the figure, and places of each: more cannot be told apart.
CURVE_LIMIT = 100
PLACE_LIMIT = 60
#: Steps that span more than this factor are drawn on a log scale.
_LOG_FACTOR = 200

#: What trials reported: (step, value) in the order of steps, by trial and fold; infinity is no number.
Reports: TypeAlias = Mapping[int, Mapping[int, Sequence[tuple[int, float]]]]

_Curve: TypeAlias = list[tuple[int, float]]

_PALE_RED = "rgba(214,69,69,0.45)"


def drawn_trials(search: Search, trials: Sequence[Trial]) -> list[int]:
    """The numbers of the trials whose curves are worth a look: the best quarter, and an even sample of the rest."""
    scanned = [trial.number for trial in trials if trial.confirms is None]
    if len(scanned) <= CURVE_LIMIT:
        return scanned
    keep = {standing.trial.number for standing in ranking(*_deciding(search, trials))[: CURVE_LIMIT // 4]}
    keep.update(evenly([number for number in scanned if number not in keep], CURVE_LIMIT - len(keep)))
    return [number for number in scanned if number in keep]


def curve_figure(search: Search, trials: Sequence[Trial], reports: Reports) -> Figure | None:
    """The values of trials over their steps; None where no trial reported two.

    Args:
        search: the search.
        trials: all its trials.
        reports: what those to be drawn reported.
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
        data.append(_ends(ends))
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
    """The means over a trial's folds, at the steps that most of them reported; at most `PLACE_LIMIT` places."""
    at: dict[int, list[float]] = {}
    for values in folds.values():
        for step, value in values:
            at.setdefault(step, []).append(value)
    most = max(map(len, at.values()), default=0)
    curve = [(step, sum(one / most for one in values)) for step, values in sorted(at.items()) if len(values) == most]
    return curve if len(curve) <= PLACE_LIMIT else [*evenly(curve[:-1], PLACE_LIMIT - 1), curve[-1]]


def _deciding(search: Search, trials: Sequence[Trial]) -> tuple[Search, list[Trial]]:
    """The search with the one objective whose values trials report while they run."""
    metrics = [objective.metric for objective in search.objectives]
    metric = search.early_stopping.metric
    return seen_by(search, trials, metrics.index(metric) if metric in metrics else 0)


def _last(curve: _Curve) -> tuple[int, float] | None:
    """The last place that can be drawn."""
    return next((place for place in reversed(curve) if math.isfinite(place[1])), None)


def _lines(name: str, curves: Mapping[int, _Curve], line: dict[str, Any]) -> dict[str, Any]:
    """Curves as one trace, for a hundred would be slow; with gaps between them, and where there is no number."""
    steps: list[int | None] = []
    values: list[float | None] = []
    texts: list[str] = []
    for number, curve in curves.items():
        if steps:
            steps.append(None)
            values.append(None)
            texts.append("")
        steps += [step for step, _ in curve]
        values += [rounded(value) if math.isfinite(value) else None for _, value in curve]
        texts += [f"trial {number}"] * len(curve)
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


def _ends(ends: Mapping[int, tuple[int, float]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "stopped here",
        "x": [step for step, _ in ends.values()],
        "y": [rounded(value) for _, value in ends.values()],
        "text": [f"trial {number}" for number in ends],
        "hovertemplate": "%{text}<br>stopped at step %{x}<br>%{y}<extra></extra>",
        "marker": {"symbol": "x-thin", "size": 6, "line": {"color": RED, "width": 1.5}},
    }
