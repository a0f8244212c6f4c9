"""Alembic's entry: runs the migrations on the connection that `hpo_pilot.databases.make_tables` passes on."""

from __future__ import annotations

from alembic import context

# render_as_batch: SQLite cannot alter tables in place, so alembic copies them.
context.configure(connection=context.config.attributes["connection"], render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
