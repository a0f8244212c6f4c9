"""What clients ask before they have a token: the server's public keys, and where panda-client gets tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hpo_pilot.server.access.auth import Tokens
from hpo_pilot.server.envelope import failure, to_json

_CONFIG = re.compile(r"(.+)_auth_config\.json")


def routes(tokens: Tokens) -> Sequence[Route]:
    """The routes; nobody needs a token for them."""

    async def public_keys(_: Request) -> Response:
        return JSONResponse(tokens.public_keys)

    async def auth_config(request: Request) -> Response:
        match = _CONFIG.fullmatch(request.path_params["name"])
        vo = match[1] if match else ""
        settings = tokens.others.client_settings(vo) if tokens.others is not None else None
        if settings is None:
            # panda-client shows this to its user.
            message = (
                f"nobody issues tokens for {vo[:64]!r} here by a web page: ask the operator for one "
                "(hpo-pilot token create), and name its file in OIDC_AUTH_TOKEN_FILE"
            )
            return Response(to_json(failure(message)), 404, media_type="application/json")
        return Response(json.dumps(settings), media_type="application/json")

    return [
        Route("/.well-known/jwks.json", public_keys, methods=["GET"]),
        Route("/auth/{name}", auth_config, methods=["GET"]),
    ]
