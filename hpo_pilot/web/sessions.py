"""Sessions of browsers: signed cookies, one-time links, and the checks on every request to the API and the pages.

A cookie holds a name, a role and the end of the session, signed with a key of the work folder. It holds no token, and
it is valid only for this service. A session ends with the token that started it, and when that token is revoked.

Without TLS, a session also ends when the process of the pages ends: another user of the machine may then listen on
the same port, and a browser that calls again sends the cookie there. The next process does not accept this cookie.
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
from urllib.parse import quote, urlsplit

import jwt
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpo_pilot.errors import InputError
from hpo_pilot.protocol import PROTOCOL_HEADER, disagreement
from hpo_pilot.server.issuers import RETURN_PATH
from hpo_pilot.server.listening import LimitedBody
from hpo_pilot.server.tokens import REVOKED, Caller, Role, TokenRefused, Tokens, WatchedFile, write_private
from hpo_pilot.web.api_context import problem_response

# --- sessions and one-time links ---

#: Maximum length of a session, and lifetime of a link, in seconds.
SESSION_SECONDS = 12 * 3600.0
CODE_SECONDS = 600.0

#: Maximum number of valid links, of all users together and of one user; a new link replaces the oldest.
_CODES, _CODES_EACH = 1000, 20

#: File with the signing key and the sessions that users ended early.
_FILE = "monitor.json"

_ALGORITHM = "HS256"
_CLAIMS = ("sub", "role", "sid", "run", "exp")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Login:
    """A verified token: its owner, its end and its id.

    Attributes:
        caller: the token's owner.
        ends: end of the token, in seconds since the epoch.
        token: id with which the token can be revoked; empty: a token of another issuer.
    """

    caller: Caller
    ends: float
    token: str


@dataclass(frozen=True)
class Session:
    """A valid session.

    Attributes:
        caller: the user.
        id: random text; empty without a cookie, where each request carries a token or a certificate.
        ends: end of the session, in seconds since the epoch.
    """

    caller: Caller
    id: str
    ends: float


class Sessions:
    """Starts, checks and ends sessions. Safe to use from any thread and from several processes of a work folder."""

    def __init__(self, folder: Path, *, run: str, clock: Callable[[], float] = time.time) -> None:
        """Reads the signing key, or creates it.

        Args:
            folder: the work folder's token folder.
            run: name of this run of the pages; sessions end with the run; empty: they continue after it, because TLS
                protects the cookies.
            clock: returns seconds since the epoch.

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
        # Browsers send cookies to every port of a host: two services on one machine need different names.
        self.cookie = f"hpo_pilot_{hashlib.sha256(self._key + run.encode()).hexdigest()[:12]}"

    @property
    def _key(self) -> bytes:
        return bytes.fromhex(self._content()[0])

    def _content(self) -> tuple[str, dict[str, float]]:
        """Returns the key and the ended sessions. If their file is missing or damaged, a new key ends every session.

        The new key is written before it is used, so that its cookies are valid in every process of the folder.
        """
        content = self._file.content
        if not self._file.is_lost:
            return content
        fresh: tuple[str, dict[str, float]] = (secrets.token_hex(32), {})
        log.warning(
            "the monitor's key %s was removed or damaged: it is replaced, and all users are signed out", self._path
        )
        try:
            write_private(self._path, _document(*fresh))
        except OSError as error:
            log.error("the monitor's key cannot be written to %s: %s; nobody is signed in", self._path, error.strerror)
            return fresh
        return self._file.content

    def begin(self, login: Login) -> tuple[str, float]:
        """Starts a session; returns its cookie and its end in seconds since the epoch."""
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
        """Returns the session of a cookie; None if the cookie is not ours, has ended, or its token was revoked."""
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

    def sealed(self, values: Mapping[str, str]) -> str:
        """Returns a cookie for the time of a sign-in at an issuer, ten minutes, that only this service can make."""
        return jwt.encode({**values, "exp": self._clock() + CODE_SECONDS}, self._key, _ALGORITHM)

    def unsealed(self, cookie: str) -> Mapping[str, str]:
        """Returns the values of a `sealed` cookie; empty: it is not ours, or too old."""
        options: Any = {"require": ["state", "exp"], "verify_exp": False}
        try:
            claims: dict[str, Any] = jwt.decode(cookie, self._key, [_ALGORITHM], options=options)
        except (jwt.InvalidTokenError, ValueError):
            return {}
        return claims if claims["exp"] > self._clock() else {}

    def end(self, session: Session) -> None:
        """Ends a session: its cookie is no longer valid.

        Raises:
            OSError: the end of the session cannot be written to the file.
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
        """Returns the secret in every form of a session; pages of other sites cannot know it."""
        whose = f"{session.id}\n{session.caller.name}\n{session.caller.role.value}"
        return hmac.new(self._key, f"form\n{whose}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def is_form_token(self, session: Session, given: str) -> bool:
        """Returns whether a form came from a page of this session."""
        return hmac.compare_digest(self.form_token(session).encode(), given.encode("utf-8", "surrogatepass"))


class Codes:
    """One-time codes of links. Each is valid once and for ten minutes. Only digests are kept, in memory."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Starts without codes; `clock` returns seconds since the epoch."""
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: OrderedDict[bytes, tuple[Login, float]] = OrderedDict()

    def make(self, login: Login) -> str:
        """Returns a new code; a user who presents it is signed in with this login."""
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
        """Uses a code up and returns its login; None if the code is unknown, used or too old."""
        with self._lock:
            self._forget()
            found = self._codes.pop(_digest(code), None)
        return None if found is None else found[0]

    def owner(self, code: str) -> Caller | None:
        """Returns the user of a code without using the code up; None where `take` would return None."""
        with self._lock:
            self._forget()
            found = self._codes.get(_digest(code))
        return None if found is None else found[0].caller

    def _forget(self) -> None:
        now = self._clock()
        for digest in [digest for digest, (_, until) in self._codes.items() if until <= now]:
            del self._codes[digest]


