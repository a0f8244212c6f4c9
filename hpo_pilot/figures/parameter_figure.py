"""The figures of the parameters: the figure of merit against each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpo_pilot.figures.axis import choice_labels, figure_axis, label, parameter_axis, view_note
from hpo_pilot.figures.figure import (
    BLUE,
    ORANGE,
    POINT_LIMIT,
    Figure,
    add_failures,
    add_stopped,
    guess_of,
    guessed,
    joined_notes,
    no_ring_note,
    rounded,
    sample_note,
    thinned,
    value_of,
)
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.summary import figure_of, ranking
from hpo_pilot.figures.wording import count, scalar
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.search.dimension import value_key

#: Markers in all parameter figures together.
PARAMETER_POINT_LIMIT = 10_000


def figures_by_objective(search: Search, trials: Sequence[Trial]) -> list[tuple[str, list[Figure]]]:
    """Of each objective its metric, and its figures against each parameter."""
    several = len(search.objectives) > 1
    found = []
    for index, objective in enumerate(search.objectives):
        figures = parameter_figures(
            *seen_by(search, trials, index), most=PARAMETER_POINT_LIMIT // len(search.objectives)
        )
        if several:
            figures = [replace(figure, key=f"{figure.key}-{index}") for figure in figures]
        found.append((objective.metric, figures))
    return found


def parameter_figures(search: Search, trials: Sequence[Trial], most: int = PARAMETER_POINT_LIMIT) -> list[Figure]:
    """The figure of merit against each parameter, in the order of the search file, with `most` markers in all."""
    finished = [trial for trial in trials if trial.confirms is None and figure_of(trial) is not None]
    failed = [trial for trial in trials if trial.confirms is None and trial.state is TrialState.FAILED]
    names = search.space.names
    limit = min(POINT_LIMIT, max(100, most // len(names)))
    shown = thinned(search, finished, limit)
    best = next((standing.trial for standing in ranking(search, trials)), None)
    groups = {"finished": finished, "shown": shown, "failed": failed, "stopped": [t for t in trials if t.stopped_early]}
    return [_parameter_figure(search, name, **groups, best=best) for name in names]


def _parameter_figure(
    search: Search,
    name: str,
    *,
    finished: Sequence[Trial],
    shown: Sequence[Trial],
    failed: Sequence[Trial],
    stopped: Sequence[Trial],
    best: Trial | None,
) -> Figure:
    dimension = search.space_dimensions[name]
    choices = getattr(dimension, "choices", None)
    places = {value_key(choice): place for place, choice in enumerate(choices or ())}
    labels = choice_labels(choices or ())

    def place(trial: Trial) -> Any:
        return labels[places[value_key(trial.point[name])]] if choices else rounded(trial.point[name])

    def has(trial: Trial) -> bool:
        # Trials of an older form of the space may hold values that it no longer has.
        return name in trial.point and (not choices or value_key(trial.point[name]) in places)

    marks = [trial for trial in shown if has(trial)]
    common = {
        "name": "trial",
        "x": [place(trial) for trial in marks],
        "y": [value_of(trial) for trial in marks],
        "text": [trial.number for trial in marks],
        "hovertemplate": "trial %{text}<br>%{x}<br>%{y}<extra></extra>",
        "marker": {"color": BLUE, "size": 7, "opacity": 0.65},
    }
    if choices:
        strip = {"type": "box", "boxpoints": "all", "jitter": 0.5, "pointpos": 0, "fillcolor": "rgba(57,135,214,0.12)"}
        data = [{**common, **strip, "line": {"color": BLUE, "width": 1}}]
        horizontal: dict[str, Any] = {"title": {"text": label(name)}, "type": "category"}
        horizontal |= {"categoryorder": "array", "categoryarray": labels}
    else:
        data = [{**common, "type": "scatter", "mode": "markers"}]
        horizontal = parameter_axis(
            search, name, [place(trial) for trial in [*finished, *failed, *stopped] if has(trial)]
        )
    if best is not None and has(best):
        data.append(_star(place(best), best))
    rings = [trial for trial in guessed(stopped) if has(trial)]
    add_stopped(data, search, [(place(trial), trial) for trial in rings])
    axis = figure_axis(search, [*map(value_of, finished), *map(guess_of, rings)])
    layout = {"xaxis": horizontal, "yaxis": axis.layout, "showlegend": False}
    add_failures(data, layout, [(place(trial), trial) for trial in failed if has(trial)])

    without = sum(name not in trial.point for trial in finished)
    at = f"; the best has {scalar(best.point[name])}" if best is not None and name in best.point else ""
    return Figure(
        f"parameter-{search.space.names.index(name)}",
        name,
        f"{search.objective.metric} against {name} for {count(len(finished) - without, 'finished trial')}{at}.",
        joined_notes(
            sample_note(len(shown), len(finished)),
            f"not active in {count(without, 'trial')}" if without else "",
            no_ring_note(stopped),
            view_note(axis),
        ),
        {"data": data, "layout": layout},
    )


def _star(x: Any, best: Trial) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "best",
        "x": [x],
        "y": [value_of(best)],
        "text": [best.number],
        "hovertemplate": "best: trial %{text}<br>%{x}<br>%{y}<extra></extra>",
        "marker": {"symbol": "star", "color": ORANGE, "size": 14},
    }
