"""The suite's figures: a page a setting, readable without a network."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots

from tests.performance.optimizers.ranking import mean_ranks
from tests.performance.optimizers.setting import Setting
from tests.performance.optimizers.store import StoredRun

_COLUMNS = 3
#: A logarithmic axis has no zero: what is below is shown here.
_FLOOR = 1e-9
#: Stands for "nothing feasible yet", and is not shown.
_CEILING = 1e200


def write_page(path: Path, setting: Setting, runs: Sequence[StoredRun], problems: Sequence[str]) -> None:
    """Median regret so far with its quartiles, a panel a problem; in the last panel the mean rank over evaluations."""
    traces: dict[str, dict[str, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        traces[run.runner][run.problem].append(run.trace)
    colours = dict(zip(sorted(traces), qualitative.Dark24, strict=False))
    rows = math.ceil((len(problems) + 1) / _COLUMNS)
    figure = make_subplots(
        rows, _COLUMNS, subplot_titles=[*problems, "mean rank (1 is best)"], vertical_spacing=0.25 / rows
    )
    spent = [setting.slots * (index + 1) for index in range(setting.rounds)]
    for number, problem in enumerate(problems):
        place = {"row": number // _COLUMNS + 1, "col": number % _COLUMNS + 1}
        for runner, found in sorted(traces.items()):
            if found[problem]:
                _add_band(figure, place, runner, colours[runner], spent, found[problem], legend=number == 0)
        figure.update_yaxes(type="log", exponentformat="power", **place)
    place = {"row": rows, "col": len(problems) % _COLUMNS + 1}
    for runner, line in _ranks_over_time(traces, problems, setting.rounds).items():
        figure.add_scatter(
            x=spent,
            y=line,
            name=runner,
            mode="lines",
            line={"color": colours[runner]},
            legendgroup=runner,
            showlegend=False,
            **place,
        )
    figure.update_yaxes(autorange="reversed", **place)
    figure.update_layout(
        title={
            "text": f"{setting.name}: regret so far over evaluations, median and quartiles",
            "x": 0.05,
            "y": 0.995,
            "yanchor": "top",
        },
        height=330 * rows,
        template="plotly_white",
        legend={"orientation": "h", "x": 1.0, "xanchor": "right", "y": 1.0 + 0.2 / rows, "yanchor": "bottom"},
        margin={"t": 150},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.write_html(path, include_plotlyjs=True)


def _add_band(
    figure: go.Figure,
    place: dict[str, int],
    runner: str,
    colour: str,
    spent: Sequence[int],
    traces: Sequence[tuple[float, ...]],
    *,
    legend: bool,
) -> None:
    values = np.clip(np.array(traces), _FLOOR, _CEILING)  # between infinities there is no quantile
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    shown, found = high < _CEILING / 10, middle < _CEILING / 10
    band = [*high[shown], *low[shown][::-1]]
    x = np.array(spent)
    figure.add_scatter(
        x=[*x[shown], *x[shown][::-1]],
        y=band,
        fill="toself",
        mode="none",
        fillcolor=colour,
        opacity=0.12,
        hoverinfo="skip",
        legendgroup=runner,
        showlegend=False,
        **place,
    )
    figure.add_scatter(
        x=x[found],
        y=middle[found],
        name=runner,
        mode="lines",
        line={"color": colour},
        legendgroup=runner,
        showlegend=legend,
        **place,
    )


def _ranks_over_time(
    traces: dict[str, dict[str, list[tuple[float, ...]]]], problems: Sequence[str], rounds: int
) -> dict[str, list[float]]:
    lines: dict[str, list[float]] = defaultdict(list)
    for index in range(rounds):
        table = {r: {p: [trace[index] for trace in found[p]] for p in problems} for r, found in traces.items()}
        for runner, rank in mean_ranks(table, problems).items():
            lines[runner].append(rank)
    return lines
