"""The gate: whoever calls shows a token here, or comes through a trusted proxy."""

from __future__ import annotations

from starlette.requests import Request

from hpo_pilot.server.access.auth import Caller, Tokens
from hpo_pilot.server.access.distinguished_name import ProxyHeader


class Gate:
    """Tells who sent a request."""

    def __init__(self, tokens: Tokens, proxy: ProxyHeader | None = None) -> None:
        """Joins the ways in.

        Args:
            tokens: verifies tokens.
            proxy: takes names from a proxy's header; None: tokens alone.
        """
        self.tokens = tokens
        self._proxy = proxy

    def caller(self, request: Request) -> Caller:
        """Who sent the request.

        Raises:
            TokenRefused: nobody we know; the message says why.
        """
        headers = request.headers
        named = self._proxy.caller(request) if self._proxy is not None else None
        if named is not None and "authorization" not in headers:
            return named
        return self.tokens.verify(headers.get("authorization"), headers.get("origin"))
