"""Times in JSON documents."""

from __future__ import annotations

from datetime import datetime


def time_text(time: datetime | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return None if time is None else time.isoformat(timespec="milliseconds")
