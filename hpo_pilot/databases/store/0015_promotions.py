"""An index that finds the trial that goes on from another one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Brings the store to this revision."""
    where = sa.text("continues IS NOT NULL")
    op.create_index(
        "ix_trials_search_id_continues",
        "trials",
        ["search_id", "continues"],
        sqlite_where=where,
        postgresql_where=where,
    )
