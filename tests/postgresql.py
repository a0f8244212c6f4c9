"""Databases of their own for tests, in the PostgreSQL that `make test-real` starts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from sqlalchemy import create_engine, make_url, text

#: The URL of the PostgreSQL server; None: there is none.
BASE = os.environ.get("HPO_PILOT_TEST_POSTGRESQL")


@contextmanager
def new_database() -> Iterator[str]:
    """Makes an empty database; its URL."""
    assert BASE is not None
    name = f"test_{secrets.token_hex(4)}"
    server = create_engine(BASE, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(BASE).set(database=name).render_as_string(hide_password=False)
    finally:
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        server.dispose()


@pytest.fixture(scope="session")
def database_of_process() -> Iterator[str | None]:
    """The database that the tests of this process share, see `postgresql`."""
    with new_database() if BASE else nullcontext() as url:
        yield url


@pytest.fixture
def postgresql(database_of_process: str | None) -> Iterator[str | None]:
    """An empty database with `make test-real`; None: the test uses SQLite."""
    yield database_of_process
    if database_of_process is not None:
        # To make a database and to drop it takes twice as long.
        engine = create_engine(database_of_process)
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        engine.dispose()
