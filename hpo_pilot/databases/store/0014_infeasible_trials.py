"""Trials beyond limits on measured figures, in the progress of searches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Brings the store to this revision; rows written before have no such trials."""
    op.add_column("progress", sa.Column("infeasible", sa.Integer(), nullable=False, server_default="0"))
