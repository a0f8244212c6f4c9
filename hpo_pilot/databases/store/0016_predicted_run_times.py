"""Predicted run times of trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Brings the store to this revision."""
    op.add_column("trials", sa.Column("likely", sa.Float(), nullable=True))
