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
