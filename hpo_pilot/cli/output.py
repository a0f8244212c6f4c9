"""Prints results: tables and texts for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpo_pilot.advice import Place
from hpo_pilot.report.documents import OVER_SEARCHES, CostDocument, SearchDocument, StatusDocument, is_unsteered
from hpo_pilot.web.operations import SearchClient

if TYPE_CHECKING:
    from hpo_pilot.report.documents import EtaDocument


#: Columns of a terminal that nobody looks at: more than any table has.
_NO_TERMINAL = 1_000_000

#: Where the searches are that the running command is about, as its options say.
_command_place: ContextVar[Place] = ContextVar("place", default=Place())  # noqa: B039  it is frozen

#: The version of what ``--json`` prints; it grows where a key goes or changes its meaning.
JSON_VERSION = 1

#: What a hypervolume of nothing means.
NOTHING_BEYOND = "no trial is better than the reference point in every objective: the hypervolume is 0"


def advised(text: str) -> str:
    """`text` with the options that commands in it need to mean the searches that the running command is about."""
    return _command_place.get().completed(text)


@contextmanager
def about_place(options: Mapping[str, Any]) -> Iterator[None]:
    """For the length of a block, `options` are those that the running command was given."""
    token = _command_place.set(Place(**{field.name: options.get(field.name) for field in fields(Place)}))
    try:
        yield
    finally:
        _command_place.reset(token)


def console() -> Console:
    """Where tables go; only on a terminal do they have to fit."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False)
    return Console(width=_NO_TERMINAL, soft_wrap=True, highlight=False, markup=False)


def dump(document: Any) -> None:
    """Prints a document as JSON; an object says of which version it is. `schemas/cli` has the schema of each."""
    versioned = {"version": JSON_VERSION, **document} if isinstance(document, Mapping) else document
    dump_plain(versioned)


def dump_plain(document: Any) -> None:
    """Prints a document that is not ours to number, such as a task's parameters, as JSON."""
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def value_text(trial: Mapping[str, Any], digits: int = 6) -> str:
    """The value of a trial, or of a figure of merit, with the spread of its folds; of several, with commas between."""
    return ", ".join(value_texts(trial, 1, digits))


def value_texts(trial: Mapping[str, Any], objectives: int, digits: int = 6) -> list[str]:
    """The value of a trial for each objective, with the spread of its folds; as many dashes where it has none."""
    values, stds = trial["value"], trial["std"]
    if values is None:
        return ["-"] * objectives
    if not isinstance(values, list):
        values, stds = [values], [stds]
    return [figure_text(value, std, digits) for value, std in zip(values, stds or [None] * len(values), strict=True)]


def metrics_of(search: Mapping[str, Any]) -> list[str]:
    """The metrics of a search's document, one for each objective."""
    objective = search["objective"]
    return [each["metric"] for each in (objective if isinstance(objective, list) else [objective])]


def eta_text(eta: EtaDocument) -> str:
    """When a search will probably be over: in how long, at what time, and by what that is judged."""
    from hpo_pilot.search.trials import duration_text

    end = datetime.fromisoformat(eta["end"]).astimezone()
    day = "" if end.date() == datetime.now().astimezone().date() else f"{end:%a %d %b} "
    return f"{duration_text(eta['seconds'])} ({day}{end:%H:%M}), {eta['basis']}"


def front_text(front: Mapping[str, Any]) -> str:
    """How large a Pareto front is."""
    size = front["size"] if "size" in front else len(front["trials"])
    return f"{counted(size, 'trial')} on the front, hypervolume {front['hypervolume']:.6g}"


def figure_text(value: float, std: float | None, digits: int = 6) -> str:
    """A figure of merit with its spread."""
    return f"{value:.{digits}g}" + (f" ± {std:.2g}" if std is not None else "")


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_GAP = 2


