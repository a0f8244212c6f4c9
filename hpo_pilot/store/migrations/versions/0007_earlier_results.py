"""What a search has from earlier ones is stored with it; generations say how many points were asked for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    op.create_table(
        "earlier_results",
        sa.Column("search_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("results", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["search_id"], ["searches.id"], name=op.f("fk_earlier_results_search_id")),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f("pk_earlier_results")),
    )
    with op.batch_alter_table("generations") as generations:
        generations.add_column(sa.Column("asked", sa.Integer(), nullable=True))
        generations.add_column(sa.Column("budget", sa.Integer(), nullable=True))
