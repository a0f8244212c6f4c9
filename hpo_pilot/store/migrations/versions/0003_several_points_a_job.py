"""A job may run several points; what payloads put into their metadata is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("metadata", sa.JSON(), nullable=True))
    tasks = sa.table("tasks", sa.column("id", sa.Integer()), sa.column("jobs", sa.JSON()))
    connection = op.get_bind()
    for row in connection.execute(sa.select(tasks)).all():
        one_each = [[member] for member in row.jobs]
        connection.execute(tasks.update().where(tasks.c.id == row.id).values(jobs=one_each))
