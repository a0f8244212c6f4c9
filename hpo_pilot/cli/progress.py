"""Live displays of a search: the progress of `run`, the screen of `status --watch`."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hpo_pilot.advice import printable
from hpo_pilot.cli.output import DIGITS, advised, metrics_of, next_step, outlook_rows
from hpo_pilot.errors import TryAgainError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.report.documents import OVER_SEARCHES, ProgressDocument, SearchDocument, StatusDocument, is_unsteered
from hpo_pilot.report.formatting import best_text, count, front_text, number, ranked_text, result_text, shortened, whole

if TYPE_CHECKING:
    from rich.console import RenderableType


#: Seconds after which a log gets a line; it also gets one per tenth of the budget.
_LINE_SECONDS = 30.0

#: The most characters of a failure's reason.
_REASON = 300


class RunProgress:
    """Shows the progress of a search; called with each new document."""

    def __init__(self, console: Console, client: SearchClient) -> None:
        """Draws on `console`, live only on a terminal; `client` is the client of the search."""
        self._console = console
        self._client = client
        self._told: set[tuple[int, str]] = set()
        self._unsteered = False
        self._bar: Progress | None = None
        self._line_at = 0.0
        self._shown = -1
        self._said: set[str] = set()

    def __call__(self, now: ProgressDocument) -> None:
        """Shows the present progress."""
        # The searches of a family are not compared.
        note = printable(result_text(now, DIGITS) if now["id"] else f"state {now['state']}")
        show = self._draw if self._console.is_terminal else self._print
        show(now["name"], now["over"], now["total"], note, ended=now["state"] in OVER_SEARCHES)
        self._say(now)

    def _say(self, now: ProgressDocument) -> None:
        """Prints each failure and remark that needs attention, once."""
        name = now["name"]
        for failure in now.get("failures", ()):
            reason = " ".join(failure["error"].split())
            if (failure["trial"], reason) in self._told:
                continue
            more = f" (`hpo-pilot trials {name} --log` shows more)" if now["id"] and not self._told else ""
            self._told.add((failure["trial"], reason))
            self._line(f"{name}: trial {failure['trial']} failed: {shortened(reason, _REASON)}{advised(more)}")
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
            self._line(f"{name}: {whole(over)} of {count(total, 'trial')}, {note}")

    def close(self) -> None:
        """Restores the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


_STYLES = {"running": "bold green", "done": "bold green", "failed": "bold red", "paused": "bold yellow"}

#: Width of the headings, and the largest width of a bar.
_HEADING = 10
_BAR = 40

#: The most rows of one text, such as an error.
_LINES = 2


def dashboard(search: StatusDocument, step: str, width: int, *, now: datetime, trouble: str = "") -> RenderableType:
    """Returns one screen of `status --watch`.

    Args:
        search: document of a search or a family.
        step: next step for the user; empty: none.
        width: columns of the screen.
        now: time to show.
        trouble: why the document is not current; empty: it is.
    """
    head = Text(search["name"], style="bold", no_wrap=True, overflow="ellipsis")
    head.append("  ")
    if is_unsteered(search):
        head.append(f"{search['state']}, not steered", style="bold red")
    else:
        head.append(search["state"], style=_STYLES.get(search["state"], "bold"))
    head.append(f"  {search['owner']}  {now:%H:%M:%S}", style="dim")
    rows = Table.grid(padding=(0, 1, 0, 0))
    rows.add_column(width=_HEADING, style="dim", no_wrap=True)
    rows.add_column(ratio=1, overflow="fold")
    room = max(10, width - _HEADING - 1)
    for heading, text in _rows(search, room):
        shown = text if isinstance(text, Text) else Text(text)
        shown.truncate(_LINES * room, overflow="ellipsis")
        rows.add_row(heading, shown)
    segments: list[StatusDocument] = search.get("segments", [])
    for segment in segments:
        rows.add_row("", _segment(segment, room))
    if trouble:
        rows.add_row("trouble", Text(printable(trouble), style="red"))
    if step:
        rows.add_row("next", printable(advised(step)))
    return Group(head, rows, Text("Ctrl-C stops the display, not the search", style="dim", no_wrap=True))


def _rows(search: StatusDocument, room: int) -> Iterator[tuple[str, str | Text]]:
    """Yields (heading, text) of each row that has content."""
    if search["message"]:
        yield "", printable(advised(search["message"])).replace("\n", " ")
    yield "trials", _progress(search, room)
    if "segments" not in search:
        yield from _results(search, room)
        yield "slots", _slots(search, room)
    if beyond := search["trials"].get("infeasible"):
        yield "infeasible", f"{count(beyond, 'trial')} not known to be within the limits"
    if search["trials"].get("failed"):
        yield "failed", _failures(search)
    if is_unsteered(search):
        yield "left", "not known: nothing steers it now"
    elif search["state"] == "running" and not search.get("eta"):
        yield "left", "no result yet to judge by"
    for heading, text in outlook_rows(search):
        yield heading, printable(text).replace("\n", " ")


