"""How a search stands, on one screen: what `status --watch` shows while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hpo_pilot.cli.show import advised, counted, eta_text, figure_text, front_text, metrics_of, printable, value_text
from hpo_pilot.cli.sparkline import sparkline
from hpo_pilot.client.documents import SearchDocument, StatusDocument, is_unsteered, over_count, planned_count

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"running": "bold green", "done": "bold green", "failed": "bold red", "paused": "bold yellow"}

#: Columns of the headings, and of a bar at most.
_HEADING = 10
_BAR = 40

#: Rows of a screen that one text takes at most, such as an error.
_LINES = 2


def dashboard(search: StatusDocument, step: str, width: int, *, now: datetime, trouble: str = "") -> RenderableType:
    """One screen.

    Args:
        search: the search, or a family.
        step: what to do next; empty: nothing.
        width: columns of the screen.
        now: the time that is shown.
        trouble: why this is not the newest; empty: it is.
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
        rows.add_row("next", printable(step))
    return Group(head, rows, Text("Ctrl-C ends the watching, not the search", style="dim", no_wrap=True))


def _rows(search: StatusDocument, room: int) -> Iterator[tuple[str, str | Text]]:
    """(heading, text) of each row that there is something to say in."""
    if search["message"]:
        yield "", printable(advised(search["message"])).replace("\n", " ")
    yield "trials", _progress(search, room)
    if "segments" not in search:
        yield from _results(search, room)
        yield "slots", _slots(search, room)
    if search["trials"].get("failed"):
        yield "failed", _failures(search)
    yield "cost", "; ".join(_costs(search))
    if (eta := search.get("eta")) is not None:
        yield "left", f"about {eta_text(eta)}"
    elif is_unsteered(search):
        yield "left", "not known: nothing steers it now"
    elif search["state"] == "running":
        yield "left", "no result yet to judge by"
    if state := search.get("optimizer_state"):
        yield "optimizer", printable(state)
    if wishes := search.get("wishes"):
        yield "asked for", f"{counted(len(wishes), 'point')} to go out next"
    if link := search.get("monitor"):
        yield "monitor", printable(link)
    for remark in search.get("remarks", ()):
        yield "remark", printable(advised(remark)).replace("\n", " ")


def _progress(search: SearchDocument, room: int) -> Text:
    over, planned = over_count(search), planned_count(search)
    text = f" {over} of {planned}"
    if again := search.get("confirmations"):
        text += f", {counted(again, 'confirmation')} among them"
    bar = _bar(over, planned, min(_BAR, room - len(text)))
    bar.append(text)
    return bar


def _bar(part: int, whole: int, cells: int) -> Text:
    cells = max(1, cells)
    full = min(cells, cells * part // max(1, whole))
    bar = Text("━" * full, style="green", no_wrap=True, overflow="ellipsis")
    bar.append("╌" * (cells - full), style="dim")
    return bar


def _results(search: StatusDocument, room: int) -> Iterator[tuple[str, str | Text]]:
    if found := search["best"]:
        yield "best", f"{metrics_of(search)[0]} {value_text(found)}, trial {found['number']}"
    elif front := search.get("front"):
        yield "best", front_text(front)
    else:
        yield "best", "no result yet"
    course = search.get("course")
    if course and len(course) > 1:
        ends = (figure_text(course[0], None, 4), figure_text(course[-1], None, 4))
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
    text = Text(str(search["trials"]["failed"]), style="red")
    if failure := search.get("last_failure"):
        reason = " ".join(printable(failure["error"]).split())
        text.append(f"; the last was trial {failure['trial']}: {reason}", style="default")
    return text


def _costs(search: StatusDocument) -> Iterator[str]:
    """What was spent, of what is allowed where there is a limit."""
    budget: dict[str, Any] = search["budget"]
    cost = search.get("cost")
    for key, unit in (("gpu_hours", "GPU-hours"), ("core_hours", "core-hours")):
        used = 0.0 if cost is None else cost[key]  # type: ignore[literal-required]  # one of these two
        if (limit := budget.get(key)) is not None:
            yield f"{used:.3g} of {limit:g} {unit} ({100 * used / limit:.0f} %)"
        elif used:
            yield f"{used:.3g} {unit}"
    if cost is not None and cost["energy_kwh"] is not None and cost["energy_source"] is not None:
        yield f"{cost['energy_kwh']:.3g} kWh"
    if (limit := budget.get("hours")) is not None and (hours := search.get("hours_used")) is not None:
        yield f"{hours:.2g} of {limit:g} hours ({100 * hours / limit:.0f} %)"
    if cost is None or not (cost["core_hours"] or cost["gpu_hours"]):
        yield f"{search['job_seconds']:.0f} s of job time"


def _segment(segment: StatusDocument, room: int) -> Text:
    best = segment["best"]
    value = f" {value_text(best)}" if best else ""
    state = f"{segment['state']} (not steered)" if is_unsteered(segment) else segment["state"]
    text = f" {over_count(segment)} of {planned_count(segment)} {state}{value}"
    name = segment["name"]
    line = Text(f"{name} ", no_wrap=True, overflow="ellipsis")
    line.append_text(_bar(over_count(segment), planned_count(segment), min(12, room - len(name) - len(text) - 1)))
    line.append(text)
    return line
