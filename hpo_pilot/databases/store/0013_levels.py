"""Levels of trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Brings the store to this revision."""
    op.add_column("trials", sa.Column("level", sa.Float(), nullable=True))
    op.add_column("trials", sa.Column("continues", sa.Integer(), nullable=True))
    op.add_column("progress", sa.Column("continuations", sa.Integer(), nullable=False, server_default="0"))
