"""A lease for each search instead of one for the store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Brings the store to this revision; a process of an older version can no longer renew its lease."""
    op.add_column("searches", sa.Column("holder", sa.String(32), nullable=True))
    op.add_column("searches", sa.Column("held_since", sa.Float(), nullable=True))
    op.drop_table("leases")
    op.create_table(
        "leases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(32), nullable=False),
        sa.Column("mode", sa.String(20), nullable=False),
        sa.Column("server", sa.Text(), nullable=True),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("pid_started", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
        sa.UniqueConstraint("holder", name="uq_leases_holder"),
    )
