"""Tables of texts that fit the terminal: long texts are shortened, then the least wanted columns are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

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
    while (over := _width(widths) - console.width) > 0:
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


def _width(widths: Sequence[int]) -> int:
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
