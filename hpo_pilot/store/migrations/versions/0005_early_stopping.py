"""Trials may be stopped early, by the values that they report while they run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    with op.batch_alter_table("intermediate_values") as values:
        values.add_column(sa.Column("look", sa.Integer(), nullable=True))
    with op.batch_alter_table("trials") as trials:
        trials.add_column(sa.Column("stop_look", sa.Integer(), nullable=True))
        trials.add_column(sa.Column("stop_reason", sa.Text(), nullable=True))
        trials.add_column(sa.Column("stop_step", sa.BigInteger(), nullable=True))
        trials.add_column(sa.Column("stop_value", sa.Float(), nullable=True))
        trials.add_column(sa.Column("projected", sa.JSON(), nullable=True))
