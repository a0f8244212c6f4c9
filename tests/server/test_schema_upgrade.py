"""A database of an older version is brought to today's tables, with all that it holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, select

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import Caller
from hpo_pilot.server.data import tables
from hpo_pilot.server.data.database import Database
from hpo_pilot.server.taskbuffer import tasks
from hpo_pilot.server.taskbuffer.dispatch import JobRequest, acquire

Params = Callable[..., dict[str, Any]]


def schema_of(path: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Columns and indices by table."""
    with sqlite3.connect(path) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: (
                {row[1] for row in connection.execute(f"PRAGMA table_info({name})")},
                {row[1] for row in connection.execute(f"PRAGMA index_list({name})")},
            )
            for name in names
        }


def test_an_old_database_becomes_a_new_one(tmp_path: Path, me: Caller, params: Params) -> None:
    path, fresh = tmp_path / "panda.db", tmp_path / "fresh.db"
    database = Database(f"sqlite:///{path}")
    with database.writing() as tx:
        assert tasks.submit(tx, me, params("user.me.old/", 2))[0] == 0
    database.close()
    Database(f"sqlite:///{fresh}").close()
    with sqlite3.connect(path) as connection:
        # As version 1 had it: no losses of points, no count of a task's attempts, no index over its end.
        connection.execute("DROP TABLE point_losses")
        connection.execute("DROP INDEX ix_tasks_ended")
        connection.execute("ALTER TABLE tasks DROP COLUMN attempt_nr")
        connection.execute("UPDATE server_schema SET version = 1")
    database = Database(f"sqlite:///{path}")
    try:
        assert schema_of(path) == schema_of(fresh)
        with database.writing() as tx:
            assert tx.connection.scalar(select(tables.schema.c.version)) == tables.SCHEMA_VERSION
            assert tx.connection.scalar(select(tables.tasks.c.attempt_nr)) == 1
            assert "point_losses" in inspect(tx.connection).get_table_names()
            assert len(acquire(tx, JobRequest(site="LOCAL", n_jobs=9))) == 2
    finally:
        database.close()


def test_a_database_with_tables_that_are_no_longer_used_opens(tmp_path: Path, me: Caller, params: Params) -> None:
    path = tmp_path / "panda.db"
    database = Database(f"sqlite:///{path}")
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE secrets (user_name VARCHAR(128) PRIMARY KEY, data TEXT, updated FLOAT)")
    database = Database(f"sqlite:///{path}")
    with database.writing() as tx:
        assert tasks.submit(tx, me, params("user.me.there/", 1))[0] == 0
    database.close()


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "panda.db"
    Database(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE server_schema SET version = 99")
    with pytest.raises(InputError, match="version 99"):
        Database(f"sqlite:///{path}")