def _progress(search: SearchDocument, room: int) -> Text:
    over, planned = search["over"], search["planned"]
    text = f" {whole(over)} of {whole(planned)}"
    if again := search.get("confirmations"):
        text += f", {count(again, 'confirmation')} among them"
    bar = _progress_bar(over, planned, min(_BAR, room - len(text)))
    bar.append(text)
    return bar


def _progress_bar(part: int, whole: int, cells: int) -> Text:
    cells = max(1, cells)
    full = min(cells, cells * part // max(1, whole))
    bar = Text("━" * full, style="green", no_wrap=True, overflow="ellipsis")
    bar.append("╌" * (cells - full), style="dim")
    return bar


def _results(search: StatusDocument, room: int) -> Iterator[tuple[str, str | Text]]:
    if found := search["best"]:
        yield "best", f"{metrics_of(search)[0]} {best_text(found, DIGITS)}, trial {found['number']}"
    elif front := search.get("front"):
        yield "best", front_text(len(front["trials"]), front["hypervolume"])
    else:
        yield "best", "no result yet"
    course = search.get("course")
    if course and len(course) > 1:
        ends = (number(course[0]), number(course[-1]))
        bars = sparkline(course, max(4, room - sum(map(len, ends)) - 2))
        line = Text(f"{ends[0]} ", no_wrap=True, overflow="ellipsis")
        line.append(bars, style="cyan")
        line.append(f" {ends[1]}")
        yield "so far", line


def _slots(search: StatusDocument, room: int) -> Text:
    running, pending = (search["trials"].get(state, 0) for state in ("running", "pending"))
    parallel = search["budget"]["parallel"]
    text = f" {running} of {parallel} run" + (f", {pending} wait" if pending else "")
    boxes = min(parallel, 20, room - len(text))
    used = min(boxes, -(-boxes * running // parallel))
    line = Text("■" * used, style="green", no_wrap=True, overflow="ellipsis")
    line.append("□" * (boxes - used), style="dim")
    line.append(text if boxes > 0 else text.strip())
    return line


def _failures(search: StatusDocument) -> Text:
    text = Text(whole(search["trials"]["failed"]), style="red")
    if failure := search.get("last_failure"):
        reason = " ".join(printable(failure["error"]).split())
        text.append(f"; the last was trial {failure['trial']}: {reason}", style="default")
    return text


def _segment(segment: StatusDocument, room: int) -> Text:
    best = segment["best"]
    value = f" {ranked_text(best, DIGITS)}" if best else ""
    state = f"{segment['state']} (not steered)" if is_unsteered(segment) else segment["state"]
    text = f" {whole(segment['over'])} of {whole(segment['planned'])} {state}{value}"
    name = segment["name"]
    line = Text(f"{name} ", no_wrap=True, overflow="ellipsis")
    line.append_text(_progress_bar(segment["over"], segment["planned"], min(12, room - len(name) - len(text) - 1)))
    line.append(text)
    return line


#: Seconds between two looks, and seconds to wait for a store or service that is out of reach.
_LOOK = 1.0
_PATIENCE = 120.0

#: Seconds between two redraws: the screen follows a change of its size.
_REDRAW = 0.25


def can_watch(console: Console) -> bool:
    """Returns whether the console can redraw a screen: it is a terminal that is not dumb, and not a pipe."""
    return console.is_terminal and not console.is_dumb_terminal


def watch_search(client: SearchClient, identity: str, console: Console) -> None:
    """Shows a search on the terminal's alternate screen, until the search is over.

    Raises:
        InputError: there is no such search.
        TryAgainError: Ctrl-C was pressed, or the search was out of reach for two minutes.
    """
    search = client.status(identity)
    try:
        with _ended_by_signals(), Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False) as live:
            _show_screen(client, search, live)
    except KeyboardInterrupt:
        raise TryAgainError(f"no longer watching search {search['name']!r}; it continues") from None


def _show_screen(client: SearchClient, search: StatusDocument, live: Live) -> None:
    identity, seen, trouble = search["name"], time.monotonic(), ""
    step = next_step(client, search)
    while search["state"] not in OVER_SEARCHES:
        until = time.monotonic() + _LOOK
        while (left := until - time.monotonic()) > 0:
            width = live.console.width
            screen = dashboard(search, step, width, now=datetime.now().astimezone(), trouble=trouble)
            live.update(screen, refresh=True)
            time.sleep(min(_REDRAW, left))
        try:
            search, trouble, seen = client.status(identity), "", time.monotonic()
            step = next_step(client, search)
        except TryAgainError as error:
            trouble = str(error)
            if time.monotonic() - seen > _PATIENCE:
                raise


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets signals that end the process end the block first, so that the terminal is restored."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    old = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns a line of bars for at most `width` evenly spaced values, always with the last one."""
    finite = [value for value in values if math.isfinite(value)]
    count = min(width, len(finite))
    if count < 1:
        return ""
    chosen = [finite[-1 - (len(finite) - 1) * (count - 1 - i) // max(1, count - 1)] for i in range(count)]
    # Halved: the difference of two large floats may overflow.
    low, high = min(chosen) / 2, max(chosen) / 2
    if high <= low:
        return _BARS[0] * count
    return "".join(_BARS[round((value / 2 - low) / (high - low) * (len(_BARS) - 1))] for value in chosen)
