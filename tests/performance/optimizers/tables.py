"""Ranks, tables and figures of the results."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import plotly.graph_objects as go
from plotly.colors import qualitative
from plotly.subplots import make_subplots
from rich.console import Console
from rich.table import Table as RichTable
from scipy.stats import false_discovery_control, mannwhitneyu, rankdata, wilcoxon

from tests.performance.optimizers.problem import Setting
from tests.performance.optimizers.public import group
from tests.performance.optimizers.store import StoredRun

# Who is ahead: expected ranks, and how sure a difference is.
#
# A table holds the final regrets of each runner on each problem, a number a seed; runners may have different numbers
# of
# seeds, and a problem may be missing.
#
# The rank of a runner on a problem is the rank it has on average when one run of each runner is drawn at random, so
# ``1 + Σ P(the other is better) + ½ Σ P(equal)`` over the others, estimated from all pairs of runs (the Mann-Whitney
# statistic). That needs no pairing by seed, which means nothing between different algorithms, and takes any number of
# seeds. Mean ranks average it over the problems, each of equal weight.

#: runner -> problem -> final regrets, one a seed.
Table: TypeAlias = Mapping[str, Mapping[str, Sequence[float]]]


def beaten(mine: Sequence[float], others: Sequence[float]) -> float:
    """The probability that a run of the other is better than one of mine; equal ones count half."""
    a, b = np.asarray(mine)[:, None], np.asarray(others)[None, :]
    return float(np.mean((b < a) + 0.5 * (b == a)))


def ranks(table: Table, problem: str) -> dict[str, float]:
    """The expected rank of each runner that has the problem; 1 is best."""
    present = {runner: runs[problem] for runner, runs in table.items() if runs.get(problem)}
    return {
        runner: 1.0 + sum(beaten(mine, others) for other, others in present.items() if other != runner)
        for runner, mine in present.items()
    }


def mean_ranks(table: Table, problems: Sequence[str]) -> dict[str, float]:
    """The mean over the problems of each runner that has them all; nobody else is ranked, nor ranked against."""
    complete = {r: runs for r, runs in table.items() if all(runs.get(problem) for problem in problems)}
    by_problem = [ranks(complete, problem) for problem in problems]
    return {runner: float(np.mean([found[runner] for found in by_problem])) for runner in complete}


def rank_intervals(table: Table, problems: Sequence[str], draws: int = 2000) -> dict[str, tuple[float, float]]:
    """95% intervals of the mean ranks, by a bootstrap over the problems, which the seeds of each go with."""
    complete = {r: runs for r, runs in table.items() if all(runs.get(problem) for problem in problems)}
    found = [ranks(complete, problem) for problem in problems]
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(problems), size=(draws, len(problems)))
    intervals = {}
    for runner in complete:
        means = np.array([each[runner] for each in found])[drawn].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        intervals[runner] = (float(low), float(high))
    return intervals


#: Of all differences that are called significant one in twenty is expected to be chance.
_FALSE = 0.05


def peer_wins(table: Table, against: str) -> list[tuple[str, str, float]]:
    """Peer, problem and p where a peer is better than `against`: Mann-Whitney over the seeds, Benjamini-Hochberg."""
    cases, p_values = [], []
    for peer, runs in table.items():
        for problem, values in runs.items() if peer != against else ():
            mine = table.get(against, {}).get(problem)
            if mine:
                cases.append((peer, problem))
                p_values.append(float(mannwhitneyu(values, mine, alternative="less").pvalue))
    adjusted = false_discovery_control(p_values) if cases else []
    return [(*case, float(p)) for case, p in zip(cases, adjusted, strict=True) if p < _FALSE]


def p_over_runs(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> float | None:
    """Wilcoxon's signed-rank p, two-sided, over pairs (problem, seed); None where there is nothing to compare.

    Regrets of different problems have different scales, so each is replaced by its rank among both runners' runs on
    its problem, as a share of their number.
    """
    differences: list[float] = []
    for problem in first.keys() & second.keys():
        n = min(len(first[problem]), len(second[problem]))
        if n:
            both = np.concatenate([first[problem][:n], second[problem][:n]])
            places = rankdata(both) / (2 * n)
            differences += (places[:n] - places[n:]).tolist()
    return _p(differences)


def p_over_problems(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> float | None:
    """The same over problems: of each the probability that the first is beaten, less a half."""
    shared = [problem for problem in first.keys() & second.keys() if first[problem] and second[problem]]
    return _p([beaten(first[problem], second[problem]) - 0.5 for problem in sorted(shared)])


def _p(differences: Sequence[float]) -> float | None:
    if not any(differences):
        return None
    return float(wilcoxon(differences, zero_method="zsplit").pvalue)


# The suite's tables: median regrets, mean ranks, p-values, CPU seconds.


def regrets(runs: Iterable[StoredRun]) -> dict[str, dict[str, list[float]]]:
    """Final regrets by runner and problem, in the order of the seeds."""
    table: dict[str, dict[str, list[float]]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        table.setdefault(run.runner, {}).setdefault(run.problem, []).append(run.regret)
    return table


def print_setting(
    console: Console, setting: str, runs: Sequence[StoredRun], problems: Sequence[str], against: str
) -> dict[str, Any]:
    """One setting's tables; the figures as they go to JSON."""
    table = regrets(runs)
    order = _ordered(table, problems)
    counts = {runner: Counter(len(table[runner].get(problem, ())) for problem in problems) for runner in order}
    if len(problems) <= _SHOWN:
        _print_regrets(console, setting, table, problems, order)
    _print_groups(console, setting, table, problems, order)
    full, intervals = mean_ranks(table, problems), rank_intervals(table, problems)
    summary = RichTable(title=f"{setting}: over {len(problems)} problems", title_justify="left")
    for heading in (
        "runner",
        "mean rank",
        "95%",
        f"against {against}: ahead on",
        "p (runs)",
        "p (problems)",
        "CPU-s",
        "seeds",
    ):
        summary.add_column(heading, justify="left" if heading == "runner" else "right")
    figures: dict[str, Any] = {"regret": {}, "rank": {}, "cpu_seconds": {}, "p": {}}
    for runner in order:
        cpu = statistics.median(run.cpu for run in runs if run.runner == runner)
        versus = _Versus(table, runner, against)
        summary.add_row(
            runner,
            _rank(table, runner, full, problems),
            "–".join(f"{end:.1f}" for end in intervals.get(runner, ())),
            *versus.cells,
            _short(cpu),
            _seeds(counts[runner]),
        )
        figures["regret"][runner] = {
            problem: _json(statistics.median(values)) for problem, values in table[runner].items()
        }
        figures["rank"][runner] = full.get(runner)
        figures["cpu_seconds"][runner] = cpu
        figures["p"][runner] = {"runs": versus.over_runs, "problems": versus.over_problems}
    console.print(summary)
    figures["rank_95"], figures["peer_wins"] = intervals, peer_wins(table, against)
    console.print(f"significantly better than {against} (Mann-Whitney, false discoveries at most {_FALSE:.0%}):")
    for peer, problem, p in figures["peer_wins"]:
        console.print(f"  {peer} on {problem} (p = {_p_text(p)})")
    if not figures["peer_wins"]:
        console.print("  nobody on any problem")
    return figures


