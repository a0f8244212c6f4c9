"""Notes and tags on searches and trials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Brings the store to this revision."""
    op.create_table(
        "notes",
        sa.Column("search_id", sa.Integer(), nullable=False),
        sa.Column("trial", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("changed", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["search_id"], ["searches.id"], name="fk_notes_search_id"),
        sa.PrimaryKeyConstraint("search_id", "trial", name="pk_notes"),
    )
