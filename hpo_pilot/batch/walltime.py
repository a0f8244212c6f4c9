"""Walltimes as people write them and as batch systems want them."""

from __future__ import annotations

import re

from hpo_pilot.errors import InputError

_WALLTIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<hours>\d{1,4}):(?P<minutes>[0-5]\d)")


def minutes_of(text: str) -> int:
    """The minutes of a walltime such as 2:00 (two hours) or 1-12:00 (a day and a half).

    Raises:
        InputError: it is none, or is zero.
    """
    match = _WALLTIME.fullmatch(text.strip())
    parts = {name: int(value or 0) for name, value in match.groupdict().items()} if match else {}
    minutes = parts.get("days", 0) * 1440 + parts.get("hours", 0) * 60 + parts.get("minutes", 0)
    if not minutes:
        raise InputError(f"--walltime {text!r}: give hours and minutes, such as 2:00, or days too, such as 1-12:00")
    return minutes


def hours_and_minutes(minutes: int) -> str:
    """E.g. 2:00, or 36:00; for people, and as LSF has it."""
    return f"{minutes // 60}:{minutes % 60:02d}"
