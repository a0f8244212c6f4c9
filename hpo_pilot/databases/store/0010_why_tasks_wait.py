"""Why the server keeps a task waiting."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("tasks") as tasks:
        tasks.add_column(sa.Column("waits", sa.Text(), nullable=True))