#: Of more problems than this, median regrets are not printed one by one.
_SHOWN = 60


def _print_groups(console: Console, setting: str, table: Table, problems: Sequence[str], order: Sequence[str]) -> None:
    """Mean ranks by group of public problems."""
    groups: dict[str, list[str]] = {}
    for problem in problems:
        if ":" in problem and not problem.startswith("dev:"):
            groups.setdefault(group(problem), []).append(problem)
    if not groups:
        return
    grid = RichTable(title=f"{setting}: mean rank by group", title_justify="left")
    for heading in ("group", "problems", *order):
        grid.add_column(heading, justify="left" if heading == "group" else "right")
    for name, members in groups.items():
        found = mean_ranks(table, members)
        least = min(found.values(), default=0.0)
        cells = [
            "–" if runner not in found else f"[bold]{rank:.1f}[/bold]" if rank == least else f"{rank:.1f}"
            for runner in order
            for rank in [found.get(runner)]
        ]
        grid.add_row(name, str(len(members)), *cells)
    console.print(grid)


def _ordered(table: Table, problems: Sequence[str]) -> list[str]:
    full = mean_ranks(table, problems)
    return sorted(table, key=lambda runner: (runner not in full, full.get(runner, 0.0), runner))


def _print_regrets(console: Console, setting: str, table: Table, problems: Sequence[str], order: Sequence[str]) -> None:
    grid = RichTable(title=f"{setting}: median regret (+ none found)", title_justify="left")
    grid.add_column("problem")
    for runner in order:
        grid.add_column(runner, justify="right")
    for problem in problems:
        medians = {r: statistics.median(table[r][problem]) for r in order if table[r].get(problem)}
        least = min(medians.values(), default=math.inf)
        cells = []
        for runner in order:
            text = _short(medians[runner]) if runner in medians else "–"
            cells.append(f"[bold]{text}[/bold]" if medians.get(runner, math.inf) <= least < math.inf else text)
        grid.add_row(problem, *cells)
    console.print(grid)


class _Versus:
    """A runner beside the one it is compared with."""

    def __init__(self, table: Table, runner: str, against: str) -> None:
        self.over_runs = self.over_problems = None
        self.cells = ("", "", "")
        if runner == against or against not in table:
            return
        mine, theirs = table[runner], table[against]
        shared = [problem for problem in mine if theirs.get(problem)]
        losses = [beaten(mine[problem], theirs[problem]) for problem in shared]
        won, lost = sum(loss < 0.5 for loss in losses), sum(loss > 0.5 for loss in losses)
        self.over_runs, self.over_problems = p_over_runs(mine, theirs), p_over_problems(mine, theirs)
        self.cells = (f"{won} of {won + lost}", _p_text(self.over_runs), _p_text(self.over_problems))


def _rank(table: Table, runner: str, full: dict[str, float], problems: Sequence[str]) -> str:
    if runner in full:
        return f"{full[runner]:.2f}"
    # Of an incomplete runner: its rank on what it has, beside the number ranked there.
    present = [problem for problem in problems if table[runner].get(problem)]
    found = statistics.mean(ranks(table, problem)[runner] for problem in present)
    return f"({found:.2f} on {len(present)})"


def _seeds(counts: Counter[int]) -> str:
    numbers = sorted(n for n in counts if n)
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _short(value: float) -> str:
    return "+" if math.isinf(value) else f"{value:.2g}"


def _p_text(p: float | None) -> str:
    return "" if p is None else f"{p:.1g}" if p < 0.1 else f"{p:.2f}"


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


# The suite's figures: a page a setting, readable without a network.

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
