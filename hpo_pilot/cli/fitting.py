"""Tables that are wider than the terminal: fewer digits, then shorter heads; never a number cut in two."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

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
        if _width(heads, widths, gap) <= console.width:
            break
    else:
        gap = 1
        table.padding = (0, 1, 0, 0)
    left_out: list[str] = []
    while keep is not None and len(heads) > keep and _width(_shortest(heads), widths, gap) > console.width:
        left_out.insert(0, heads.pop())
        widths.pop()
        table.columns.pop()
    while _width(heads, widths, gap) > console.width:
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
        width=max(console.width, _width(heads, widths, gap)),
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


def _width(heads: list[str], widths: list[int], gap: int) -> int:
    gaps = gap * (len(heads) - 1)
    return sum(max(cell_len(head), width) for head, width in zip(heads, widths, strict=True)) + gaps
