"""What every call passes before it is looked at: who calls, and how large the body may be."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpo_pilot.rest.problem import problem_response
from hpo_pilot.server.access.auth import Role, TokenRefused
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.server.web.limited_body import LimitedBody

#: Bytes of a body that is no upload: search files have a limit of their own just below.
BODY_LIMIT = 1_200_000

PREFIX = "/api/v1"

#: Paths that need no token.
_OPEN = frozenset({f"{PREFIX}/health", f"{PREFIX}/openapi.json"})
_UPLOADS = f"{PREFIX}/payloads/"

log = logging.getLogger(__name__)


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        """Lets those pass to `app` whom `gate` knows as users or operators."""
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if scope["path"] not in _OPEN:
            try:
                caller = self._gate.caller(Request(scope))
            except TokenRefused as error:
                await problem_response(401, "unauthorized", str(error))(scope, receive, send_safely)
                return
            if caller.role is Role.PILOT:
                wrong = (
                    "a pilot's token takes jobs, at the PanDA server, which has another address; searches, here, want "
                    "a user's token"
                )
                refused = problem_response(403, "forbidden", wrong)
                await refused(scope, receive, send_safely)
                return
            scope.setdefault("state", {})["caller"] = caller
            # Unquoted a path may hold line ends, and so may another issuer's names.
            path, name = (text.encode("unicode_escape").decode() for text in (scope["path"], caller.name))
            log.info("%s %s by %s", scope["method"], path, name, extra={"user": name})
        if not scope["path"].startswith(_UPLOADS):
            length = Headers(scope=scope).get("content-length", "0")
            if not length.isdecimal() or int(length) > BODY_LIMIT:
                await _too_large()(scope, receive, send_safely)
                return
            receive = LimitedBody(receive, BODY_LIMIT, f"the body is above {BODY_LIMIT} bytes")
        await self._app(scope, receive, send_safely)


def _too_large() -> ASGIApp:
    return problem_response(413, "too_large", f"the body is above {BODY_LIMIT} bytes")
