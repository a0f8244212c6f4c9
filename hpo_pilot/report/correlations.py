"""Rank correlations of figures of merit and parameters: statistics and figure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpo_pilot.report.axes import choice_labels, label, rounded
from hpo_pilot.report.figure import BLUE, ORANGE, Figure, FigureData, evenly, message_figure, plot, value_of
from hpo_pilot.report.formatting import number
from hpo_pilot.report.importance import Matrix, encoded, is_enough, ranks, too_few
from hpo_pilot.search import Search, Trial

#: Trials used; rows of the figure; rows up to which the cells show their numbers.
_TRIALS, _ROWS, _NUMBERED = 2000, 24, 12
#: Least number of trials that have both values.
_LEAST = 8
#: A correlation of unrelated values is beyond this, divided by the root of the number of trials less one, in 5 %.
_CHANCE = 1.96


def correlation_figures(data: FigureData) -> list[Figure]:
    """Draws Spearman's rank correlations of the figures of merit and the parameters.

    Parameters with a strong correlation with the first figure of merit come first.
    """
    first = data.results[0]
    if not is_enough(first.estimated):
        return [message_figure("correlations", "Rank correlation", too_few(first))]
    trials = evenly(first.estimated, _TRIALS)
    merits = []
    for results in data.results:
        values = {trial.number: value_of(trial) for trial in results.estimated}
        merits.append((results.search.objective.metric, np.array([values.get(t.number, math.nan) for t in trials])))
    parameters = parameter_columns(data.search, trials)
    strengths = [correlation(merits[0][1], column) or 0.0 for _, column in parameters]
    order = sorted(range(len(parameters)), key=lambda index: -abs(strengths[index]))
    rows = [*merits, *(parameters[index] for index in order)][:_ROWS]
    cells = [[None if one is other else correlation(one, other) for _, other in rows] for _, one in rows]
    ticks = {
        "tickvals": list(range(len(rows))),
        "ticktext": [label(name, 18) for name, _ in rows],
        "showgrid": False,
        "zeroline": False,
    }
    metric, goal = first.search.objective.metric, first.search.objective.goal
    strongest = ", ".join(f"{parameters[index][0]} {number(strengths[index], 2)}" for index in order[:5])
    heatmap = {
        "type": "heatmap",
        "name": "rank correlation",
        "z": cells,
        "zmin": -1,
        "zmax": 1,
        "colorscale": [[0, ORANGE], [0.5, "#f3f4f6"], [1, BLUE]],
        "colorbar": {"thickness": 12},
        "hovertemplate": "%{y}, %{x}: %{z:.2f}<extra></extra>",
        "hoverongaps": False,
        "xgap": 1,
        "ygap": 1,
    }
    if len(rows) <= _NUMBERED:
        heatmap["texttemplate"] = "%{z:.2f}"
    return [
        plot(
            "correlations",
            "Rank correlation",
            f"Spearman's rank correlation with {metric}: {strongest}.",
            [heatmap],
            f"to {goal} {metric}, a {'negative' if goal == 'minimize' else 'positive'} correlation means that larger "
            "values are better",
            f"below ±{number(_CHANCE / math.sqrt(len(trials) - 1), 2)} it may be chance",
            "parameters are also correlated because the optimizer prefers some points",
            "a correlation sees only what rises or falls throughout",
            first.estimated_note,
            f"from {len(trials):,} of {len(first.estimated):,} trials" if len(trials) < len(first.estimated) else "",
            f"shows {len(rows)} of {len(merits) + len(parameters)} rows"
            if len(rows) < len(merits) + len(order)
            else "",
            xaxis={**ticks, "tickangle": -40},
            yaxis={**ticks, "autorange": "reversed"},
        )
    ]


def parameter_columns(search: Search, trials: Sequence[Trial]) -> list[tuple[str, Matrix]]:
    """Returns the parameters as columns with their names; a choice without an order is a column of its own.

    A value is NaN where the trial does not have the parameter. Parameters with many unordered choices are left out.
    """
    points = encoded(search, trials)
    found: list[tuple[str, Matrix]] = []
    for index, (name, group) in enumerate(zip(points.names, points.groups, strict=True)):
        dimension = search.space_dimensions[name]
        names = [name]
        if dimension.type == "categorical":
            labels = choice_labels(dimension.choices)
            names = [f"{name}: {text}" for text in (labels if len(group) > 1 else labels[1:])]
        if len(names) == len(group):
            columns = np.where(points.active[:, [index]], points.columns[:, group], math.nan)
            found += zip(names, columns.T, strict=True)
    return found


def correlation(one: Matrix, other: Matrix) -> float | None:
    """Returns Spearman's rank correlation of the trials that have both values; None: too few, or all have the same."""
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < _LEAST or any(np.ptp(column[both]) == 0 for column in (one, other)):
        return None
    return float(rounded(np.corrcoef(ranks(one[both]), ranks(other[both]))[0, 1]))
