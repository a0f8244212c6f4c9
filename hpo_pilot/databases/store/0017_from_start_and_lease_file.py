"""Trials whose jobs had no checkpoint of the level below; the database file that a lease is about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Brings the store to this revision; of trials before nothing is known, and they count as before."""
    op.add_column("trials", sa.Column("from_start", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("leases", sa.Column("inode", sa.BigInteger(), nullable=True))
