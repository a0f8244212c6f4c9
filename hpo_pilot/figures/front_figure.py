"""The figures of a search with several objectives: the Pareto front, and the hypervolume as it grew."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hpo_pilot.figures.axis import FigureAxis, figure_axis, label, view_note
from hpo_pilot.figures.convergence_figure import corners, hover_text
from hpo_pilot.figures.figure import (
    BLUE,
    FARTHEST,
    LEGEND,
    ORANGE,
    PALE_BLUE,
    POINT_LIMIT,
    Figure,
    evenly,
    joined_notes,
    rounded,
    sample_note,
)
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.summary import NOTHING_BEYOND, convergence, figures_of, front_of, reference_of
from hpo_pilot.figures.wording import count, number
from hpo_pilot.search import Search, Trial

#: Figures of pairs of objectives; those of more than four objectives would be too many.
_MOST_PAIRS = 6


def front_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """The trials in the plane of each pair of objectives, those of the front marked."""
    finished = [trial for trial in trials if trial.confirms is None and figures_of(search, trial) is not None]
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
    if len(search.objectives) == 2:  # of more, the front is no line in this plane
        line = {"mode": "lines+markers", "line": {"shape": "hv", "color": ORANGE, "width": 1.5}}
    data = [
        {**_marks(search, shown, x, y), "name": "other trial", "marker": {"color": PALE_BLUE, "size": 7}},
        {**_marks(search, front, x, y), "name": "front", "marker": {"color": ORANGE, "size": 9}, **line},
    ]
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


def _marks(search: Search, trials: Sequence[Trial], x: int, y: int) -> dict[str, Any]:
    places = [trial.figures or () for trial in trials]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [rounded(place[x]) for place in places],
        "y": [rounded(place[y]) for place in places],
        "text": [hover_text(search, trial) for trial in trials],
        "hovertemplate": "%{text}<extra></extra>",
    }


def volume_figure(search: Search, trials: Sequence[Trial]) -> Figure:
    """The hypervolume after each result."""
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
