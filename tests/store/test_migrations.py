"""The migrations make exactly the tables that the code uses."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from hpo_pilot.store import tables, upgrade


def test_migrations_and_tables_agree(store):
    with store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []


def test_head_is_the_newest_migration():
    versions = Path(upgrade.__file__).parent / "migrations" / "versions"
    newest = sorted(path.name for path in versions.glob("[0-9]*.py"))[-1]
    assert newest.startswith(upgrade.HEAD + "_")


def test_jobs_of_before_run_one_member_each(tmp_path):
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import text

    from hpo_pilot.store import SteeringStore
    from hpo_pilot.store.engine import open_engine, writing

    url = f"sqlite:///{tmp_path / 'old.db'}"
    engine = open_engine(url)
    config = Config()
    config.set_main_option("script_location", str(Path(upgrade.__file__).parent / "migrations"))
    with writing(engine) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        connection.execute(
            text(
                "INSERT INTO searches (id, name, uid, owner, state, message, definition, filed, version, source, "
                "forgiven, created) VALUES (1, 'demo', 'cafecafe', 'me', 'running', '', '{}', '{}', 1, 's', 0, 1.0)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO tasks (id, search_id, generation, revision, name, state, jobs, created) "
                "VALUES (1, 1, 1, 0, 't/', 'submitted', '[[1, 0, 7], [1, 1, 7]]', 1.0)"
            )
        )
    engine.dispose()
    store = SteeringStore.open(url)
    assert store.open_tasks(1)[0].jobs == (((1, 0, 7),), ((1, 1, 7),))
    store.close()
