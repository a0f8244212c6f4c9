"""The figure of importance: which parameters decide, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hpo_pilot.figures.axis import label
from hpo_pilot.figures.figure import BLUE, Figure, finished_count, joined_notes, message_figure, rounded
from hpo_pilot.figures.importance import LEAST, Importances, importances
from hpo_pilot.figures.objective_view import seen_by
from hpo_pilot.figures.wording import count, number
from hpo_pilot.search import Search, Trial

#: Bars in the figure.
BAR_LIMIT = 20
#: Below this R² the forest explains too little of what it is asked to explain.
POOR = 0.3


def importance_figures(search: Search, trials: Sequence[Trial]) -> list[Figure]:
    """One for each objective; where it cannot be known, it says why."""
    if len(search.objectives) == 1:
        return [importance_figure(search, trials)]
    return [
        replace(figure, key=f"{figure.key}-{index}", title=f"{figure.title} for {search.objectives[index].metric}")
        for index, figure in enumerate(
            importance_figure(*seen_by(search, trials, index)) for index in range(len(search.objectives))
        )
    ]


def importance_figure(search: Search, trials: Sequence[Trial]) -> Figure:
    """The parameters by what a forest loses without them."""
    title = "Importance"
    found = importances(search, trials)
    if found is None:
        return message_figure("importance", title, too_few(search, trials))
    shown = found.parameters[:BAR_LIMIT]
    bars = list(reversed(shown))  # plotly draws the first at the bottom
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "loss of R²",
            "x": [rounded(one.lost) for one in bars],
            "y": list(range(len(bars))),
            "error_x": {"type": "data", "array": [rounded(one.spread) for one in bars], "thickness": 1.5, "width": 4}
            | {"color": "#808a95"},
            "text": [_text(one.name, one.lost, one.spread, one.active) for one in bars],
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": BLUE},
        }
    ]
    names = [label(one.name, 24) for one in bars]
    layout = {
        "xaxis": {"title": {"text": "R² lost when the parameter is shuffled"}, "rangemode": "tozero"},
        "yaxis": {
            "tickmode": "array",
            "tickvals": list(range(len(bars))),
            "ticktext": names,
            "showgrid": False,
            "zeroline": False,
        },
        "showlegend": False,
    }
    best = ", ".join(f"{one.name} {number(one.lost, 2)} ± {number(one.spread, 2)}" for one in shown[:5])
    return Figure(
        "importance",
        title,
        f"How much of its R² of {number(found.score, 2)} a forest that predicts {search.objective.metric} loses "
        f"without each parameter: {best}.",
        joined_notes(
            _trust(found.score),
            "bars: permutation importance for the rank of the figure, whiskers its standard deviation over parts of "
            "the trials and shuffles",
            f"from {found.used:,} of {found.finished:,} trials" if found.used < found.finished else "",
            f"shows {len(shown)} of {len(found.parameters)} parameters" if len(shown) < len(found.parameters) else "",
            _conditional(found),
        ),
        {"data": data, "layout": layout},
    )


def too_few(search: Search, trials: Sequence[Trial]) -> str:
    """Why nothing can be said, in a sentence."""
    finished = finished_count(trials)
    if finished < LEAST:
        return f"Needs {LEAST} finished trials; there {'is' if finished == 1 else 'are'} {finished} so far."
    return f"All {count(finished, 'finished trial')} have the same {search.objective.metric}."


def _trust(score: float) -> str:
    if score < POOR:
        return (
            f"the forest predicts poorly (R² {number(score, 2)} on trials that it was not fitted to): "
            "do not rely on this order"
        )
    return f"the forest's R² on trials that it was not fitted to is {number(score, 2)}"


def _conditional(found: Importances) -> str:
    partly = [one.name for one in found.parameters if one.active < 1]
    names = ", ".join(partly[:3]) + (f" and {len(partly) - 3} more" if len(partly) > 3 else "")
    return f"not in all trials, and shuffled only among those that have a value: {names}" if partly else ""


def _text(name: str, lost: float, spread: float, active: float) -> str:
    part = f"\nin {100 * active:.0f}% of the trials" if active < 1 else ""
    return f"<b>{label(name)}</b>\n{number(lost, 3)} ± {number(spread, 2)}{part}"
