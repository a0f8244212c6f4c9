"""Searches know their PanDA server and their family."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("searches") as searches:
        searches.add_column(sa.Column("server", sa.Text(), nullable=True))
        searches.add_column(sa.Column("family", sa.String(length=60), nullable=True))
