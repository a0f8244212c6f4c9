"""What users call a search, and what is said where there is none of that name."""

from __future__ import annotations

from hpo_pilot.errors import InputError


class UnknownSearchError(InputError):
    """There is no search of that name or number.

    Attributes:
        identity: what was asked for.
        there: what is there, for people.
    """

    def __init__(self, identity: str, there: str, where: str) -> None:
        super().__init__(f"no search {identity!r} in {where}: {there}")
        self.identity = identity
        self.there = there


def is_number(text: str) -> bool:
    """Whether a user's word is the number of a search or trial, and not a name."""
    return text.isascii() and text.isdigit() and len(text) <= 9
