"""The figure of the folds: how far they lie apart for the best trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpo_pilot.figures.axis import figure_axis
from hpo_pilot.figures.figure import BLUE, LEGEND, ORANGE, Figure, is_finite, rounded, value_of
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.summary import ranking
from hpo_pilot.figures.wording import count, plus_minus
from hpo_pilot.search import Search, Trial

FOLD_TRIALS = 20


def fold_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """Of each objective the folds of the trials that are best in it; none where no trial has two folds."""
    found = [fold_figure(*seen_by(search, trials, index)) for index in range(len(search.objectives))]
    if len(found) == 1:
        return [figure for figure in found if figure is not None]
    return [
        replace(figure, key=f"{figure.key}-{index}", title=f"{figure.title}: {search.objectives[index].metric}")
        for index, figure in enumerate(found)
        if figure is not None
    ]


def fold_figure(search: Search, trials: Sequence[Trial]) -> Figure | None:
    """The folds of the best trials; None where no trial has two folds with a figure of merit."""
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
