"""Prints results: tables and texts for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpo_pilot.advice import Place, printable
from hpo_pilot.errors import InputError
from hpo_pilot.files import write_whole
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.report.documents import OVER_SEARCHES, SearchDocument, StatusDocument, is_unsteered
from hpo_pilot.report.formatting import cost_text, count, time_left
from hpo_pilot.report.json_text import in_parts, json_list

#: Width of output that is not a terminal: wider than any table.
_NO_TERMINAL = 1_000_000

#: The place of the searches that the options of the running command name.
_command_place: ContextVar[Place] = ContextVar("place", default=Place())  # noqa: B039  it is frozen

#: Version of the documents that ``--json`` prints; it increases when a key is removed or changes its meaning.
JSON_VERSION = 1


def advised(text: str) -> str:
    """Returns `text` with the options that its commands need to find the searches of the running command."""
    return _command_place.get().completed(text)


@contextmanager
def about_place(options: Mapping[str, Any]) -> Iterator[None]:
    """Sets the options of the running command for the length of a block."""
    token = _command_place.set(Place(**{field.name: options.get(field.name) for field in fields(Place)}))
    try:
        yield
    finally:
        _command_place.reset(token)


def console() -> Console:
    """Returns the console for tables; they must fit its width only on a terminal."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    return Console(width=_NO_TERMINAL, soft_wrap=True, highlight=False, markup=False)


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Prints rows of texts, without control characters; a terminal wraps the texts that come last."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        for number in range(len(table.columns), len(row)):
            table.add_column(no_wrap=number < len(row) - 1, overflow="fold")
        table.add_row(*map(printable, row))
    out = console()
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        typer.echo(line.rstrip())  # the table fills each line with blanks


def dump(document: Any) -> None:
    """Prints a document as JSON, an object with its version. `schemas/cli` has the schema of each document."""
    versioned = {"version": JSON_VERSION, **document} if isinstance(document, Mapping) else document
    dump_plain(versioned)


def dump_each(documents: Iterable[Any]) -> None:
    """Prints documents as one JSON list, while they are read."""
    for part in in_parts(json_list(documents)):
        typer.echo(part, nl=False)
    typer.echo()


def dump_plain(document: Any) -> None:
    """Prints a document without a version of ours, such as task parameters, as JSON."""
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def metrics_of(search: Mapping[str, Any]) -> list[str]:
    """Returns the metrics of a search, one for each objective."""
    objective = search["objective"]
    return [each["metric"] for each in (objective if isinstance(objective, list) else [objective])]


def outlook_rows(search: StatusDocument) -> Iterator[tuple[str, str]]:
    """Yields (heading, text) of the rows of `status` and of its live display that say what a search takes and does."""
    yield "cost", cost_text(search["cost"], search["budget"], search.get("hours_used"))
    if eta := search.get("eta"):
        end = datetime.fromisoformat(eta["end"]).astimezone()
        day = "" if end.date() == datetime.now().astimezone().date() else f"{end:%a %d %b} "
        left = time_left(eta["seconds"], eta["earliest"], eta["latest"])
        yield "left", f"{left} ({day}{end:%H:%M}), {eta['basis']}"
    if state := search.get("optimizer_state"):
        yield "optimizer", state
    if wishes := search.get("wishes"):
        yield "requested", f"{count(len(wishes), 'point')} will run next"
    if by := search.get("steered_by"):
        since = datetime.fromisoformat(by["since"]).astimezone()
        yield "steered by", f"hpo-pilot {by['mode']}, process {by['pid']} on {by['host']}, since {since:%a %d %b %H:%M}"
    if link := search.get("monitor"):
        yield "monitor", link
    for remark in search.get("remarks", ()):
        yield "remark", advised(remark)


_GAP = 2

#: Digits of figures in a terminal, from which people copy them.
DIGITS = 6

#: Digits of figures in a table, from the best to the fewest that still distinguish trials; the shortest heading.
_DIGITS = (DIGITS, 4, 3)
_SHORTEST_HEAD = 4


