"""What a search has from earlier ones, as rows of `earlier_results`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select

from hpo_pilot.search.earlier import EarlierResults
from hpo_pilot.store import tables as t


def add_earlier(connection: Connection, search_id: int, earlier: Sequence[EarlierResults]) -> None:
    """Stores them with a search that is being registered."""
    for number, one in enumerate(earlier):
        connection.execute(
            insert(t.earlier_results).values(
                search_id=search_id,
                number=number,
                source=one.source,
                results=[list(result) for result in one.results],
                notes=list(one.notes),
            )
        )


def earlier_of(connection: Connection, search_id: int) -> list[EarlierResults]:
    """What a search has from earlier ones, in the order of its file."""
    table = t.earlier_results
    rows = connection.execute(select(table).where(table.c.search_id == search_id).order_by(table.c.number))
    return [
        EarlierResults(
            row.source,
            tuple((point, _tuple(values), _tuple(errors), stopped) for point, values, errors, stopped in row.results),
            tuple(row.notes),
        )
        for row in rows
    ]


def _tuple(numbers: list[float] | None) -> tuple[float, ...] | None:
    return None if numbers is None else tuple(numbers)
