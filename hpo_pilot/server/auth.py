"""Who calls, and what they may do: bearer tokens from a file, of which only hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hpo_pilot.errors import InputError

log = logging.getLogger(__name__)


class Role(StrEnum):
    """What a token may do."""

    USER = "user"  #: submits, watches and changes own tasks
    PILOT = "pilot"  #: takes jobs and reports on them
    OPERATOR = "operator"  #: everything, for everybody: PanDA's production role


@dataclass(frozen=True)
class Caller:
    """The owner of a valid token."""

    name: str
    role: Role

    @property
    def is_operator(self) -> bool:
        """True where PanDA would see a production role."""
        return self.role is Role.OPERATOR


class Tokens:
    """The valid tokens: a JSON file ``{"<sha256 hex of the token>": {"name": …, "role": …}}``, mode 0600.

    The file is read again when it changes, so that tokens come and go without a restart.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file.

        Raises:
            InputError: it is missing, readable by others, or not of that form.
        """
        self._path = path
        self._stamp, self._callers = self._read()

    def caller(self, authorization: str | None) -> Caller | None:
        """Whoever sent this Authorization header; None: nobody we know."""
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        self._refresh()
        return self._find(hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest())

    def _find(self, digest: bytes) -> Caller | None:
        found = None
        # Every hash is compared, in constant time: how long it takes tells nothing about which ones are near.
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def _refresh(self) -> None:
        try:
            if self._path.stat().st_mtime_ns != self._stamp:
                self._stamp, self._callers = self._read()
        except (OSError, InputError) as error:
            # Seen while an editor replaces the file: the tokens known so far stay valid until it can be read again.
            log.warning("%s", error)

    def _read(self) -> tuple[int, list[tuple[bytes, Caller]]]:
        try:
            status = self._path.stat()
            text = self._path.read_text()
        except OSError as error:
            raise InputError(
                f"token file {self._path}: {error.strerror}; name a readable file with --tokens"
            ) from error
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise InputError(f"token file {self._path} can be read by others: chmod 600 {self._path}")
        try:
            callers = [
                (_digest(digest), Caller(str(entry["name"]), Role(entry["role"])))
                for digest, entry in json.loads(text).items()
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"token file {self._path} ({error}): expected "
                '{"<sha256 hex>": {"name": …, "role": "user" | "pilot" | "operator"}}'
            ) from error
        return status.st_mtime_ns, callers


def _digest(text: str) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"{text[:8]}… is no sha256")
    return digest


def hash_token(token: str) -> str:
    """The key under which `token` stands in the token file."""
    return hashlib.sha256(token.encode()).hexdigest()
