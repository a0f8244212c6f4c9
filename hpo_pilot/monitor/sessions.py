"""Who looks at the pages: sessions, in signed cookies, and the codes of one-time links.

A cookie holds a name, a role and when the session ends, signed with a key of the work folder: no token, and nothing
that is good anywhere but here. A session ends with the token that it was begun with, and when that is revoked.

Without TLS it also ends with the run of the pages that began it: when they end, another user of the machine may take
their port, and a browser that calls again hands the cookie over. The next run does not take it back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from hpo_pilot.errors import InputError
from hpo_pilot.server.access.auth import REVOKED, Caller, Role
from hpo_pilot.server.access.authority import write_private
from hpo_pilot.server.access.watched_file import WatchedFile

#: How long a session lasts at most, and how long a link is good, in seconds.
SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 600.0

#: Links that are out at once, of everybody together and of one person: the oldest give way.
_CODES, _CODES_EACH = 1000, 20

#: The file of the signing key and of the sessions that were ended before their time.
_FILE = "monitor.json"

_ALGORITHM = "HS256"
_CLAIMS = ("sub", "role", "sid", "run", "exp")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Login:
    """Whom a token lets in.

    Attributes:
        caller: the token's owner.
        ends: when the token ends, in seconds since the epoch.
        token: the id by which it can be revoked; empty: another issuer's.
    """

    caller: Caller
    ends: float
    token: str


@dataclass(frozen=True)
class Session:
    """A session that is good now.

    Attributes:
        caller: who looks.
        id: random; empty where there is no cookie, for the caller shows a token or a certificate each time.
        ends: in seconds since the epoch.
    """

    caller: Caller
    id: str
    ends: float


class Sessions:
    """Begins, recognises and ends sessions. Safe to use from any thread, and by several processes of a work folder."""

    def __init__(self, folder: Path, *, run: str, clock: Callable[[], float] = time.time) -> None:
        """Reads the signing key, or makes it.

        Args:
            folder: the work folder's token folder.
            run: names the run of the pages, with which sessions end; empty: they outlive it, for TLS protects them.
            clock: seconds since the epoch.

        Raises:
            InputError: the key cannot be read or written.
        """
        self._path = folder / _FILE
        self._run = run
        self._clock = clock
        self._lock = threading.Lock()
        try:
            if not self._path.exists():
                write_private(self._path, _document(secrets.token_hex(32), {}))
        except OSError as error:
            raise InputError(f"the monitor's key cannot be written to {self._path}: {error.strerror}") from error
        self._file = WatchedFile(self._path, _understood, what="the monitor's key")
        self._revoked = WatchedFile(
            folder / REVOKED, frozenset[str], what="the list of revoked tokens", missing=frozenset[str]()
        )
        # Cookies know no ports: two services on one machine must not take each other's.
        self.cookie = f"hpo_pilot_{hashlib.sha256(self._key + run.encode()).hexdigest()[:12]}"

    @property
    def _key(self) -> bytes:
        return bytes.fromhex(self._content()[0])

    def _content(self) -> tuple[str, dict[str, float]]:
        """The key and the ended sessions. Whoever removes or spoils their file ends every session: a new key is made.

        That key is nobody's before it is written, so that what it signs is good in every process of the folder.
        """
        content = self._file.content
        if not self._file.is_lost:
            return content
        fresh: tuple[str, dict[str, float]] = (secrets.token_hex(32), {})
        log.warning(
            "the monitor's key %s was removed or spoilt: a new one is made, and everybody signed out", self._path
        )
        try:
            write_private(self._path, _document(*fresh))
        except OSError as error:
            log.error("the monitor's key cannot be written to %s: %s; nobody is signed in", self._path, error.strerror)
            return fresh
        return self._file.content

    def begin(self, login: Login) -> tuple[str, float]:
        """A session's cookie, and when it ends in seconds since the epoch."""
        ends = min(login.ends, self._clock() + SESSION_SECONDS)
        claims = {
            "sub": login.caller.name,
            "role": login.caller.role.value,
            "sid": secrets.token_urlsafe(16),
            "run": self._run,
            "tok": login.token,
            "exp": ends,
        }
        return jwt.encode(claims, self._key, _ALGORITHM), ends

    def of_cookie(self, cookie: str) -> Session | None:
        """The session of a cookie; None where it is none of ours, has ended, or its token was revoked."""
        options: Any = {"require": list(_CLAIMS), "verify_exp": False}
        try:
            claims = jwt.decode(cookie, self._key, [_ALGORITHM], options=options)
            session = Session(
                Caller(str(claims["sub"]), Role(claims["role"])), str(claims["sid"]), float(claims["exp"])
            )
        except (jwt.InvalidTokenError, ValueError, TypeError):
            return None
        if claims["run"] != self._run or session.ends <= self._clock() or session.id in self._content()[1]:
            return None
        if str(claims.get("tok", "")) in self._revoked.content:
            return None
        return session

    def end(self, session: Session) -> None:
        """Makes a session's cookie worthless.

        Raises:
            OSError: that cannot be recorded.
        """
        if not session.id:
            return
        with self._lock:
            key, ended = self._content()
            now = self._clock()
            kept = {sid: until for sid, until in ended.items() if until > now} | {session.id: session.ends}
            write_private(self._path, _document(key, kept))
            self._file.refresh()

    def form_token(self, session: Session) -> str:
        """What every form of a session carries: another site's page cannot know it."""
        whose = f"{session.id}\n{session.caller.name}\n{session.caller.role.value}"
        return hmac.new(self._key, f"form\n{whose}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def is_form_token(self, session: Session, given: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(self.form_token(session).encode(), given.encode("utf-8", "surrogatepass"))


class Codes:
    """One-time codes of links: each is good for ten minutes, and once. They are kept in memory alone, as digests."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Starts without any; `clock`: seconds since the epoch."""
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: OrderedDict[bytes, tuple[Login, float]] = OrderedDict()

    def make(self, login: Login) -> str:
        """A code that lets its bearer in as that login."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._forget()
            own = [digest for digest, (known, _) in self._codes.items() if known.caller == login.caller]
            for digest in own[: max(0, len(own) + 1 - _CODES_EACH)]:
                del self._codes[digest]
            self._codes[_digest(code)] = (login, self._clock() + CODE_SECONDS)
            while len(self._codes) > _CODES:
                self._codes.popitem(last=False)
        return code

    def take(self, code: str) -> Login | None:
        """Whom a code lets in, once; None where it is unknown, used or too old."""
        with self._lock:
            self._forget()
            found = self._codes.pop(_digest(code), None)
        return None if found is None else found[0]

    def owner(self, code: str) -> Caller | None:
        """Whom a code lets in; it stays good. None where `take` would find nobody."""
        with self._lock:
            self._forget()
            found = self._codes.get(_digest(code))
        return None if found is None else found[0].caller

    def _forget(self) -> None:
        now = self._clock()
        for digest in [digest for digest, (_, until) in self._codes.items() if until <= now]:
            del self._codes[digest]


def login_of(caller: Caller, token: str, now: float) -> Login:
    """The login of a token that was verified.

    Args:
        caller: whose it is.
        token: the token itself; it is kept nowhere.
        now: seconds since the epoch.
    """
    claims: Mapping[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return Login(caller, float(claims.get("exp", now)), str(claims.get("jti", "")))


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def _document(key: str, ended: Mapping[str, float]) -> str:
    return json.dumps({"key": key, "ended": dict(ended)})


def _understood(content: Any) -> tuple[str, dict[str, float]]:
    if len(bytes.fromhex(content["key"])) < 32:
        raise ValueError("its key is too short")
    return content["key"], {str(sid): float(until) for sid, until in content["ended"].items()}
