"""Jobs have their energy, where that was measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("joules", sa.Float(), nullable=True))
