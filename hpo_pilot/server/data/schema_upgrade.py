"""Bringing an older database to the tables of today, in place.

Newer versions only ever add: tables, columns (nullable or with a server default) and indices. So whatever is missing
is added, whichever version left it out; nothing is changed or removed.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect, update
from sqlalchemy.schema import CreateColumn

from hpo_pilot.server.data import tables


def upgrade(connection: Connection) -> None:
    """Adds what an older program did not know, and notes the new version."""
    inspector = inspect(connection)
    present = set(inspector.get_table_names())
    quoted = connection.dialect.identifier_preparer.format_table
    for table in tables.metadata.sorted_tables:
        if table.name not in present:
            continue  # made whole below
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in columns:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {quoted(table)} ADD COLUMN {definition}")
        indices = {index["name"] for index in inspector.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in indices:
                index.create(connection)
    tables.metadata.create_all(connection)
    connection.execute(update(tables.schema).values(version=tables.SCHEMA_VERSION))
