"""Alembic's entry: runs the migrations on the connection that `hpo_pilot.store.upgrade` hands in."""

from __future__ import annotations

from alembic import context

from hpo_pilot.store.tables import metadata

connection = context.config.attributes["connection"]
# render_as_batch: SQLite cannot alter tables in place, so alembic copies them.
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
