"""Opens the database of a store, with the settings of SQLite and PostgreSQL, and turns its errors into ours."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Row, Select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, IntegrityError, NoSuchModuleError, OperationalError

from hpo_pilot.databases import WRITES, remote_engine, sqlite_engine
from hpo_pilot.errors import GiveUpError, InputError, TryAgainError


class NameTakenError(InputError):
    """Another search in the store has that name.

    Users do not see it: `hpo_pilot.steering.registration` compares the two searches and says what to do.
    """


class StoreAwayError(TryAgainError):
    """The database is locked, full or out of reach; the transaction did not happen."""


#: SQLSTATE of a change in a read-only transaction, as at a standby of PostgreSQL.
_READ_ONLY = "25006"


def url_without_password(url: URL | str) -> str:
    """Returns a store's URL for messages: without its password, and with the path of SQLite's file."""
    if isinstance(url, str):
        return repr(_without_password(url))
    if url.get_backend_name() == "sqlite" and not url.query:
        return f"{url.drivername}:///{url.database or ''}"
    return url.render_as_string(hide_password=True)


def _without_password(text: str) -> str:
    return re.sub(r"(//[^/@:\s]*:)[^@\s]*@", r"\1***@", text)


def open_engine(url: str | URL, *, durable: bool = False) -> Engine:
    """Makes an engine for `url`; SQLite in WAL mode, so that readers never wait for the writer.

    Args:
        url: the URL.
        durable: whether a commit survives a power cut; PostgreSQL's always do.

    Raises:
        InputError: the URL is malformed, its driver is missing, or its folder cannot be made.
    """
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            return remote_engine(parsed)
        if parsed.database and parsed.database != ":memory:":
            _make_file(parsed)
        return sqlite_engine(parsed, foreign_keys=True, durable=durable)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:  # ValueError: a port that is no number
        raise InputError(
            f"store {url_without_password(url)}: not a database URL that works here ({_without_password(str(error))}); "
            "e.g. sqlite:///scan.db"
        ) from error
    except ModuleNotFoundError as error:
        raise InputError(
            f"store {url_without_password(parsed)}: the driver {error.name} is not installed; PostgreSQL's comes with "
            "pip install 'hpo-pilot[postgresql]', and its URL is postgresql+psycopg://…"
        ) from error
    except OSError as error:
        raise InputError(
            f"store: cannot make the folder of {parsed.database}: {error.strerror}; choose another --workdir"
        ) from error


#: Rows in memory while many are read.
ROWS_AT_ONCE = 1000
#: Option of a statement whose rows are read in parts. A connection must not have it: PostgreSQL would make cursors of
#: later updates.
IN_PARTS = {"yield_per": ROWS_AT_ONCE}


@contextmanager
def engine_for(url: str | URL) -> Iterator[Engine]:
    """Opens an engine for the block, and closes its connections afterwards; see `open_engine`."""
    engine = open_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


def _make_file(url: URL) -> None:
    """Makes SQLite's file with mode 0600: SQLite would use the umask. Its journals get the mode of the file."""
    if "uri" in url.query:
        return  # not a path: SQLite makes the file
    path = Path(str(url.database))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Do not open it: closing it would drop SQLite's locks of other users in this process (SQLite, "How To Corrupt An
    # SQLite Database File", 2.2). SQLite reports all other errors.
    with contextlib.suppress(OSError):
        os.mknod(path, stat.S_IFREG | 0o600)


@contextmanager
def writing(engine: Engine, **options: bool) -> Iterator[Connection]:
    """Opens a writing transaction: commits at the end of the block, rolls back on any error; `options`: `DURABLE`."""
    with (
        database_errors(engine),
        engine.connect().execution_options(**{WRITES: True}, **options) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def taken_names(error: NameTakenError) -> Iterator[None]:
    """Raises `error` if another writer has just taken a unique name."""
    try:
        yield
    except IntegrityError as cause:
        raise error from cause


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Opens a reading transaction with one consistent view."""
    with database_errors(engine), engine.connect() as connection, connection.begin():
        yield connection


def read_rows(engine: Engine, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Returns the rows of one query, read in a transaction of its own."""
    with reading(engine) as connection:
        return connection.execute(query).all()


def read_values(engine: Engine, query: Select[*tuple[Any, ...]]) -> list[Any]:
    """Returns the first column of one query, read in a transaction of its own."""
    with reading(engine) as connection:
        return list(connection.scalars(query))


@contextmanager
def database_errors(engine: Engine) -> Iterator[None]:
    """Turns the driver's errors into ours, with a remedy.

    Raises:
        StoreAwayError: the database is locked, full or out of reach.
        InputError: the file cannot be written, or is not a database.
        GiveUpError: anything else.
    """
    where = url_without_password(engine.url)
    try:
        yield
    except OperationalError as error:
        text = str(error.orig)
        if "readonly" in text or "unable to open" in text:
            raise InputError(
                f"store {where}: {text}: is its folder writable? Choose another with --workdir or --store"
            ) from error
        if "disk is full" in text:
            raise StoreAwayError(
                f"store {where}: the disk is full; nothing is lost: free some space and try again"
            ) from error
        raise StoreAwayError(f"store {where}: {text}; nothing is lost: try again") from error
    except DatabaseError as error:
        if error.connection_invalidated:
            raise StoreAwayError(f"store {where}: the connection was ended; nothing is lost: try again") from error
        if getattr(error.orig, "sqlstate", None) == _READ_ONLY:
            raise StoreAwayError(f"store {where}: it is read-only now; nothing is lost: try again") from error
        if "not a database" in str(error.orig) or "malformed" in str(error.orig):
            raise InputError(
                f"store {where}: {error.orig}: the file is damaged or of another kind; name another store"
            ) from error
        raise GiveUpError(f"store {where}: {error.orig}") from error
    except DBAPIError as error:
        raise GiveUpError(f"store {where}: {error.orig}") from error
