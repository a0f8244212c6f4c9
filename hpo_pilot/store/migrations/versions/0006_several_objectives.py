"""Trials and jobs of searches with several objectives have a figure for each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("figures", sa.JSON(), nullable=True))
    with op.batch_alter_table("trials") as trials:
        trials.add_column(sa.Column("figures", sa.JSON(), nullable=True))
        trials.add_column(sa.Column("spreads", sa.JSON(), nullable=True))
