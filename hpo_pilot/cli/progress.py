"""What `run` shows while it runs: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from hpo_pilot.search import Trial
    from hpo_pilot.store import SearchRecord, Store

#: In a log, a line at least this often, in seconds, and otherwise one per tenth of the budget.
_LINE_SECONDS = 30.0


class RunProgress:
    """Called about twice a second; draws what has changed."""

    def __init__(self, console: Console) -> None:
        """Draws on `console`; live only where that is a terminal."""
        self._console = console
        self._bar: Progress | None = None
        self._task: int = 0
        self._line_at = 0.0
        self._shown = -1
        self._counted = -1
        self._best = "no result yet"

    def __call__(self, store: Store, record: SearchRecord) -> None:
        """Shows the search as it stands."""
        from hpo_pilot.search import TrialState

        counts = store.counts(record.id)
        over = sum(count for state, count in counts.items() if state.is_over)
        failed = counts.get(TrialState.FAILED, 0)
        if over != self._counted:
            self._counted = over
            self._best = self._best_text(store, record)
        total = max(
            record.search.budget.trials, over, sum(counts.values()) if over >= record.search.budget.trials else 0
        )
        note = f"{self._best}" + (f", {failed} failed" if failed else "")
        if self._console.is_terminal:
            self._draw(record.name, over, total, note, ended=record.state.is_over)
        else:
            self._print(record.name, over, total, note, ended=record.state.is_over)

    def _best_text(self, store: Store, record: SearchRecord) -> str:
        objective = record.search.objective
        best = store.best_so_far(record.id, objective.sign)
        return "no result yet" if best is None else f"best {objective.metric} {figure_text(*best)}"

    def _draw(self, name: str, over: int, total: int, note: str, *, ended: bool) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("trials"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, note=note)
        self._bar.update(self._bar.task_ids[0], completed=over, total=total, note=note)
        if ended:
            self.close()

    def _print(self, name: str, over: int, total: int, note: str, *, ended: bool) -> None:
        tenth = max(1, total // 10)
        due = time.monotonic() >= self._line_at
        if over != self._shown and (due or ended or over // tenth != max(self._shown, 0) // tenth or self._shown < 0):
            self._shown = over
            self._line_at = time.monotonic() + _LINE_SECONDS
            self._console.print(f"{name}: {over} of {total} trials, {note}", highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leaves the terminal in order."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def value_text(trial: Trial) -> str:
    """A trial's value with the spread of its folds."""
    return "-" if trial.value is None else figure_text(trial.value, trial.std)


def figure_text(value: float, std: float | None) -> str:
    """A figure of merit with its spread."""
    return f"{value:.6g}" + (f" ± {std:.2g}" if std is not None else "")