def login_of(caller: Caller, token: str, now: float) -> Login:
    """Returns the login of a token that was already verified.

    Args:
        caller: owner of the token.
        token: the token itself; it is not stored.
        now: seconds since the epoch.
    """
    claims: Mapping[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return Login(caller, float(claims.get("exp", now)), str(claims.get("jti", "")))


def is_for(token: str, issuer: str, nonce: str) -> bool:
    """Returns whether a token says that it is of an issuer and of one sign-in there; its signature is not checked."""
    try:
        claims: Mapping[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except jwt.InvalidTokenError:
        return False
    return claims.get("iss") == issuer and claims.get("nonce") == nonce


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()


def _document(key: str, ended: Mapping[str, float]) -> str:
    return json.dumps({"key": key, "ended": dict(ended)})


def _understood(content: Any) -> tuple[str, dict[str, float]]:
    if len(bytes.fromhex(content["key"])) < 32:
        raise ValueError("its key is too short")
    return content["key"], {str(sid): float(until) for sid, until in content["ended"].items()}


# --- guards of API and pages: authentication, limits on bodies, headers of answers ---

#: Maximum size in bytes of a body that is not an upload. Search files have their own, slightly lower limit.
BODY_LIMIT = 1_200_000

API_PREFIX = "/api/v1"

#: API paths that need no token.
_OPEN_API_PATHS = frozenset({f"{API_PREFIX}/health", f"{API_PREFIX}/openapi.json"})
_UPLOAD_PATH = f"{API_PREFIX}/payloads/"


class ApiGuard:
    """ASGI middleware of the API: only calls of users and operators pass."""

    def __init__(self, app: ASGIApp, gate: Tokens) -> None:
        """Wraps `app`; `gate` verifies tokens."""
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        send = _with_headers(send, {"X-Content-Type-Options": "nosniff"})
        if scope["path"] not in _OPEN_API_PATHS:
            try:
                caller = self._gate.caller(Request(scope))
            except TokenRefused as error:
                await problem_response(401, "unauthorized", str(error))(scope, receive, send)
                return
            if caller.role is Role.PILOT:
                wrong = "this is a pilot's token, for the PanDA server only; the API needs a user's or operator's token"
                await problem_response(403, "forbidden", wrong)(scope, receive, send)
                return
            stated = Headers(scope=scope).get(PROTOCOL_HEADER, "")
            if why := disagreement(stated, "the client", "the service"):
                await problem_response(426, "input", why)(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
            _log_call(scope, caller)
        if not scope["path"].startswith(_UPLOAD_PATH):
            too_large = f"the body is above {BODY_LIMIT} bytes"
            if _is_above(BODY_LIMIT, Headers(scope=scope)):
                await problem_response(413, "too_large", too_large)(scope, receive, send)
                return
            receive = LimitedBody(receive, BODY_LIMIT, too_large)
        await self._app(scope, receive, send)


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Returns a `send` that adds the headers that an answer lacks, and forbids copies if it says nothing about them."""

    async def send_safely(message: Message) -> None:
        if message["type"] == "http.response.start":
            found = MutableHeaders(scope=message)
            for name, value in {**headers, "Cache-Control": "no-store"}.items():
                found.setdefault(name, value)
        await send(message)

    return send_safely


def _is_above(limit: int, headers: Headers) -> bool:
    """Returns whether the Content-Length of a body is above `limit` bytes or is not a number."""
    length = headers.get("content-length", "0")
    return not length.isdecimal() or int(length) > limit


def _log_call(scope: Scope, caller: Caller) -> None:
    # A decoded path may contain line ends; a name from another issuer may, too.
    path, name = (text.encode("unicode_escape").decode() for text in (scope["path"], caller.name))
    log.info("%s %s by %s", scope["method"], path, name, extra={"user": name})


#: Maximum size of a form, in bytes: a point may have 1,000 parameters.
FORM_LIMIT = 256_000

#: Paths that need no session. Paths below /static/ need none either.
_OPEN_PATHS = frozenset({"/login", "/login/link", "/login/issuer", "/login/issuer.json", RETURN_PATH, "/favicon.ico"})

#: Forbids content from other sites, scripts inside a page, and frames around a page. Inline styles, and images from
#: data: and blob: addresses, are allowed because figures need them. Frames show kept files of trials, and cannot leave
#: this server.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": _CONTENT_POLICY,
}


class PageGuard:
    """ASGI middleware of the pages: checks sessions, forms and sizes, and sets security headers."""

    def __init__(self, app: ASGIApp, gate: Tokens, sessions: Sessions, uploads: Mapping[str, int]) -> None:
        """Wraps `app`; users with a session pass, and users or operators whom `gate` accepts.

        `uploads` has the most bytes of forms with files, by path.
        """
        self._uploads = uploads
        self._app = app
        self._gate = gate
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        send = _with_headers(send, _PAGE_HEADERS)
        answer = self._refusal(scope) or self._app
        limit = self._limit(scope)
        await answer(scope, LimitedBody(receive, limit, f"this form has at most {limit} bytes"), send)

    def _limit(self, scope: Scope) -> int:
        return self._uploads.get(scope["path"], FORM_LIMIT)

    def _refusal(self, scope: Scope) -> Response | None:
        """Returns the answer that refuses the request; None: it may pass, and its session, if any, is in the scope."""
        path: str = scope["path"]
        request = Request(scope)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return JSONResponse({"error": "no such method"}, 405)
        if scope["method"] == "POST" and not is_from_here(request) and "authorization" not in request.headers:
            return JSONResponse({"error": "this form was not sent by a page of this monitor: open the page again"}, 403)
        if _is_above(limit := self._limit(scope), request.headers):
            return JSONResponse({"error": f"this form has at most {limit} bytes"}, 413)
        if path.startswith("/static/"):
            return None
        try:
            session = self.session(request)
        except TokenRefused as error:
            if path in _OPEN_PATHS:
                return None
            return self._sign_in(request, str(error))
        if session.caller.role is Role.PILOT:
            return JSONResponse({"error": "this is a pilot's token; sign in with a user's token"}, 403)
        scope.setdefault("state", {})["session"] = session
        if scope["method"] == "POST":
            _log_call(scope, session.caller)
        return None

    def session(self, request: HTTPConnection) -> Session:
        """Returns the session of a request: from the cookie, otherwise from a token or a proxy's header, as in the API.

        Raises:
            TokenRefused: the request identifies no known user.
        """
        cookie = request.cookies.get(self._sessions.cookie)
        found = self._sessions.of_cookie(cookie) if cookie else None
        if found is not None:
            return found
        return Session(self._gate.caller(Request(request.scope)), "", float("inf"))

    @staticmethod
    def _sign_in(request: Request, reason: str) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        if request.method == "POST" or not wants_page:
            return JSONResponse({"error": f"sign in first: {reason}"}, 401)
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if wanted == "/" else f"/login?next={quote(wanted, safe='')}", 303)


def is_from_here(request: HTTPConnection) -> bool:
    """Returns whether a form was sent by a page of this server.

    Browsers also send a SameSite=Strict cookie with forms from other ports of this machine, and so from servers of
    other users. Browsers that do not send `Sec-Fetch-Site` send `Origin`.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == headers.get("host", "")


def check_form(sessions: Sessions, session: Session, given: object) -> None:
    """Checks that a form came from a page of this session.

    Raises:
        HTTPException: it did not.
    """
    if not isinstance(given, str) or not sessions.is_form_token(session, given):
        raise HTTPException(403, "this form belongs to another session: open the page again, then repeat the change")


def is_secure(scope: Scope, *, behind_proxy: bool) -> bool:
    """Returns whether the browser uses TLS, so that cookies may have the attribute Secure."""
    return behind_proxy or scope["scheme"] == "https"


def safe_target(wanted: str) -> str:
    """Returns the path to open after signing in: `wanted` if it is a path of this server, otherwise ``/``."""
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    odd = parts.scheme or parts.netloc or not wanted.startswith("/") or wanted.startswith(("//", "/\\"))
    return "/" if odd or "\\" in wanted or any(ord(c) < 32 for c in wanted) else wanted