@dataclass
class Column:
    """A column.

    Attributes:
        head: above it.
        rank: 0: never left out; else the columns of the largest rank go first.
        least: down to how many cells its texts may be shortened; None: not at all.
        tail: where its texts are shortened, their ends are kept, as of paths.
    """

    head: str
    rank: int = 0
    least: int | None = None
    tail: bool = False
    cells: list[str] = field(default_factory=list)

    @property
    def wide(self) -> int:
        """Cells of the widest text."""
        return max(map(cell_len, (self.head, *self.cells)))


def print_columns(console: Console, columns: Sequence[Column]) -> None:
    """Prints a table; on a terminal it is as wide as that, elsewhere it is whole."""
    shown = list(columns)
    widths = [column.wide for column in shown]
    while (over := _table_width(widths) - console.width) > 0:
        pairs = zip(shown, widths, strict=True)
        spare = [0 if column.least is None else max(0, width - column.least) for column, width in pairs]
        if sum(spare) >= over or max(column.rank for column in shown) == 0:
            _shorten(widths, spare, over)
            break
        last = max(range(len(shown)), key=lambda index: (shown[index].rank, index))
        del shown[last], widths[last]
    for row in zip(*((column.head, *column.cells) for column in shown), strict=True):
        cells = [_fitted(text, width, column.tail) for text, width, column in zip(row, widths, shown, strict=True)]
        line = (" " * _GAP).join(set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True))
        style = "bold" if row == tuple(column.head for column in shown) else ""
        console.print(Text(line.rstrip(), style=style), soft_wrap=True)


def _table_width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _shorten(widths: list[int], spare: list[int], over: int) -> None:
    """Takes `over` cells from the columns that have some to spare, the longest first."""
    while over > 0 and max(spare) > 0:
        longest = max((index for index, each in enumerate(spare) if each > 0), key=widths.__getitem__)
        widths[longest] -= 1
        spare[longest] -= 1
        over -= 1


def _fitted(text: str, width: int, tail: bool) -> str:
    if cell_len(text) <= width:
        return text
    if not tail:
        return set_cell_size(text, width - 1) + "…"
    while cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text


#: Digits of numbers, from what is asked for to what still tells trials apart.
_DIGITS = (6, 4, 3)
_SHORTEST_HEAD = 4


def print_fitting(console: Console, table_of: Callable[[int], Table], *, keep: int | None = None) -> list[str]:
    """Prints a table with as many digits, and as much of its heads, as the console has room for.

    Args:
        console: where it goes.
        table_of: makes the table, of plain texts and without a box, with numbers of so many digits.
        keep: the first so many columns stay; of the others the last ones are left out where there is no room for all.
            None: all stay.

    Returns:
        The heads of the columns that were left out.
    """
    for digits in _DIGITS:
        table = table_of(digits)
        widths = [_cells(table, index) for index in range(len(table.columns))]
        heads = [str(column.header) for column in table.columns]
        gap = 2
        if _fitted_width(heads, widths, gap) <= console.width:
            break
    else:
        gap = 1
        table.padding = (0, 1, 0, 0)
    left_out: list[str] = []
    while keep is not None and len(heads) > keep and _fitted_width(_shortest(heads), widths, gap) > console.width:
        left_out.insert(0, heads.pop())
        widths.pop()
        table.columns.pop()
    while _fitted_width(heads, widths, gap) > console.width:
        spare = [cell_len(head) - max(width, _SHORTEST_HEAD) for head, width in zip(heads, widths, strict=True)]
        longest = max(range(len(heads)), key=spare.__getitem__)
        if spare[longest] <= 0:
            break
        heads[longest] = heads[longest].removesuffix("…")[: -1 if heads[longest].endswith("…") else -2] + "…"
    for column, head in zip(table.columns, heads, strict=True):
        column.header = head
        column.no_wrap = True
    # One that is too wide all the same is for the terminal to wrap: nothing of it is left out.
    Console(
        width=max(console.width, _fitted_width(heads, widths, gap)),
        file=console.file,
        force_terminal=console.is_terminal,
        highlight=False,
        markup=False,
    ).print(table)
    return left_out


def _shortest(heads: list[str]) -> list[str]:
    return [head[:_SHORTEST_HEAD] for head in heads]


