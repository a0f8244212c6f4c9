"""SQLite as our databases use it: readers never wait for the writer, and what writes says so first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

_BUSY_MS = 30_000

#: The execution option of connections whose transactions write.
WRITES = "hpo_pilot_write"


def sqlite_engine(url: URL, *, foreign_keys: bool = False) -> Engine:
    """An engine in WAL mode, whose connections may pass from thread to thread, one at a time.

    Args:
        url: of a SQLite database.
        foreign_keys: whether they are enforced.
    """
    # None: the driver's own transaction handling commits before DDL; ours (below) keeps migrations whole.
    engine = create_engine(url, connect_args={"timeout": _BUSY_MS / 1000, "isolation_level": None})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        # NORMAL: a killed process loses nothing; a power cut may lose the last commits, never the file's integrity.
        cursor.execute("PRAGMA synchronous=NORMAL")
        # A write by one connection empties the page caches of the others: mapped, pages are read again without a call.
        cursor.execute("PRAGMA mmap_size=1073741824")
        if foreign_keys:
            cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock at once: a transaction that reads first and writes later could not be retried.
        write = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
