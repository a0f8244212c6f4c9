"""One row of progress a search, and indexes for questions about the last trials. Stores compute missing rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_COUNTS = (
    *("pending", "running", "finished", "failed", "stopped", "stopped_early"),
    *("confirmations", "confirmations_over", "good", "with_std", "with_spread"),
    *("told", "generations", "failures_in_a_row", "ties", "confirmed_runs"),
)
_NUMBERS = ("last_failure", "best", "best_told", "confirmed", "confirmed_told")
_SUMS = ("job_seconds", "metered_seconds", "joules")
_VALUES = ("first_value", "best_value", "best_std", "confirmed_value", "hypervolume")


def upgrade() -> None:
    """Brings the store to this revision."""
    op.create_table(
        "progress",
        sa.Column("search_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in _COUNTS),
        *(sa.Column(name, sa.Integer(), nullable=True) for name in _NUMBERS),
        *(sa.Column(name, sa.Float(), nullable=False) for name in _SUMS),
        *(sa.Column(name, sa.Float(), nullable=True) for name in _VALUES),
        *(sa.Column(name, sa.JSON(), nullable=False) for name in ("front", "reference", "course")),
        sa.ForeignKeyConstraint(["search_id"], ["searches.id"], name="fk_progress_search_id"),
        sa.PrimaryKeyConstraint("search_id", name="pk_progress"),
    )
    op.create_index("ix_trials_search_id_state", "trials", ["search_id", "state"])
    op.create_index("ix_trials_search_id_ended", "trials", ["search_id", "ended"])
