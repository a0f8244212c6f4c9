"""Whose a search is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from hpo_pilot.errors import InputError

#: The store keeps so many characters of a name.
_NAME_LENGTH = 60
_DIGEST_LENGTH = 16


class NotYoursError(InputError):
    """The search is another user's: everybody sees it, its owner and operators change it."""


@dataclass(frozen=True)
class User:
    """Who uses a client.

    Attributes:
        name: owner of what the user registers; also in events.
        changes_all: whether the user may change what others own: operators, and whoever has the store itself.
    """

    name: str
    changes_all: bool = False

    @classmethod
    def named(cls, name: str, *, changes_all: bool = False) -> User:
        """A user with the name as the store keeps it: of two long names that begin alike, the ends still count."""
        if len(name) > _NAME_LENGTH:
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_DIGEST_LENGTH]
            name = f"{name[: _NAME_LENGTH - _DIGEST_LENGTH - 1]}~{digest}"
        return cls(name, changes_all)

    def check(self, search: str, owner: str) -> None:
        """Makes sure that the user may change a search.

        Raises:
            NotYoursError: it is another's.
        """
        if not self.changes_all and owner != self.name:
            raise NotYoursError(f"search {search!r} is {owner}'s: only {owner} or an operator may change it")
