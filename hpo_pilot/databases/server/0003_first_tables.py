"""The tables of the first version: a new database gets today's tables whole, without this step."""

from __future__ import annotations

revision = "0003"  # the earlier numbers belong to development versions, whose databases are refused
down_revision = None
