"""A lease says to which PanDA server its holder takes tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("leases") as leases:
        leases.add_column(sa.Column("server", sa.Text(), nullable=True))
