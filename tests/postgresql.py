"""Databases of their own for tests, in the PostgreSQL that `make test-real` starts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

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
