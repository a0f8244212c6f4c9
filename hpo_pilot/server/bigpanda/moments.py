"""Times as BigPanDA's JSON has them: UTC, to the second, without a zone."""

from __future__ import annotations

import time


def moment(seconds: float | None) -> str | None:
    """``2026-01-31 12:00:00``; what panda-client reads as a time."""
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def duration(seconds: float) -> str:
    """``1:02:03:04``, days first."""
    minutes, second = divmod(int(max(0.0, seconds)), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}:{hour:02d}:{minute:02d}:{second:02d}"
