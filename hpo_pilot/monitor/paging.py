"""Pages of long lists: which rows, and the addresses of the pages before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Paging:
    """Where a page is among all.

    Attributes:
        total: rows in all.
        first: the place of its first row, from 1; 0: there is none.
        last: of its last one.
        pages: how many there are.
        before: the address of the page before; empty: none.
        next: of the next one.
    """

    total: int
    first: int
    last: int
    pages: int
    before: str
    next: str


@dataclass(frozen=True)
class Page(Generic[_Row]):
    """A page's rows, and where they are."""

    rows: Sequence[_Row]
    paging: Paging


def paged(rows: Sequence[_Row], size: int, asked: str, path: str, query: Mapping[str, str]) -> Page[_Row]:
    """The page that was asked for, or the nearest one.

    Args:
        rows: all.
        size: rows of a page.
        asked: its number, from 1, as the address has it.
        path: of the list.
        query: what else the address says; empty values are left out.
    """
    pages = max(1, -(-len(rows) // size))
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 1
    number = min(max(1, wanted), pages)
    start = (number - 1) * size
    some = rows[start : start + size]
    kept = {key: value for key, value in query.items() if value}

    def address(other: int) -> str:
        if not 1 <= other <= pages:
            return ""
        said = urlencode({**kept, "page": str(other)} if other > 1 else kept)
        return f"{path}?{said}" if said else path

    first = start + 1 if some else 0
    return Page(some, Paging(len(rows), first, start + len(some), pages, address(number - 1), address(number + 1)))
