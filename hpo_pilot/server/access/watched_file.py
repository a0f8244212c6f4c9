"""Small JSON files that change while the server runs: lists of revoked tokens, roles, keys."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpo_pilot.errors import InputError

log = logging.getLogger(__name__)

_Content = TypeVar("_Content")


class WatchedFile(Generic[_Content]):
    """A JSON file, read again when it changes. What was read last stays in force while it cannot be read."""

    def __init__(
        self, path: Path, understand: Callable[[Any], _Content], *, what: str, missing: _Content | None = None
    ) -> None:
        """Reads the file.

        Args:
            path: of the file.
            understand: makes the content of the JSON value; ValueError, TypeError, KeyError where it makes no sense.
            what: what the file is, for messages.
            missing: the content while there is no file yet; None: there must be one.

        Raises:
            InputError: it is missing or makes no sense.
        """
        self._path = path
        self._understand = understand
        self._what = what
        self._stamp: tuple[int, int] | None = None
        #: Whether the file was removed, or makes no sense: what was read before is all there is.
        self.is_lost = False
        if missing is not None:
            self._content = missing
        try:
            self._read()
        except FileNotFoundError as error:
            if missing is None:
                raise InputError(f"{what} {path}: {error.strerror}") from error
        except OSError as error:
            raise InputError(f"{what} {path}: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{what} {path} makes no sense: {error}") from error

    @property
    def content(self) -> _Content:
        """What the file says now."""
        self.refresh()
        return self._content

    def refresh(self) -> bool:
        """Reads the file if it changed.

        Returns:
            True if its content is another now.
        """
        try:
            return self._read()
        except FileNotFoundError:
            self._stamp, self.is_lost = None, True
            return False  # there was none yet, or it is being replaced
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self.is_lost = self.is_lost or not isinstance(error, OSError)
            log.error("%s %s: %s; what was read before stays in force", self._what, self._path, error)
            return False

    def _read(self) -> bool:
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return False
        # Noted before it is read: a broken file is complained of once.
        self._stamp = stamp
        self._content = self._understand(json.loads(self._path.read_text()))
        self.is_lost = False
        return True
