"""The key in the path under which whoever has it may read: see `http`."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from hpo_pilot.errors import InputError

#: The file, among the server's, that holds the key.
KEY_FILE = "bigmon.key"

_KEY_BYTES = 32


class ReadingKey:
    """The key in the path under which everybody may read."""

    def __init__(self, file: Path) -> None:
        """Reads the key; makes it if need be.

        Raises:
            InputError: it cannot be read or written.
        """
        try:
            try:
                descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                self._key = file.read_text().strip()
            else:
                self._key = secrets.token_urlsafe(_KEY_BYTES)
                with os.fdopen(descriptor, "w") as stream:
                    stream.write(self._key)
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: {error}; without it another is made") from error
        if len(self._key) < _KEY_BYTES:
            raise InputError(f"{file} is damaged: without it another is made")

    def fits(self, text: str) -> bool:
        """Whether this is the key."""
        return hmac.compare_digest(self._key.encode(), text.encode("utf-8", "replace"))
