"""The server over HTTP: routes, tokens, bodies, and the way of a call from its path to its handler and back."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hpo_pilot.server import api_file_server, api_hpo_pilot, api_job, api_pilot, api_system, api_task, files_http
from hpo_pilot.server.auth import Role, Tokens
from hpo_pilot.server.call import NOBODY, Call
from hpo_pilot.server.database import Database, Transaction
from hpo_pilot.server.endpoints import TABLE, Access, ArgumentError, Endpoint
from hpo_pilot.server.envelope import Envelope, failure, to_json
from hpo_pilot.server.file_store import Folder
from hpo_pilot.server.lost_jobs import HeartbeatWatch
from hpo_pilot.server.ownership import check_owner
from hpo_pilot.server.waiting import Changes, WaitingPilots

log = logging.getLogger(__name__)

#: Imported for what they put into the table of calls.
API_MODULES = (api_file_server, api_hpo_pilot, api_job, api_pilot, api_system, api_task)

BODY_LIMIT = 32 * 1024 * 1024  # bytes of a call's arguments, unpacked
_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
MESSAGE_PRODUCTION = "production or pilot role required"
_MESSAGE_JSON = "failed to load JSON"
_MESSAGE_DATABASE = "database error in the PanDA server"


class Server:
    """The parts of a running server, joined."""

    def __init__(self, database: Database, files: Path, tokens: Tokens, heartbeat_timeout: float) -> None:
        """Joins the parts; nothing runs yet.

        Args:
            database: open.
            files: the folder of sandboxes and outputs.
            tokens: who may call.
            heartbeat_timeout: seconds of silence that make a job lost.

        Raises:
            InputError: the folder cannot be written.
        """
        self.database = database
        self.tokens = tokens
        self.cache = Folder(files / "cache")
        self.storage = Folder(files / "storage")
        self.pilots = WaitingPilots()
        self.changes = Changes()
        self.watch = HeartbeatWatch(database, heartbeat_timeout)
        database.announce = self._announce
        with database.writing() as tx:
            api_file_server.reconcile(tx, self.cache)

    def _announce(self, transaction: Transaction) -> None:
        if transaction.activated:
            self.pilots.announce(transaction.activated)
        if transaction.users:
            self.changes.announce(transaction.users)

    def close_waiting(self) -> None:
        """Answers every long poll now, so that the process can end."""
        self.pilots.close()
        self.changes.close()

    def application(self) -> Starlette:
        """The ASGI application."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            watching = asyncio.create_task(self.watch.run())
            watching.add_done_callback(_complain)
            try:
                yield
            finally:
                watching.cancel()
                self.close_waiting()

        return Starlette(
            routes=[
                Route("/api/{version}/{group}/{function}", self._api, methods=_METHODS),
                Route("/cache/{name}", files_http.handler(self, files_http.cache_file), methods=["GET"]),
                Route(
                    "/storage/{name}",
                    files_http.handler(self, files_http.storage_file),
                    methods=["GET", "PUT", "DELETE"],
                ),
            ],
            lifespan=lifespan,
        )

    async def _api(self, request: Request) -> Response:
        path = request.path_params
        endpoint = TABLE.get(f"{path['group']}/{path['function']}")
        if endpoint is None or path["version"] not in ("v1", "latest"):
            return _reply(failure(f"method {path['function']} is forbidden"), 403)  # as a real server has it
        caller = self.tokens.caller(request.headers.get("authorization"))
        if endpoint.roles and caller is None:
            return _reply(failure("Token authentication failed. A valid bearer token is required"), 401)
        if endpoint.roles and caller is not None and caller.role not in endpoint.roles:
            return _reply(failure(_missing_role(endpoint)), 403)
        if endpoint.production and caller is not None and not caller.is_operator:
            return _reply(failure(MESSAGE_PRODUCTION))
        if endpoint.method and request.method != endpoint.method:
            return _reply(failure(f"expecting {endpoint.method}, received {request.method}"))
        try:
            arguments = await _arguments(endpoint, request)
            return _reply(await self._run(endpoint, Call(caller or NOBODY, self, request), arguments))
        except ArgumentError as error:
            return _reply(failure(str(error)))
        except _BodyRefused as error:
            return _reply(failure(str(error)), error.status)
        except DBAPIError as error:
            # The transaction was rolled back: the caller may repeat it, for instance once the disk has room again.
            log.error("%s: %s", endpoint.path, error.orig)
            return _reply(failure(_MESSAGE_DATABASE), 503)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            log.exception("%s failed", endpoint.path)
            return _reply(failure(f"{endpoint.path} failed in the server; its log says why"), 500)

    async def _run(self, endpoint: Endpoint, call: Call, arguments: dict[str, Any]) -> Envelope:
        def work(tx: Transaction) -> Envelope:
            if endpoint.owner_of and (refused := check_owner(tx, call.caller, arguments[endpoint.owner_of])):
                return refused
            reply: Envelope = endpoint.handler(tx, call, **arguments)
            return reply

        match endpoint.access:
            case Access.READ:
                return await self.database.read(work)
            case Access.WRITE:
                return await self.database.write(work)
            case Access.WAIT:
                waited: Envelope = await endpoint.handler(call, **arguments)
                return waited
            case Access.NOTHING:
                reply: Envelope = endpoint.handler(call, **arguments)
                return reply


def _reply(envelope: Envelope, status: int = 200) -> Response:
    return Response(to_json(envelope), status, media_type="application/json")


def _missing_role(endpoint: Endpoint) -> str:
    return MESSAGE_PRODUCTION if Role.PILOT in endpoint.roles else "user role required"


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the watch over heartbeats ended", exc_info=error)


class _BodyRefused(Exception):
    """The request's body is not taken."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def _arguments(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    if endpoint.raw_body:
        return endpoint.check({}, from_query=False)
    if request.method == "GET":
        return endpoint.check(_pairs(str(request.url.query)), from_query=True)
    body = await _body(request)
    if "json" in request.headers.get("content-type", "") or body[:1] == b"{":
        return endpoint.check(_json_object(body), from_query=False)
    return endpoint.check(_pairs(body.decode("latin-1")), from_query=False)


def _pairs(query: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in found:
            found[name] = [*found[name], value] if isinstance(found[name], list) else [found[name], value]
        else:
            found[name] = value
    return found


async def _body(request: Request) -> bytes:
    too_large = _BodyRefused(f"the request's body is above {BODY_LIMIT} bytes", 413)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise too_large
    if request.headers.get("content-encoding", "") != "gzip":
        return bytes(body)
    try:
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        unpacked = unpacker.decompress(bytes(body), BODY_LIMIT)
    except (zlib.error, gzip.BadGzipFile) as error:
        raise _BodyRefused(f"the request's body is no gzip: {error}", 400) from error
    if unpacker.unconsumed_tail:
        raise too_large
    return unpacked


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        given = json.loads(body or b"{}")
        lowered = body.lower()
        if b"\\ud" in lowered:
            json.dumps(given, ensure_ascii=False).encode()  # half a character: no database takes it
        if b"\\u0000" in lowered:
            raise ValueError("a text with a zero character")
    except (ValueError, RecursionError) as error:
        raise _BodyRefused(f"{_MESSAGE_JSON}: {error}", 400) from error
    if not isinstance(given, dict):
        raise _BodyRefused(f"{_MESSAGE_JSON}: an object is expected", 400)
    return given
