"""``/server/panda/<function>``: the legacy API over HTTP."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hpo_pilot.server.access.auth import Caller, TokenRefused
from hpo_pilot.server.data.database import Transaction
from hpo_pilot.server.legacy.arguments import LegacyArgumentError
from hpo_pilot.server.legacy.replies import JSON, Reply, wrong
from hpo_pilot.server.legacy.table import LEGACY, Ask, LegacyCall, with_truth_as_text
from hpo_pilot.server.web.bodies import BodyRefused, json_object, pairs, read_body, unpacked
from hpo_pilot.server.web.call import NOBODY, Call
from hpo_pilot.server.web.endpoints import Access

if TYPE_CHECKING:
    from hpo_pilot.server.app import Server

log = logging.getLogger(__name__)

_GZIP = b"\x1f\x8b"


async def answer(server: Server, request: Request) -> Response:
    """Answers a legacy call."""
    reply = await _answer(server, request)
    return Response(reply.text, reply.status, media_type=reply.media_type)


async def _answer(server: Server, request: Request) -> Reply:
    name = request.path_params["function"]
    function = LEGACY.get(name)
    if function is None:
        return wrong(f"{name} is not provided by this server", 404)
    try:
        ask = Ask(Call(_caller(server, request), server, request), {}, JSON in request.headers.get("accept", ""))
        # Before the body is read: what somebody sends who may not is not worth its memory.
        if (refused := function.refuse(ask)) is not None:
            return refused
        return await _run(server, function, replace(ask, given=await _arguments(request)))
    except TokenRefused as error:
        return wrong(f"Token authentication failed. {error}", 403)
    except LegacyArgumentError as error:
        return wrong(f"{name}() {error}")
    except BodyRefused as error:
        return wrong(str(error), error.status)
    except DBAPIError as error:
        log.error("%s: %s", name, error.orig)
        return wrong("database error in the PanDA server", 503)
    except ClientDisconnect:
        return wrong("the caller has gone", 499)
    except Exception:
        log.exception("%s failed", name)
        return wrong(f"{name} failed in the server; its log says why", 500)


def _caller(server: Server, request: Request) -> Caller:
    """Whoever calls: without a token nobody, with a wrong one an error, as on a real server."""
    try:
        return server.gate.caller(request)
    except TokenRefused:
        if "authorization" in request.headers:
            raise
        return NOBODY


async def _run(server: Server, function: LegacyCall, ask: Ask) -> Reply:
    def work(tx: Transaction) -> Reply:
        reply: Reply = function.handler(tx, ask)
        return reply

    match function.access:
        case Access.READ:
            return await server.database.read(work)
        case Access.WRITE:
            return await server.database.write(work)
        case Access.WAIT:
            waited: Reply = await function.handler(ask)
            return waited
        case Access.NOTHING:
            reply: Reply = function.handler(ask)
            return reply


async def _arguments(request: Request) -> dict[str, Any]:
    if request.method in ("GET", "HEAD"):
        return pairs(str(request.url.query))
    body = await read_body(request)
    if "json" in request.headers.get("content-type", ""):
        # Old clients pack JSON without saying so.
        return with_truth_as_text(json_object(unpacked(body) if body[:2] == _GZIP else body))
    given = pairs(body.decode("latin-1"))
    if any("\0" in value for value in given.values() if isinstance(value, str)):
        raise LegacyArgumentError("an argument holds a zero character")
    return given
