"""What every request for a page passes: who asks, whether a form is ours, and what the browser is to be wary of."""

from __future__ import annotations

import logging
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpo_pilot.monitor.sessions import Session, Sessions
from hpo_pilot.server.access.auth import Role, TokenRefused
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.server.web.limited_body import LimitedBody

#: Bytes that a form may have.
FORM_LIMIT = 64_000

#: Paths that need no session; those below /static/ do not either.
_OPEN = frozenset({"/login", "/login/link", "/favicon.ico"})

#: Nothing from elsewhere, no script in a page, nobody's frame. Figures bring styles of their own, and their canvases
#: and downloads are data: and blob: addresses.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

log = logging.getLogger(__name__)


class Access:
    """An ASGI application around the pages."""

    def __init__(self, app: ASGIApp, gate: Gate, sessions: Sessions) -> None:
        """Lets those pass to `app` who have a session, or whom `gate` knows as users or operators."""
        self._app = app
        self._gate = gate
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                _protect(MutableHeaders(scope=message))
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_safely)
            return
        await self._app(scope, LimitedBody(receive, FORM_LIMIT, f"a form has at most {FORM_LIMIT} bytes"), send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered instead of the page; None: nothing, and the session is noted in the scope."""
        path: str = scope["path"]
        request = Request(scope)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return JSONResponse({"error": "no such method"}, 405)
        if scope["method"] == "POST" and not from_here(request) and "authorization" not in request.headers:
            return JSONResponse({"error": "this form was not sent by a page of this monitor: open the page again"}, 403)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > FORM_LIMIT:
            return JSONResponse({"error": f"a form has at most {FORM_LIMIT} bytes"}, 413)
        if path.startswith("/static/"):
            return None
        try:
            session = self.session(request)
        except TokenRefused as error:
            if path in _OPEN:
                return None
            return self._sign_in(request, str(error))
        if session.caller.role is Role.PILOT:
            return JSONResponse({"error": "a pilot's token takes jobs; the pages want a user's"}, 403)
        scope.setdefault("state", {})["session"] = session
        if scope["method"] == "POST":
            # Unquoted a path may hold line ends, and so may another issuer's names.
            shown, name = (text.encode("unicode_escape").decode() for text in (path, session.caller.name))
            log.info("%s %s by %s", scope["method"], shown, name)
        return None

    def session(self, request: HTTPConnection) -> Session:
        """Who asks: by the session's cookie, else as the API knows callers, by a token or a proxy's header.

        Raises:
            TokenRefused: nobody we know.
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


def from_here(request: HTTPConnection) -> bool:
    """Whether a form was sent by a page of this very server.

    A cookie that is SameSite=Strict comes with forms from every port of this machine, and so from every user's server
    there. Browsers that do not say `Sec-Fetch-Site` name the origin.
    """
    headers = request.headers
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == headers.get("host", "")


def check_form(sessions: Sessions, session: Session, given: object) -> None:
    """Makes sure that a form came from a page of this session.

    Raises:
        HTTPException: it did not.
    """
    if not isinstance(given, str) or not sessions.is_form_token(session, given):
        raise HTTPException(403, "this form is not of your present session: open the page again, then repeat it")


def _protect(headers: MutableHeaders) -> None:
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["X-Frame-Options"] = "DENY"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Content-Security-Policy"] = _POLICY
    headers.setdefault("Cache-Control", "no-store")


def is_secure(scope: Scope, *, behind_proxy: bool) -> bool:
    """Whether the browser's connection is protected, so that its cookies may ask for that."""
    return behind_proxy or scope["scheme"] == "https"


def safe_target(wanted: str) -> str:
    """Where to go after signing in: a path of ours, whatever a link says."""
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return "/"
    odd = parts.scheme or parts.netloc or not wanted.startswith("/") or wanted.startswith(("//", "/\\"))
    return "/" if odd or "\\" in wanted or any(ord(c) < 32 for c in wanted) else wanted
