"""The server: its parts, its routes, and a call from its path to its handler and back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hpo_pilot.protocol import PROTOCOL_HEADER, disagreement
from hpo_pilot.server import (
    asking,
    bigpanda,
    calls,
    file_calls,
    metrics,
    monitoring,
    pilot_calls,
    points,
    queues,
    task_calls,
)
from hpo_pilot.server.helpers import Helpers
from hpo_pilot.server.metrics import CALL_FAILURES, CALL_SECONDS
from hpo_pilot.server.replies import failure, refuse, reply
from hpo_pilot.server.state import ServerState
from hpo_pilot.server.tasks import Housekeeping
from hpo_pilot.server.tokens import Role, TokenRefused

log = logging.getLogger(__name__)

#: Modules that put calls into `calls.TABLE` when they are imported.
API_MODULES = (asking, file_calls, monitoring, pilot_calls, task_calls)

_METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH"]


class Server:
    """A server: its state, and the routes of its calls."""

    name = "server"

    def __init__(self, state: ServerState, helpers: Helpers) -> None:
        """Corrects the list of cached files; nothing runs yet.

        Args:
            state: its state.
            helpers: its further processes, which are no concern of such a process.
        """
        self.state = state
        self._helpers = helpers
        self._housekeeping = Housekeeping(state.database, state.cache, state.storage, state.retention_days)
        if not state.further:
            with state.database.writing() as tx:
                file_calls.reconcile(tx, state.cache)

    def close_waiting(self) -> None:
        """Answers every long poll now, so that the process can end."""
        self.state.close_waiting()

    def application(self) -> Starlette:
        """Returns the ASGI application."""
        state = self.state

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            work = {"the look at other processes": state.follow()}
            if not state.further:
                work |= {
                    "the watch over heartbeats": state.watch.run(),
                    "the removal of old data": self._housekeeping.run(),
                    "the further processes": self._helpers.run(),
                }
            running = [asyncio.create_task(one, name=name) for name, one in work.items()]
            for task in running:
                task.add_done_callback(_complain)
            try:
                yield
            finally:
                for task in running:
                    task.cancel()
                self.close_waiting()
                await asyncio.gather(*running, return_exceptions=True)

        return Starlette(
            routes=[
                Route("/api/{version}/{group}/{function}", self, methods=_METHODS),
                Route("/server/panda/{function}", partial(pilot_calls.legacy, state), methods=["GET", "POST"]),
                *queues.queue_routes(state.queues),
                queues.route(),
                metrics.route(state.database, state.tokens, lambda: state.pilots.waiting),
                Route("/cache/{name}", file_calls.handler(state, file_calls.cache_file), methods=["GET"]),
                Route(
                    "/storage/{name}",
                    file_calls.handler(state, file_calls.storage_file),
                    methods=["GET", "PUT", "DELETE"],
                ),
                *queues.key_routes(state.tokens),
                *points.routes(state),
                *bigpanda.routes(state),
            ],
            lifespan=lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers an API call, without Starlette's layers around functions: each waiting call would hold them."""
        await (await self._api(Request(scope, receive, send)))(scope, receive, send)

    async def _api(self, request: Request) -> Response:
        path = request.path_params
        endpoint = calls.TABLE.get(f"{path['group']}/{path['function']}")
        if endpoint is None or path["version"] not in ("v1", "latest"):
            return refuse(f"{path['group']}/{path['function']} is not provided by this server", 404)
        try:
            caller = self.state.tokens.caller(request)
        except TokenRefused as error:
            if endpoint.roles:
                return refuse(f"Token authentication failed. {error}", 401)
            caller = calls.NOBODY
        if endpoint.roles and caller.role not in endpoint.roles:
            return refuse(_missing_role(endpoint), 403)
        if endpoint.method and request.method != endpoint.method:
            return reply(failure(f"expecting {endpoint.method}, received {request.method}"))
        # Only new jobs are refused: a pilot that is older than an upgraded server can still report its running ones.
        stated = request.headers.get(PROTOCOL_HEADER, "") if endpoint.path == "pilot/acquire_jobs" else ""
        if why := disagreement(stated, "the pilot", "the server"):
            return refuse(why, 426)
        call = calls.Call(caller, self.state, request)
        answer = await calls.guarded(endpoint.path, self._answer(endpoint, call), refuse)
        if answer.status_code >= 500:
            CALL_FAILURES.labels(endpoint.path).inc()
        return answer

    async def _answer(self, endpoint: calls.Endpoint, call: calls.Call) -> Response:
        try:
            arguments = await _arguments(endpoint, call.request)
        except calls.ArgumentError as error:
            return reply(failure(str(error)))
        with CALL_SECONDS.labels(endpoint.path).time():
            return reply(
                await calls.carry_out(self.state.database, endpoint.access, endpoint.handler, call, **arguments)
            )


def _missing_role(endpoint: calls.Endpoint) -> str:
    return "production or pilot role required" if Role.PILOT in endpoint.roles else "user role required"


def _complain(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s ended", task.get_name(), exc_info=error)


async def _arguments(endpoint: calls.Endpoint, request: Request) -> dict[str, Any]:
    if endpoint.raw_body:
        return endpoint.check({}, from_query=False)
    if request.method == "GET":
        return endpoint.check(calls.pairs(str(request.url.query)), from_query=True)
    body = await calls.read_body(request)
    if "json" in request.headers.get("content-type", "") or body[:1] == b"{":
        return endpoint.check(calls.json_object(body), from_query=False)
    return endpoint.check(calls.pairs(body.decode("latin-1")), from_query=False)
