"""Settings of connections and versions of tables, for the store and the embedded server's database.

A new database gets its tables as they are declared, and the newest version's number. An older one is upgraded by
alembic with the migrations in the folder of its kind, `store/` or `server/`. A change to declared tables needs a
migration there, named `<number>_<what>.py`; a test compares both ways (`tests/databases/`).
"""

from __future__ import annotations

from collections.abc import Collection
from json import JSONDecoder
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
)

from hpo_pilot.errors import InputError

_BUSY_MS = 30_000

#: Settings of libpq that a URL may change.
_LIBPQ = {
    "fallback_application_name": "hpo-pilot",
    "connect_timeout": "10",
    "tcp_user_timeout": "20000",
    **{"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "2"},
}
_LIMIT_IDLENESS = """
    SELECT set_config('idle_in_transaction_session_timeout', '20000', false)
    WHERE current_setting('idle_in_transaction_session_timeout') = '0'
"""
#: PostgreSQL has no limit of its own for a client that has sent a part of a batch of statements.
_END_SILENT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = session_user
    AND application_name = current_setting('application_name')
    AND state = 'active' AND wait_event = 'ClientRead'
    AND query_start < clock_timestamp() - make_interval(secs => :silent)
"""
_SILENT_SECONDS = 20.0

#: Alembic's own table.
version_table = Table(
    "alembic_version",
    MetaData(naming_convention={"pk": "%(table_name)s_pkc"}),
    Column("version_num", String(32), primary_key=True),
)

Kind = Literal["store", "server"]

#: The execution option of connections whose transactions write.
WRITES = "hpo_pilot_write"
#: The execution option of connections for whether a commit is on the disk when it returns; on SQLite only.
DURABLE = "hpo_pilot_durable"


def among(column: ColumnElement[Any], values: Collection[Any]) -> ColumnElement[bool]:
    """Returns the condition that a column, or a tuple of columns, has one of these values.

    The values are part of the statement: SQLite takes 32,766 parameters, other databases fewer.
    """
    return column.in_(bindparam(None, list(values), expanding=True, literal_execute=True))


def database_bytes(connection: Connection) -> int:
    """Returns the size of a database in bytes, its journal included."""
    if connection.dialect.name != "sqlite":
        return int(connection.scalar(text("SELECT pg_database_size(current_database())")) or 0)
    path = Path(connection.engine.url.database or "")
    return sum(part.stat().st_size for part in (path, path.with_name(f"{path.name}-wal")) if part.exists())


#: NORMAL: a killed process loses nothing; a power cut may lose the last commits, never the file's integrity.
_SYNCHRONOUS = {False: "PRAGMA synchronous=NORMAL", True: "PRAGMA synchronous=FULL"}

_decoder = JSONDecoder()


def sqlite_engine(url: URL, *, foreign_keys: bool = False, durable: bool = False) -> Engine:
    """Makes an engine in WAL mode; its connections may move between threads, used by one at a time.

    Args:
        url: URL of a SQLite database.
        foreign_keys: whether to enforce foreign keys.
        durable: whether a commit is on the disk when it returns; a writing connection's option `DURABLE` goes before.
    """
    # None: the driver's own transaction handling commits before DDL; ours (below) keeps migrations whole.
    settings: dict[str, Any] = {
        "connect_args": {"timeout": _BUSY_MS / 1000, "isolation_level": None},
        # It reads JSON that has no spaces around it, as this program writes it; `json.loads` takes twice as long.
        "json_deserializer": lambda text: _decoder.raw_decode(text)[0],
    }
    if url.database not in (None, "", ":memory:") and url.query.get("mode") != "memory":  # else there is no such pool
        settings["pool_use_lifo"] = True  # few connections are used: each maps the file
    engine = create_engine(url, **settings)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(_SYNCHRONOUS[durable])
        # A write by one connection empties the page caches of the others: mapped, pages are read again without a call.
        # Only the first 128 MB: what is mapped and was read counts as memory of the process.
        cursor.execute("PRAGMA mmap_size=134217728")
        if foreign_keys:
            cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock at once: a transaction that reads first and writes later could not be retried.
        options = connection.get_execution_options()
        if options.get(WRITES):
            connection.exec_driver_sql(_SYNCHRONOUS[options.get(DURABLE, durable)])
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITES) else "BEGIN")

    return engine


def remote_engine(url: URL, **settings: Any) -> Engine:
    """Makes an engine for a database that is no SQLite file.

    On PostgreSQL, a process that was halted or cut off in a transaction loses it, with its locks; it notices that the
    database does not answer in about that time. The URL, or the role's settings, may have other times. Within a batch
    of statements, only `end_silent_sessions` ends it.

    Args:
        url: URL of the database.
        settings: further arguments of `create_engine`.
    """
    connect = {**_LIBPQ, **url.query} if url.get_driver_name().startswith("psycopg") else {}
    engine = create_engine(url, pool_pre_ping=True, connect_args=connect, **settings)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _limit_idleness)
    return engine


def _limit_idleness(connection: Any, _record: Any) -> None:
    # By a statement: connection poolers such as PgBouncer refuse unknown startup parameters.
    connection.cursor().execute(_LIMIT_IDLENESS)
    connection.commit()


def end_silent_sessions(connection: Connection) -> None:
    """Ends sessions of this program, with their locks, whose processes were halted or cut off within a batch.

    Call it again and again where processes share a PostgreSQL database; see `remote_engine`.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(_END_SILENT), {"silent": _SILENT_SECONDS})


def tables_are_current(connection: Connection, kind: Kind, name: str) -> bool:
    """Returns whether the database has the tables of this program's version.

    Args:
        connection: connection to the database.
        kind: kind of database.
        name: the database in messages.

    Raises:
        InputError: the database is of a newer version, or of one too old to be upgraded.
    """
    if not inspect(connection).has_table(version_table.name):
        return False
    version = connection.scalar(select(version_table.c.version_num)) or ""
    known = _versions(kind)
    if version > known[-1]:
        raise InputError(
            f"the {name} has version {version}, this program only knows up to {known[-1]}: upgrade hpo-pilot, or name "
            f"another {_OPTION[kind]}"
        )
    if version not in known:
        raise InputError(
            f"the {name} has version {version}, of a development version of hpo-pilot; this program upgrades from "
            f"version {known[0]} on: use the hpo-pilot that made it, or name another {_OPTION[kind]}"
        )
    return version == known[-1]


def make_tables(connection: Connection, kind: Kind, metadata: MetaData, name: str) -> None:
    """Makes the tables of a new database, or upgrades those of an older one, in the caller's transaction.

    Args:
        connection: connection to the database; it holds the write lock.
        kind: kind of database.
        metadata: the tables.
        name: the database in messages.

    Raises:
        InputError: the database is of a newer version, or of one too old to be upgraded.
    """
    if tables_are_current(connection, kind, name):
        return
    if not inspect(connection).has_table(version_table.name):
        metadata.create_all(connection)
        version_table.create(connection)
        connection.execute(insert(version_table).values(version_num=_versions(kind)[-1]))
        return
    from alembic import command  # noqa: PLC0415 - alembic takes 0.3 s to import, and is seldom needed
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    folder = str(Path(__file__).parent).replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", f"{folder}/{kind}")
    command.upgrade(config, "head")


_OPTION = {"store": "store with --store or --workdir", "server": "work folder with --workdir"}


def _versions(kind: Kind) -> list[str]:
    """Versions that this program knows, oldest first."""
    return sorted(path.name.split("_")[0] for path in (Path(__file__).parent / kind).glob("[0-9]*.py"))