@dataclass
class Column:
    """A column of a table.

    Attributes:
        head: heading.
        rank: 0: always shown; on a narrow terminal columns with the largest rank are left out first.
        least: the fewest cells to which its texts may be shortened; None: they are not shortened.
        tail: keep the ends of shortened texts, as for paths, instead of their beginnings.
    """

    head: str
    rank: int = 0
    least: int | None = None
    tail: bool = False
    cells: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Width of the widest text, in cells."""
        return max(map(cell_len, (self.head, *self.cells)))


def add_row(table: Sequence[Column], cells: Sequence[str]) -> None:
    """Adds a row to a table, without control characters."""
    for column, cell in zip(table, cells, strict=True):
        column.cells.append(printable(cell))


def print_columns(console: Console, columns: Sequence[Column]) -> list[str]:
    """Prints a table; a terminal gets what fits its width, other output the whole table.

    Returns:
        The headings of the columns that were left out.
    """
    shown = list(columns)
    while True:
        widths = [column.width for column in shown]
        spare = [0 if column.least is None else max(0, column.width - column.least) for column in shown]
        over = _table_width(shown) - console.width
        last = max(range(len(shown)), key=lambda index: (shown[index].rank, index))
        if sum(spare) >= over or shown[last].rank == 0:
            break
        del shown[last]
    while over > 0 and max(spare) > 0:
        longest = max((index for index, each in enumerate(spare) if each > 0), key=widths.__getitem__)
        widths[longest] -= 1
        spare[longest] -= 1
        over -= 1
    for number, row in enumerate(zip(*((column.head, *column.cells) for column in shown), strict=True)):
        cells = [_fitted(text, width, column.tail) for text, width, column in zip(row, widths, shown, strict=True)]
        line = (" " * _GAP).join(set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True))
        # A line that is still too long is wrapped by the terminal; nothing is cut.
        console.print(Text(line.rstrip(), style="" if number else "bold"), soft_wrap=True)
    return [column.head for column in columns if column not in shown]


def print_fitting(console: Console, columns_of: Callable[[int], Sequence[Column]]) -> list[str]:
    """Prints a table with as many digits as fit the console; shortens headings, but no cell.

    Args:
        console: console for the table.
        columns_of: makes the table from a number of digits.

    Returns:
        The headings of the columns that were left out.
    """
    columns = next((made for digits in _DIGITS if _table_width(made := columns_of(digits)) <= console.width), None)
    if columns is None:
        columns = columns_of(_DIGITS[-1])
        for column in columns:
            column.least = max([_SHORTEST_HEAD, *map(cell_len, column.cells)])
    return print_columns(console, columns)


def _table_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _fitted(text: str, width: int, tail: bool) -> str:
    if cell_len(text) <= width:
        return text
    if not tail:
        return set_cell_size(text, width - 1) + "…"
    while cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text


def next_step(client: SearchClient, search: SearchDocument) -> str:
    """Returns the next step for a user, a sentence with a command; empty if the user only has to wait.

    Args:
        client: client of the search.
        search: document of `status` or `list`.
    """
    name, state, failed = search["name"], search["state"], search["trials"].get("failed", 0)
    has_result = search["trials"].get("finished", 0) > 0
    if is_unsteered(search):
        first = f"`hpo-pilot resume {name}`, then " if state == "paused" else ""
        return first + client.how_to_steer(name)
    if state == "submitted":
        return f"it starts in a moment; `hpo-pilot status {name} --watch` shows its progress"
    if state == "paused":
        return f"`hpo-pilot resume {name}` continues it"
    if state == "failed":
        return f"`hpo-pilot trials {name}` shows why; correct it, then `hpo-pilot resume {name} --new-payload`"
    if state in ("done", "stopped") and has_result:
        return f"`hpo-pilot best {name}`, `hpo-pilot report {name}`; `hpo-pilot extend {name} --trials +N` continues it"
    if state == "stopped":
        return f"`hpo-pilot resume {name}` continues it"
    if failed:
        return f"`hpo-pilot trials {name} --log` says why trials failed; `hpo-pilot retry {name}` tries them again"
    return ""


def goes_on(client: SearchClient, search: SearchDocument) -> str:
    """Returns what happens next after a change of a search, or what the user has to do."""
    name, state = search["name"], search["state"]
    if state == "paused":
        return f"it is paused: `hpo-pilot resume {name}` continues it"
    if state in OVER_SEARCHES:
        return f"it is {state}: `hpo-pilot extend {name} --trials +N` continues it"
    if is_unsteered(search):
        return f"nothing steers it now: {client.how_to_steer(name)}"
    return f"`hpo-pilot status {name} --watch` shows its progress"


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Writes a text, or its parts, into a file: all or nothing; keeps links, pipes and devices such as /dev/null.

    Raises:
        InputError: it cannot be written there.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines([text] if isinstance(text, str) else text)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