def _cells(table: Table, index: int) -> int:
    """The columns that the widest cell below a head takes."""
    return max((cell_len(str(cell)) for cell in table.columns[index].cells), default=0)


def _fitted_width(heads: list[str], widths: list[int], gap: int) -> int:
    gaps = gap * (len(heads) - 1)
    return sum(max(cell_len(head), width) for head, width in zip(heads, widths, strict=True)) + gaps


def cost_rows(search: StatusDocument) -> list[tuple[str, str]]:
    """(heading, text) of what a search cost and gained; nothing from a service that does not tell."""
    cost = search.get("cost")
    if cost is None:
        return []
    rows = [("cost", cost_text(cost))]
    gain = search.get("gain")
    if gain is not None and cost["job_seconds"]:
        has_gpus = cost["gpu_hours"] > 0
        per_hour = gain["per_gpu_hour"] if has_gpus else gain["per_core_hour"]
        what = f"{gain['gain']:.4g} since the first result" if gain["first"] is not None else f"{gain['gain']:.4g}"
        unit = "GPU-hour" if has_gpus else "core-hour"
        rows += [("gain", f"{what}, {per_hour:.4g} per {unit}")] if per_hour is not None else []
    return rows


def cost_text(cost: CostDocument) -> str:
    """On one line."""
    parts = [f"{cost['gpu_hours']:.4g} GPU-hours"] if cost["gpu_hours"] else []
    parts.append(f"{cost['core_hours']:.4g} core-hours")
    if cost["energy_kwh"] is not None and cost["energy_source"] is not None:
        how = "measured in part" if cost["energy_source"] == "mixed" else cost["energy_source"]
        parts.append(f"{cost['energy_kwh']:.4g} kWh ({how})")
    return ", ".join(parts)


def next_step(client: SearchClient, search: SearchDocument) -> str:
    """A sentence with a command; empty where there is nothing to do but to wait.

    Args:
        client: where the search is.
        search: as `status` or `list` have it.
    """
    return advised(_next_step(client, search))


def goes_on(client: SearchClient, search: SearchDocument) -> str:
    """What happens by itself now that a search was changed, or what has to be done."""
    name, state = search["name"], search["state"]
    if state == "paused":
        text = f"it is paused: `hpo-pilot resume {name}` lets it go on"
    elif state in OVER_SEARCHES:
        text = f"it is {state}: `hpo-pilot extend {name} --trials +N` lets it go on"
    elif is_unsteered(search):
        text = f"nothing steers it now: {client.how_to_steer(name)}"
    else:
        text = f"`hpo-pilot status {name} --watch` shows how it goes"
    return advised(text)


def _next_step(client: SearchClient, search: SearchDocument) -> str:
    name, state, failed = search["name"], search["state"], search["trials"].get("failed", 0)
    has_result = search["trials"].get("finished", 0) > 0
    if is_unsteered(search):
        first = f"`hpo-pilot resume {name}`, then " if state == "paused" else ""
        return first + client.how_to_steer(name)
    if state == "submitted":
        return f"it begins in a moment; `hpo-pilot status {name} --watch` shows how it goes"
    if state == "paused":
        return f"`hpo-pilot resume {name}` lets it go on"
    if state == "failed":
        return f"`hpo-pilot trials {name}` shows why; mend it, then `hpo-pilot resume {name} --new-payload`"
    if state in ("done", "stopped") and has_result:
        return f"`hpo-pilot best {name}`, `hpo-pilot report {name}`; `hpo-pilot extend {name} --trials +N` goes on"
    if state == "stopped":
        return f"`hpo-pilot resume {name}` lets it go on"
    if failed:
        return f"`hpo-pilot trials {name} --log` says why trials failed; `hpo-pilot retry {name}` tries them again"
    return ""


def write_text(path: Path, text: str) -> None:
    """Writes a file whole, or not at all; a link stays one, and so does a pipe or a device, as /dev/null.

    Raises:
        InputError: it cannot be written there.
    """
    from hpo_pilot.errors import InputError
    from hpo_pilot.files import write_whole

    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
