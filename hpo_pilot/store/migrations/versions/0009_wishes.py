"""Users ask for points: those that wait, and which failed trial a trial repeats."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Brings the store to this revision."""
    op.create_table(
        "wishes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("search_id", sa.Integer(), nullable=False),
        sa.Column("point", sa.JSON(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=True),
        sa.Column("who", sa.String(60), nullable=False),
        sa.Column("key", sa.String(64), nullable=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["search_id"], ["searches.id"], name=op.f("fk_wishes_search_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_wishes")),
    )
    op.create_index(op.f("ix_wishes_search_id_trial"), "wishes", ["search_id", "trial"])
    with op.batch_alter_table("trials") as trials:
        trials.add_column(sa.Column("retries", sa.Integer(), nullable=True))
