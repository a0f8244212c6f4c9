"""The suite's tables: median regrets, mean ranks, p-values, CPU seconds."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from tests.performance.optimizers.ranking import Table, beaten, mean_ranks, p_over_problems, p_over_runs, ranks
from tests.performance.optimizers.store import StoredRun


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
    _print_regrets(console, setting, table, problems, order)
    full = mean_ranks(table, problems)
    summary = RichTable(title=f"{setting}: over {len(problems)} problems", title_justify="left")
    for heading in (
        "runner",
        "mean rank",
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
            runner, _rank(table, runner, full, problems), *versus.cells, _short(cpu), _seeds(counts[runner])
        )
        figures["regret"][runner] = {
            problem: _json(statistics.median(values)) for problem, values in table[runner].items()
        }
        figures["rank"][runner] = full.get(runner)
        figures["cpu_seconds"][runner] = cpu
        figures["p"][runner] = {"runs": versus.over_runs, "problems": versus.over_problems}
    console.print(summary)
    return figures


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
