"""The transformation by URL, where tasks' transPath says that pilots find it.

Everybody may have it: it is code, and holds no secrets.
"""

from __future__ import annotations

import hashlib
from functools import cache

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hpo_pilot.server.taskbuffer.descriptions import TRANSFORMATION
from hpo_pilot.transformation.executable import build


def route() -> Route:
    """The route of the transformation."""
    return Route("/trf/user/{name}", _transformation, methods=["GET"])


async def _transformation(request: Request) -> Response:
    if request.path_params["name"] != TRANSFORMATION:
        return PlainTextResponse(f"there is no transformation of this name; {TRANSFORMATION} is here\n", 404)
    content, tag = _built()
    headers = {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/octet-stream", headers=headers)


@cache
def _built() -> tuple[bytes, str]:
    content = build()
    return content, f'"{hashlib.sha256(content).hexdigest()}"'
