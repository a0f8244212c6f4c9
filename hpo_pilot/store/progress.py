"""The rows of progress, one a search: reads and writes them, and computes rows that are missing or out of date."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, Row, bindparam, func, insert, select, update

from hpo_pilot.databases import among
from hpo_pilot.search.progress import ProgressTracker, SearchProgress
from hpo_pilot.store import tables as t
from hpo_pilot.store.database import IN_PARTS, reading, writing
from hpo_pilot.store.queries import spent_in
from hpo_pilot.store.records import stored_search, trial_record

if TYPE_CHECKING:
    from hpo_pilot.search.search import Search

#: Version of the computation: rows of another version are computed anew. Increase it if a field changes its meaning.
VERSION = 1

_OUT_OF_DATE = 0
_NAMES = [field.name for field in fields(SearchProgress)]
#: Made once: to make it takes as long as to execute it, and it is executed with every result.
_CHANGE = (
    update(t.progress)
    .where(t.progress.c.search_id == bindparam("of_search"))
    .values({name: bindparam(name) for name in ("version", *_NAMES)})
)


def progress_of(engine: Engine, search_id: int) -> SearchProgress:
    """Returns the progress of a search."""
    return all_progress(engine, [search_id])[search_id]


def all_progress(engine: Engine, search_ids: Collection[int]) -> dict[int, SearchProgress]:
    """Returns the progress of these searches by number, without searches that do not exist."""
    query = select(t.progress).where(among(t.progress.c.search_id, search_ids), t.progress.c.version == VERSION)
    with reading(engine) as connection:
        found = {row.search_id: _value(row) for row in connection.execute(query)}
    for missing in sorted(set(search_ids) - found.keys()):
        with writing(engine) as connection:
            row = connection.execute(select(t.searches).where(t.searches.c.id == missing).with_for_update()).first()
            if row is not None:
                search = stored_search(row.definition)
                found[missing] = computed_progress(connection, missing, search)
                write_progress(connection, missing, found[missing])
    return found


def stored_progress(engine: Engine, search_id: int) -> SearchProgress | None:
    """Returns the row of a search; None: it is missing or out of date."""
    with reading(engine) as connection:
        return progress_in(connection, search_id)


def progress_in(connection: Connection, search_id: int) -> SearchProgress | None:
    """Returns the row as `stored_progress`, within the caller's transaction."""
    query = select(t.progress).where(t.progress.c.search_id == search_id, t.progress.c.version == VERSION)
    row = connection.execute(query).first()
    return None if row is None else _value(row)


def write_progress(connection: Connection, search_id: int, progress: SearchProgress | None) -> None:
    """Writes the row of a search; None: the trials change in a way that the caller has not computed."""
    if progress is None:
        this = t.progress.c.search_id == search_id
        connection.execute(update(t.progress).where(this).values(version=_OUT_OF_DATE))
        return
    row = {"version": VERSION} | {name: getattr(progress, name) for name in _NAMES}
    if not connection.execute(_CHANGE, row | {"of_search": search_id}).rowcount:
        connection.execute(insert(t.progress), row | {"search_id": search_id})


def add_progress(connection: Connection, search_id: int) -> None:
    """Adds the row of a new search."""
    connection.execute(insert(t.progress).values(search_id=search_id, version=VERSION, **asdict(SearchProgress())))


def _value(row: Row[Any]) -> SearchProgress:
    columns = {name: getattr(row, name) for name in _NAMES}
    columns["front"], columns["reference"] = tuple(row.front), tuple(row.reference)
    columns["course"] = tuple((int(told), value) for told, value in row.course)
    return SearchProgress(**columns)


def computed_progress(connection: Connection, search_id: int, search: Search) -> SearchProgress:
    """Computes the progress of a search from all its trials, within the caller's transaction."""
    c = t.trials.c
    trials = t.trial_rows.where(c.search_id == search_id)
    in_order = connection.execute(trials.order_by(c.told), execution_options=IN_PARTS)
    confirmed = trials.where(c.number.in_(select(c.confirms).where(c.search_id == search_id, c.confirms.is_not(None))))
    last = select(func.max(t.generations.c.number)).where(t.generations.c.search_id == search_id)
    return ProgressTracker(
        search,
        (trial_record(trial, {}) for trial in in_order),
        spent=spent_in(connection, search_id),
        generations=connection.execute(last).scalar() or 0,
        confirmed=[trial_record(trial, {}) for trial in connection.execute(confirmed)],
    ).progress
