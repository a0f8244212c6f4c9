"""A new database and an upgraded one have exactly the declared tables; an older one keeps what it holds."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData

from hpo_pilot.errors import InputError
from hpo_pilot.jobs import TaskState
from hpo_pilot.server import database as server_tables
from hpo_pilot.server.database import Database
from hpo_pilot.server.dispatch import JobRequest, acquire
from hpo_pilot.store import SteeringStore
from hpo_pilot.store import tables as store_tables
from tests.command_here import command_here

HERE = Path(__file__).parent
RELEASES = sorted(path.stem.partition("_")[2] for path in HERE.glob("said_*.json"))


def made_from(script: str, path: Path) -> None:
    """Makes a database as an earlier version left it."""
    with sqlite3.connect(path) as connection:
        connection.executescript((HERE / script).read_text())


def differences(connection: Connection, metadata: MetaData) -> Any:
    """What is not as it is declared; tables that are no longer used may be left."""

    def is_declared(item: Any, name: str | None, kind: str, reflected: bool, declared: Any) -> bool:
        return not (kind == "table" and reflected and declared is None)

    return compare_metadata(MigrationContext.configure(connection, opts={"include_object": is_declared}), metadata)


def test_a_new_store_has_the_declared_tables(tmp_path):
    store = SteeringStore.open(f"sqlite:///{tmp_path}/new.db")
    with store.engine.connect() as connection:
        assert differences(connection, store_tables.metadata) == []
    store.close()


def test_a_store_of_the_first_version_is_upgraded_and_keeps_its_searches(tmp_path):
    made_from("store_0009.sql", tmp_path / "old.db")
    for _ in range(2):  # the second time there is nothing to upgrade
        store = SteeringStore.open(f"sqlite:///{tmp_path}/old.db")
        with store.engine.connect() as connection:
            assert differences(connection, store_tables.metadata) == []
        assert store.open_tasks(1)[0].jobs == (((1, 0, 7),), ((1, 1, 7),))
        store.close()


def test_a_server_database_of_the_first_version_keeps_its_jobs(tmp_path):
    made_from("server_0003.sql", tmp_path / "panda.db")
    for count in (2, 0):
        database = Database(tmp_path / "panda.db")
        with database.writing() as tx:
            assert differences(tx.connection, server_tables.metadata) == []
            assert tx.connection.scalar(
                server_tables.tasks.select().with_only_columns(server_tables.tasks.c.status)
            ) == (TaskState.RUNNING)
            assert len(acquire(tx, JobRequest(site="LOCAL", n_jobs=9))) == count
        database.close()


def kept(was: Any, now: Any) -> Any:
    """The part of an answer that an earlier version gave too: later ones may have more keys."""
    if isinstance(was, dict):
        return {key: kept(value, now.get(key)) for key, value in was.items()}
    return [kept(*pair) for pair in zip(was, now, strict=True)] if isinstance(was, list) else now


@pytest.mark.parametrize("release", RELEASES)
def test_databases_of_a_release_are_upgraded_with_all_that_they_hold(release, tmp_path):
    """`tests.databases.record` made them, with each release."""
    made_from(f"store_{release}.sql", tmp_path / "hpo-pilot.db")
    made_from(f"server_{release}.sql", tmp_path / "panda.db")
    store = SteeringStore.open(f"sqlite:///{tmp_path}/hpo-pilot.db")
    with store.engine.connect() as connection:
        assert differences(connection, store_tables.metadata) == []
    store.close()
    for words, was in json.loads((HERE / f"said_{release}.json").read_text()).items():
        now = command_here(*words.split(), "--json", "--workdir", str(tmp_path))
        assert now.returncode == 0, now.stderr
        assert kept(was, json.loads(now.stdout)) == was, words
    assert command_here("extend", "levels", "--trials", "+4", "--workdir", str(tmp_path)).returncode == 0
    database = Database(tmp_path / "panda.db")
    with database.writing() as tx:
        assert differences(tx.connection, server_tables.metadata) == []
        names = tx.connection.scalars(server_tables.tasks.select().with_only_columns(server_tables.tasks.c.name)).all()
    database.close()
    assert {name.split(".")[2] for name in names} == {"folded", "levels"}


@pytest.mark.parametrize(
    ("version", "remedy"), [("0008", "use the hpo-pilot that made it"), ("9999", "upgrade hpo-pilot")]
)
def test_other_versions_are_refused_and_left_alone(tmp_path, version, remedy):
    store, server = tmp_path / "store.db", tmp_path / "panda.db"
    made_from("store_0009.sql", store)
    made_from("server_0003.sql", server)
    for path, number in ((store, version), (server, version.replace("8", "2"))):
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE alembic_version SET version_num = '{number}'")
    with pytest.raises(InputError, match=f"version {version}, .*{remedy}.* --workdir"):
        SteeringStore.open(f"sqlite:///{store}")
    for _ in range(2):
        with pytest.raises(InputError, match=f"{remedy}.* --workdir"):
            Database(server)
    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(version,)]


def test_alembic_is_not_imported_for_a_new_or_a_current_database(tmp_path):
    program = """
import sys
from pathlib import Path
from hpo_pilot.server.database import Database
from hpo_pilot.store import SteeringStore
for _ in range(2):
    SteeringStore.open("sqlite:///hpo-pilot.db").close()
    Database(Path("panda.db")).close()
assert "alembic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
