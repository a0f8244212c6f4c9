"""What `run` and `status --watch` show while a search runs: a live bar on a terminal, plain lines in a log."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hpo_pilot.cli.show import advised, front_text, printable, value_text
from hpo_pilot.client.documents import OVER_SEARCHES, ProgressDocument, is_unsteered, over_count
from hpo_pilot.client.search_client import SearchClient

#: In a log, a line at least this often, in seconds, and otherwise one per tenth of the budget.
_LINE_SECONDS = 30.0

#: Characters of a failure's reason.
_REASON = 300


class RunProgress:
    """Called with news of a search; draws what has changed."""

    def __init__(self, console: Console, client: SearchClient) -> None:
        """Draws on `console`, live only where that is a terminal; `client` has the search."""
        self._console = console
        self._client = client
        self._told: set[tuple[int, str]] = set()
        self._unsteered = False
        self._bar: Progress | None = None
        self._line_at = 0.0
        self._shown = -1
        self._said: set[str] = set()

    def __call__(self, now: ProgressDocument) -> None:
        """Shows the search as it stands."""
        best, failed = now["best"], now["trials"].get("failed", 0)
        found = "no result yet" if best is None else f"best {now['metric']} {value_text(best)}"
        if front := now.get("front"):
            found = front_text(front)
        if not now["id"]:  # a family: its models are not compared
            found = f"state {now['state']}"
        note = printable(found + (f", {failed} failed" if failed else ""))
        show = self._draw if self._console.is_terminal else self._print
        show(now["name"], over_count(now), now["total"], note, ended=now["state"] in OVER_SEARCHES)
        self._say(now)

    def _say(self, now: ProgressDocument) -> None:
        """Says what somebody should do something about, each once."""
        name = now["name"]
        for failure in now.get("failures", ()):
            reason = " ".join(failure["error"].split())
            if (failure["trial"], reason) in self._told:
                continue
            more = f" (`hpo-pilot trials {name} --log` shows more)" if now["id"] and not self._told else ""
            self._told.add((failure["trial"], reason))
            shown = reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"
            self._line(f"{name}: trial {failure['trial']} failed: {shown}{advised(more)}")
        for remark in now.get("remarks", ()):
            if remark not in self._said:
                self._said.add(remark)
                self._line(f"{name}: {advised(remark)}")
        unsteered = is_unsteered(now) and now["state"] != "paused"
        if unsteered and not self._unsteered:
            self._line(f"{name}: nothing steers it now: {advised(self._client.how_to_steer(name))}")
        self._unsteered = unsteered

    def _line(self, text: str) -> None:
        self._console.print(printable(text), highlight=False, markup=False, soft_wrap=True)

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
            self._bar.add_task(name, total=total, note=note)
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
