"""Who sent a request: the owner of its token."""

from __future__ import annotations

from starlette.requests import Request

from hpo_pilot.server.access.auth import Caller, Tokens


class Gate:
    """Tells who sent a request."""

    def __init__(self, tokens: Tokens) -> None:
        """Takes the tokens that are let in."""
        self.tokens = tokens

    def caller(self, request: Request) -> Caller:
        """Who sent the request.

        Raises:
            TokenRefused: nobody we know; the message says why.
        """
        return self.tokens.verify(request.headers.get("authorization"), request.headers.get("origin"))
