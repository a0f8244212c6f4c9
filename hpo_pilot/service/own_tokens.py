"""The tokens of the work folder's own service and local pilot: files that are renewed before they expire.

Every process of ours reads its token file anew when it changes, so a renewal needs no restart. Pilots elsewhere that
hold a copy want a token of their own, with a time of its own: `hpo-pilot token create`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.server.access.auth import Role, TokenRefused, Tokens
from hpo_pilot.server.access.authority import Authority, write_private

#: How long our own tokens live, and how much of it must be left.
_DAYS = 30.0
_LEFT = 10.0

_DAY = 86400.0
_LOOK_EVERY = 600.0  # seconds


class OwnTokens:
    """One token file per role that our own processes have."""

    def __init__(self, folder: Path, name: str, *, clock: Callable[[], float] = time.time) -> None:
        """Makes what is missing.

        Args:
            folder: the work folder's token folder.
            name: the user, whose the tokens are.
            clock: seconds since the epoch.

        Raises:
            InputError: the folder cannot be used.
        """
        self._clock = clock
        self._name = name
        self._authority = Authority(folder, clock=clock)
        self.files = {role: folder / f"{role.value}.token" for role in (Role.USER, Role.PILOT)}
        self._next = 0.0
        self.renew()

    def renew(self) -> None:
        """Replaces what ends soon or is no good; to be called often, it looks rarely.

        Raises:
            TryAgainError: a new token cannot be written.
        """
        now = self._clock()
        if now < self._next:
            return
        # As it will be when it must have been replaced: what is refused then is replaced now.
        later = Tokens(self._authority.folder, clock=lambda: now + _LEFT * _DAY)
        for role, path in self.files.items():
            if not self._is_good(later, path, role):
                token, _ = self._authority.issue(self._name, role, _DAYS)
                try:
                    write_private(path, token)
                except OSError as error:
                    raise TryAgainError(f"cannot write the token file {path}: {error.strerror}") from error
        self._next = now + _LOOK_EVERY

    def _is_good(self, tokens: Tokens, path: Path, role: Role) -> bool:
        try:
            caller = tokens.verify(f"Bearer {path.read_text()}")
        except (FileNotFoundError, UnicodeDecodeError, TokenRefused):
            return False
        except OSError as error:
            raise InputError(f"the token file {path} cannot be read: {error.strerror}") from error
        return caller.name == self._name and caller.role is role
