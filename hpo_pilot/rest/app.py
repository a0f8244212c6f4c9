"""The API and, beside it, the pages: their parts, joined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from hpo_pilot import __version__
from hpo_pilot.advice import Place
from hpo_pilot.client.local_client import LocalClient
from hpo_pilot.monitor.app import Monitor
from hpo_pilot.monitor.sessions import Sessions
from hpo_pilot.rest import about, changing, looking
from hpo_pilot.rest.context import Context
from hpo_pilot.rest.guard import PREFIX, Guard
from hpo_pilot.rest.metrics import Measured
from hpo_pilot.rest.news import progress_news
from hpo_pilot.rest.problem import ProblemAnswer, add_handlers
from hpo_pilot.rest.uploads import Uploads
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import Store
from hpo_pilot.transformation.transformation import UNPACKED_LIMIT

#: Calls that work side by side; each may hold a connection of the store, whose pool has fifteen.
_THREADS = 12

_DESCRIPTION = """Everything that users do with hyper-parameter searches.

Every call but `health` wants a token: `Authorization: Bearer …`, of role `user` or `operator`. Users see all searches
and change their own; operators change all. Errors are problem documents (RFC 9457) whose `code` says what to do."""


class Api:
    """What answers the calls of one work folder's users, and their browsers."""

    name = "API"

    def __init__(
        self,
        store: Store,
        workdir: WorkDir,
        gate: Gate,
        upload_limit: int,
        unpacked_limit: int = UNPACKED_LIMIT,
        *,
        sessions: Sessions,
        behind_proxy: bool = False,
        place: Place | None = None,
    ) -> None:
        """Joins the parts; nothing runs yet.

        Args:
            store: the searches; stays the caller's.
            workdir: where sandboxes go and uploads are kept.
            gate: tells who calls.
            upload_limit: bytes that a payload may have, packed.
            unpacked_limit: and its files; default: as many as a pilot takes.
            sessions: of the pages.
            behind_proxy: whether a TLS proxy is in front.
            place: where commands on the pages find the searches; None: behind the service.

        Raises:
            InputError: the work folder cannot be written.
        """
        everybody = LocalClient(workdir.root, opened=store)
        self._gate = gate
        self._context = Context(
            store, workdir, Uploads(workdir.uploads, upload_limit, unpacked_limit), progress_news(everybody.progress)
        )
        self._monitor = Monitor(store, workdir, gate, sessions, behind_proxy=behind_proxy, place=place)

    def application(self) -> ASGIApp:
        """The application, behind its guard."""
        app = build()
        app.state.context = self._context
        both = _Side(Guard(app, self._gate), self._monitor)
        return Measured(both, self._gate, self._context.store, self._context.workdir)

    def close_waiting(self) -> None:
        """Answers the calls that wait for news, for the API ends."""
        self._context.news.close()
        self._monitor.close_waiting()


class _Side:
    """The API below its prefix, the pages at every other path: each lets in whom it knows, in its own way."""

    def __init__(self, api: ASGIApp, monitor: Monitor) -> None:
        self._api = api
        self._pages = monitor.application()
        self._monitor = monitor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self._monitor.warm_up()
        is_page = scope["type"] == "http" and not f"{scope['path']}/".startswith("/api/")
        await (self._pages if is_page else self._api)(scope, receive, send)


def build() -> FastAPI:
    """The application without parts and guard: what describes itself."""
    app = FastAPI(
        title="hpo-pilot",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        # Their pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    for module in (about, looking, changing):
        app.include_router(module.router, prefix=PREFIX)
    add_handlers(app)
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(plain())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]  # FastAPI's own way to add to its description
    return app


@asynccontextmanager
async def _lifespan(_app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield


def _completed(description: dict[str, Any]) -> dict[str, Any]:
    """The description with what FastAPI cannot know: tokens, and what errors look like."""
    components = description.setdefault("components", {})
    problem = ProblemAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update({**problem.pop("$defs", {}), "ProblemAnswer": problem})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    description["security"] = [{"token": []}]
    return description
