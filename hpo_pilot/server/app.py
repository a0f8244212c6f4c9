"""The server: its parts, its routes, and a call from its path to its handler and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hpo_pilot.server import bigpanda, file_calls, metrics, monitoring, pilot_calls, points, queues, task_calls
from hpo_pilot.server.attempts import HeartbeatWatch
from hpo_pilot.server.calls import (
    NOBODY,
    TABLE,
    ArgumentError,
    BodyRefused,
    Call,
    Endpoint,
    Envelope,
    carry_out,
    check_owner,
    failure,
    json_object,
    pairs,
    read_body,
    to_json,
)
from hpo_pilot.server.database import Database, Transaction
from hpo_pilot.server.file_store import Folder
from hpo_pilot.server.metrics import CALL_FAILURES, CALL_SECONDS
from hpo_pilot.server.pilots import Changes, KnownPilots, WaitingPilots
from hpo_pilot.server.queues import Queues
from hpo_pilot.server.tasks import Housekeeping, Limits
from hpo_pilot.server.tokens import Role, TokenRefused, Tokens

log = logging.getLogger(__name__)

#: Modules that put calls into `calls.TABLE` when they are imported.
API_MODULES = (file_calls, monitoring, pilot_calls, task_calls)

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]
_DEFAULT_LIMITS = Limits()
_MESSAGE_DATABASE = "database error in the PanDA server"


class Server:
    """The parts of a running server, joined."""

    name = "server"

    def __init__(
        self,
        database: Database,
        files: Path,
        tokens: Tokens,
        heartbeat_timeout: float,
        limits: Limits = _DEFAULT_LIMITS,
        queue_file: Path | None = None,
    ) -> None:
        """Joins the parts; nothing runs yet.

        Args:
            database: open.
            files: the folder of sandboxes and outputs.
            tokens: verifies tokens and identifies callers.
            heartbeat_timeout: seconds of silence that make a job lost.
            limits: the operator's limits on users and on the time for which old data is kept.
            queue_file: JSON file of the queues; None: any name is a queue.

        Raises:
            InputError: the folder cannot be written, or the queue file is not valid.
        """
        self.database = database
        self.tokens = tokens
        self.limits = limits
        self.cache = Folder(files / "cache")
        self.storage = Folder(files / "storage")
        self.capabilities = points.Capabilities(files / "points.key")
        self.reading_key = bigpanda.reading_key(files)
        self.queues = Queues(queue_file, files / "grid")
        self.pilots = WaitingPilots()
        self.known_pilots = KnownPilots()
        self.changes = Changes()
        self.watch = HeartbeatWatch(database, heartbeat_timeout)
        self.housekeeping = Housekeeping(database, self.cache, self.storage, limits.retention_days)
        database.announce = self._announce
        with database.writing() as tx:
            file_calls.reconcile(tx, self.cache)

    def _announce(self, transaction: Transaction) -> None:
        if transaction.activated:
            self.pilots.announce(transaction.activated_at)
        if transaction.users:
            self.changes.announce(transaction.users)

    def close_waiting(self) -> None:
        """Answers every long poll now, so that the process can end."""
        self.pilots.close()
        self.changes.close()

    def application(self) -> Starlette:
        """Returns the ASGI application."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            running = [
                asyncio.create_task(self.watch.run(), name="the watch over heartbeats"),
                asyncio.create_task(self.housekeeping.run(), name="the removal of old data"),
            ]
            for task in running:
                task.add_done_callback(_complain)
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
                self.close_waiting()

        return Starlette(
            routes=[
                Route("/api/{version}/{group}/{function}", self._api, methods=_METHODS),
                Route("/server/panda/{function}", partial(pilot_calls.legacy, self), methods=["GET", "POST"]),
                *queues.queue_routes(self),
                queues.route(),
                metrics.route(self),
                Route("/cache/{name}", file_calls.handler(self, file_calls.cache_file), methods=["GET"]),
                Route(
                    "/storage/{name}",
                    file_calls.handler(self, file_calls.storage_file),
                    methods=["GET", "PUT", "DELETE"],
                ),
                *queues.key_routes(self.tokens),
                *points.routes(self),
                *bigpanda.routes(self),
            ],
            lifespan=lifespan,
        )

    async def _api(self, request: Request) -> Response:
        path = request.path_params
        endpoint = TABLE.get(f"{path['group']}/{path['function']}")
        if endpoint is None or path["version"] not in ("v1", "latest"):
            return _reply(failure(f"{path['group']}/{path['function']} is not provided by this server"), 404)
        try:
            caller = self.tokens.caller(request)
        except TokenRefused as error:
            if endpoint.roles:
                return _reply(failure(f"Token authentication failed. {error}"), 401)
            caller = NOBODY
        if endpoint.roles and caller.role not in endpoint.roles:
            return _reply(failure(_missing_role(endpoint)), 403)
        if endpoint.method and request.method != endpoint.method:
            return _reply(failure(f"expecting {endpoint.method}, received {request.method}"))
        try:
            arguments = await _arguments(endpoint, request)
            with CALL_SECONDS.labels(endpoint.path).time():
                answer = await self._run(endpoint, Call(caller, self, request), arguments)
            return _reply(answer)
        except ArgumentError as error:
            return _reply(failure(str(error)))
        except BodyRefused as error:
            return _reply(failure(str(error)), error.status)
        except DBAPIError as error:
            # The transaction was rolled back: the caller may repeat it, for instance once the disk has room again.
            CALL_FAILURES.labels(endpoint.path).inc()
            log.error("%s: %s", endpoint.path, error.orig)
            return _reply(failure(_MESSAGE_DATABASE), 503)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            CALL_FAILURES.labels(endpoint.path).inc()
            log.exception("%s failed", endpoint.path)
            return _reply(failure(f"{endpoint.path} failed in the server; its log says why"), 500)

    async def _run(self, endpoint: Endpoint, call: Call, arguments: dict[str, Any]) -> Envelope:
        def checked(tx: Transaction, call: Call, **arguments: Any) -> Envelope:
            if refused := check_owner(tx, call.caller, arguments[endpoint.owner_of]):
                return refused
            reply: Envelope = endpoint.handler(tx, call, **arguments)
            return reply

        handler = checked if endpoint.owner_of else endpoint.handler
        reply: Envelope = await carry_out(self.database, endpoint.access, handler, call, **arguments)
        return reply


def _reply(envelope: Envelope, status: int = 200) -> Response:
    return Response(to_json(envelope), status, media_type="application/json")


def _missing_role(endpoint: Endpoint) -> str:
    return "production or pilot role required" if Role.PILOT in endpoint.roles else "user role required"


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s ended", task.get_name(), exc_info=error)


async def _arguments(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    if endpoint.raw_body:
        return endpoint.check({}, from_query=False)
    if request.method == "GET":
        return endpoint.check(pairs(str(request.url.query)), from_query=True)
    body = await read_body(request)
    if "json" in request.headers.get("content-type", "") or body[:1] == b"{":
        return endpoint.check(json_object(body), from_query=False)
    return endpoint.check(pairs(body.decode("latin-1")), from_query=False)
