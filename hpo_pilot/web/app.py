"""The application: the REST API and the pages, with authentication and metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hpo_pilot import __version__
from hpo_pilot.advice import Place
from hpo_pilot.errors import HpoPilotError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES
from hpo_pilot.operations.here import Here
from hpo_pilot.server.issuers import RETURN_PATH
from hpo_pilot.server.metrics import PATH, exposition
from hpo_pilot.server.tokens import TokenRefused, Tokens
from hpo_pilot.steering.metrics import last_snapshot
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchRecord, Store
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.store.progress import all_progress
from hpo_pilot.store.queries import records_of, search_heads
from hpo_pilot.web import forms, outputs, pages, submission
from hpo_pilot.web.api import changing_router, reading_router, service_router
from hpo_pilot.web.api_context import (
    RETRY_AFTER,
    UNPACKED_LIMIT,
    Context,
    ProblemAnswer,
    Uploads,
    add_handlers,
    error_answer,
    problem_response,
    progress_watcher,
)
from hpo_pilot.web.live import (
    JOBS_TOPIC,
    PILOTS_TOPIC,
    JobFilter,
    JobFragments,
    LiveUpdates,
    SearchFragments,
    searches_topic,
)
from hpo_pilot.web.pages import PageContext, context_of, page, place_of, session_of, view_of
from hpo_pilot.web.rendering import environment, pack_all, serve_static, static_path
from hpo_pilot.web.search_views import FigureCache, SearchCache
from hpo_pilot.web.server_jobs import ServerJobs
from hpo_pilot.web.sessions import API_PREFIX, ApiGuard, Codes, PageGuard, Sessions

#: Maximum number of concurrent calls; each may hold a connection to the store, whose pool has 15.
_THREADS = 12

_DESCRIPTION = """Everything that users do with hyper-parameter searches.

Every call but `health` wants a token: `Authorization: Bearer …`, of role `user` or `operator`. Users see all searches
and change their own; operators change all. Errors are problem documents (RFC 9457) whose `code` says what to do."""


class Api:
    """The REST API and the pages of one work folder."""

    name = "API"

    def __init__(
        self,
        store: Store,
        workdir: WorkDir,
        gate: Tokens,
        upload_limit: int,
        unpacked_limit: int = UNPACKED_LIMIT,
        *,
        sessions: Sessions,
        behind_proxy: bool = False,
        place: Place | None = None,
    ) -> None:
        """Joins the parts; nothing runs yet.

        Args:
            store: store of the searches; the caller closes it.
            workdir: work folder for sandboxes and uploads.
            gate: identifies the caller of each request.
            upload_limit: maximum size of a packed payload, in bytes.
            unpacked_limit: maximum size of its unpacked files, in bytes.
            sessions: browser sessions of the pages.
            behind_proxy: whether a TLS proxy forwards the requests.
            place: place of the searches in the commands that pages show; None: the service.

        Raises:
            InputError: the work folder cannot be written.
        """
        everybody = Here(workdir.root, opened=store)
        self._gate = gate
        self._context = Context(
            store, workdir, Uploads(workdir.uploads, upload_limit, unpacked_limit), progress_watcher(everybody.progress)
        )
        self._monitor = Pages(self._context, gate, sessions, behind_proxy=behind_proxy, place=place)

    def application(self) -> ASGIApp:
        """Returns the ASGI application with guards and metrics."""
        app = build_api()
        app.state.context = self._context
        both = _ApiAndPages(ApiGuard(app, self._gate), self._monitor)
        return MeasuredCalls(both, self._gate, self._context.store, self._context.workdir)

    def close_waiting(self) -> None:
        """Answers all waiting long-poll calls and ends the pages' streams, because the API ends."""
        self._context.news.close()
        self._context.asking.close()
        self._monitor.close_waiting()


class _ApiAndPages:
    """Sends paths below ``/api/`` to the API and all other paths to the pages; each has its own guard."""

    def __init__(self, api: ASGIApp, monitor: Pages) -> None:
        self._api = api
        self._pages = monitor.application()
        self._monitor = monitor
        self._has_answered = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and not f"{scope['path']}/".startswith("/api/")
        await (self._pages if is_page else self._api)(scope, receive, send)
        if scope["type"] == "http" and not self._has_answered:
            # Not before the first answer, for which a service waits: it takes long if the store is large.
            self._has_answered = True
            self._monitor.warm_up()


def build_api() -> FastAPI:
    """Returns the API application without context and guard; enough for its OpenAPI description."""
    app = FastAPI(
        title="hpo-pilot",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url=f"{API_PREFIX}/openapi.json",
        # FastAPI's pages of documentation would load scripts from another host.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    for router in (service_router, reading_router, changing_router):
        app.include_router(router, prefix=API_PREFIX)
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
    """Adds to the OpenAPI description what FastAPI cannot derive: tokens and the schema of errors."""
    components = description.setdefault("components", {})
    problem = ProblemAnswer.model_json_schema(ref_template="#/components/schemas/{model}")
    components.setdefault("schemas", {}).update({**problem.pop("$defs", {}), "ProblemAnswer": problem})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    description["security"] = [{"token": []}]
    return description


# --- /metrics: metrics of the store, of calls and of the steering process ---

#: Maximum number of searches with their own metrics; searches that are not over come first, then the newest.
_SEARCHES = 100

METRICS_REGISTRY = CollectorRegistry()
ProcessCollector(registry=METRICS_REGISTRY)
_CALL_SECONDS = Histogram(
    "hpo_pilot_api_call_seconds",
    "Durations of calls of the API and pages, by pattern of the path; calls that wait for news are long.",
    ["method", "path"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=METRICS_REGISTRY,
)

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


class MeasuredCalls:
    """ASGI middleware that measures calls and serves the metrics to Prometheus."""

    def __init__(self, app: ASGIApp, gate: Tokens, store: Store, workdir: WorkDir) -> None:
        """Wraps `app`; only callers that `gate` accepts may read the metrics."""
        self._app, self._gate, self._store, self._workdir = app, gate, store, workdir

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] == PATH and scope["method"] == "GET":
            try:
                self._gate.caller(Request(scope))
            except TokenRefused as error:
                await problem_response(401, "unauthorized", str(error))(scope, receive, send)
                return
            response = await run_in_threadpool(self._answer)
            await response(scope, receive, send)
            return
        begun = time.perf_counter()
        try:
            await self._app(scope, receive, send)
        finally:
            # The router puts the route's pattern into the scope. The path itself would give unlimited labels.
            pattern = getattr(scope.get("route"), "path", "other")
            if scope["path"].startswith(API_PREFIX) and not pattern.startswith(API_PREFIX):
                pattern = f"{API_PREFIX}/{pattern.lstrip('/')}"
            method = scope["method"] if scope["method"] in _METHODS else "other"
            _CALL_SECONDS.labels(method, pattern).observe(time.perf_counter() - begun)

    def _answer(self) -> Any:
        found = metrics_of(self._store)
        return exposition(found, METRICS_REGISTRY, more=last_snapshot(self._workdir.steering_metrics))


def metrics_of(store: Store) -> list[Metric]:
    """Returns the present metrics of the store."""
    heads = search_heads(store.engine)
    active_first = sorted(heads, key=lambda head: (head.state.is_over, -head.id))
    searches = GaugeMetricFamily("hpo_pilot_searches", "Searches, by state.", labels=["state"])
    for state, number in sorted(Counter(head.state.value for head in heads).items()):
        searches.add_metric([state], number)
    return [
        InfoMetricFamily("hpo_pilot_service", "The service.", {"version": __version__}),
        searches,
        *_of_searches(store, records_of(store.engine, [head.id for head in active_first[:_SEARCHES]])),
        GaugeMetricFamily("hpo_pilot_store_bytes", "Size of the store.", store.size),
        GaugeMetricFamily(
            "hpo_pilot_steering_up",
            "1 where a process holds the lease on the store.",
            int(lease_holder(store.engine) is not None),
        ),
    ]


def _of_searches(store: Store, records: list[SearchRecord]) -> list[Metric]:
    trials = GaugeMetricFamily("hpo_pilot_search_trials", "Trials, by state.", labels=["search", "state"])
    budget = GaugeMetricFamily("hpo_pilot_search_budget_trials", "Trials of the budget.", labels=["search"])
    made = GaugeMetricFamily("hpo_pilot_search_generations", "Generations so far.", labels=["search"])
    seconds = GaugeMetricFamily("hpo_pilot_search_job_seconds", "Seconds that its jobs ran.", labels=["search"])
    best = GaugeMetricFamily(
        "hpo_pilot_search_best_value",
        "The best figure of merit of searches with one objective; of confirmed trials the mean of the runs.",
        labels=["search", "metric"],
    )
    progress = all_progress(store.engine, [record.id for record in records])
    for record in records:
        name, now, objectives = record.name, progress[record.id], record.objectives
        for state, number in sorted(now.counts.items()):
            trials.add_metric([name, state.value], number)
        budget.add_metric([name], record.budget["trials"])
        made.add_metric([name], now.generations)
        seconds.add_metric([name], now.job_seconds)
        value = now.best_value if now.confirmed is None else now.confirmed_value
        if len(objectives) == 1 and value is not None:
            best.add_metric([name, objectives[0]["metric"][:100]], value)
    return [trials, budget, made, seconds, best]


log = logging.getLogger(__name__)

#: Maximum number of concurrent changes of searches; further changes wait.
_CHANGES = 3

#: Maximum number of archives of kept outputs that are unpacked at the same time.
_UNPACKING = 2

#: Maximum number of concurrent calls of issuers; a slow issuer keeps no page waiting.
_SIGN_INS = 2

_ERROR_TITLES = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    413: "Too large",
    422: "Invalid input",
    500: "Internal error",
    503: "Not available now",
}


class _IdConvertor(IntegerConvertor):
    """URL part with the number of a trial or a job: 1 to 18 digits; no store has longer numbers."""

    regex = "[0-9]{1,18}"


register_url_convertor("id", _IdConvertor())


class Pages:
    """The pages of one work folder."""

    def __init__(
        self, api: Context, gate: Tokens, sessions: Sessions, *, behind_proxy: bool, place: Place | None = None
    ) -> None:
        """Joins the parts; nothing runs yet.

        Args:
            api: the store, which the caller closes, the work folder and the uploads.
            gate: identifies a caller by the token or by a proxy's header.
            sessions: browser sessions.
            behind_proxy: whether a TLS proxy forwards the requests.
            place: place of the searches in the commands that pages show; None: the service of these pages.
        """
        library, workdir = SearchCache(api.store), api.workdir
        server_jobs = ServerJobs(workdir.root)
        job_fragments = JobFragments(server_jobs)
        self._parts = PageContext(
            library=library,
            gate=gate,
            sessions=sessions,
            codes=Codes(),
            figures=FigureCache(library, api.worker),
            live=LiveUpdates(SearchFragments(library, place, workdir), job_fragments),
            server_jobs=server_jobs,
            job_fragments=job_fragments,
            behind_proxy=behind_proxy,
            place=place,
            action_threads=CapacityLimiter(_CHANGES),
            output_threads=CapacityLimiter(_UNPACKING),
            sign_in_threads=CapacityLimiter(_SIGN_INS),
            figure_threads=CapacityLimiter(1),
            api=api,
        )

    def application(self) -> ASGIApp:
        """Returns the ASGI application with its guard."""
        app = Starlette(routes=_page_routes(), exception_handlers=_HANDLERS)
        app.router.redirect_slashes = False
        app.state.parts = self._parts
        uploads = {"/new": self._parts.api.uploads.limit + MAX_SEARCH_FILE_BYTES}
        return PageGuard(app, self._parts.gate, self._parts.sessions, uploads)

    def warm_up(self) -> None:
        """Fills the caches for the first pages, in a separate thread."""
        threading.Thread(target=self._warm_up, name="warm up", daemon=True).start()

    def _warm_up(self) -> None:
        try:
            heads = self._parts.library.heads()
            first = [head.id for head in heads[: pages.SEARCHES_PER_PAGE]]
            self._parts.live.searches.of_list(heads, self._parts.library.views(first))
            for template in ("searches.j2", "search.j2", "trials.j2"):
                environment().get_template(template)
            pack_all()
        except HpoPilotError as error:
            log.warning("%s", error)  # a request for a page reports the same error

    def close_waiting(self) -> None:
        """Ends the streams of live updates, because the server ends."""
        self._parts.live.close()


def _page_routes() -> list[Route]:
    of_search = "/searches/{name}"
    of_trial = of_search + "/trials/{number:id}"
    return [
        Route("/", pages.searches_page),
        Route("/live", _live_of_all),
        Route("/new", submission.show_new, methods=["GET"]),
        Route("/new", submission.submit_new, methods=["POST"]),
        Route("/compare", pages.compare_page),
        Route("/compare/{names}/figures/best", pages.compare_figures),
        Route("/help", pages.contents_page),
        Route("/help/", pages.redirect_to_contents),
        Route("/help/pictures/{file}", pages.manual_picture),
        Route("/help/{name}", pages.manual_page),
        Route("/favicon.ico", _icon),
        Route("/login", forms.show_sign_in, methods=["GET"]),
        Route("/login", forms.sign_in, methods=["POST"]),
        Route("/login/link", forms.make_link, methods=["POST"]),
        Route("/login/issuer", forms.begin_at_issuer),
        Route("/login/issuer.json", forms.issuer_settings),
        Route(RETURN_PATH, forms.return_from_issuer),
        Route("/logout", forms.sign_out, methods=["POST"]),
        Route("/jobs", pages.jobs_page),
        Route("/jobs/live", _live_of_jobs),
        Route("/jobs/{number:id}", pages.job_page),
        Route("/jobs/{number:id}/log", pages.job_log),
        Route("/pilots", pages.pilots_page),
        Route("/pilots/live", _live_of_pilots),
        Route("/static/{digest}/{file}", serve_static),
        Route(of_search, pages.search_page),
        Route(of_search + "/live", _live_of_search),
        Route(of_search + "/actions", pages.actions_page),
        Route(of_search + "/trials", pages.trials_page),
        Route(of_trial, pages.trial_page),
        Route(of_trial + "/log", pages.trial_log),
        Route(of_trial + "/files", outputs.trial_files),
        Route(of_trial + "/file", outputs.trial_file),
        Route(of_trial + "/note", forms.show_form, methods=["GET"]),
        Route(of_trial + "/note", forms.change, methods=["POST"]),
        Route(of_search + "/errors", pages.errors_page),
        Route(of_search + "/figures/{key}", pages.figure_json),
        Route(of_search + "/download/report", pages.search_report),
        Route(of_search + "/download/{form}", pages.search_download),
        Route(of_search + "/{action}", forms.show_form, methods=["GET"]),
        Route(of_search + "/{action}", forms.change, methods=["POST"]),
    ]


def _icon(_request: Request) -> Response:
    return Response(status_code=308, headers={"Location": static_path("icon.svg")})


async def _live_of_all(request: Request) -> Response:
    return _live_answer(request, searches_topic(request.query_params.get("rows", "")))


def _live_of_search(request: Request) -> Response:
    return _live_answer(request, view_of(request).record.name)


async def _live_of_jobs(request: Request) -> Response:
    return _live_answer(request, JOBS_TOPIC + JobFilter.of_query(request.query_params).query)


async def _live_of_pilots(request: Request) -> Response:
    return _live_answer(request, PILOTS_TOPIC)


def _live_answer(request: Request, topic: str) -> Response:
    parts, session = context_of(request), session_of(request)
    cookie = request.cookies.get(parts.sessions.cookie, "")

    def is_good() -> bool:
        # Without a cookie, the token or certificate of the request is valid as long as the connection lasts.
        return not session.id or parts.sessions.of_cookie(cookie) is not None

    return parts.live.answer(request, topic, session.caller.name, is_good)


# --- errors ---


def _error_page(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """Returns an error as an HTML page for browsers, and as JSON for scripts."""
    if "text/html" not in request.headers.get("accept", ""):
        answer: Response = JSONResponse({"error": message}, status)
    else:
        name = request.path_params.get("name") if status != 404 else None
        back = f"/searches/{name}" if name and name.replace("_", "").replace("-", "").isalnum() else ""
        values = {"title": _ERROR_TITLES.get(status, "Error"), "message": message, "back": back}
        answer = page(request, "error.j2", values, status)
    answer.headers.update(headers or {})
    return answer


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "There is no such page." if error.detail == "Not Found" else str(error.detail)
    return _error_page(request, error.status_code, message, dict(error.headers or {}))


def _known_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HpoPilotError)
    status, _, message = error_answer(error)
    headers = {"Retry-After": RETRY_AFTER} if status == 503 else None
    return _error_page(request, status, place_of(request).completed(message), headers)


def _internal_error(request: Request, error: Exception) -> Response:
    log.exception("%s %r", request.method, request.scope["path"], exc_info=error)
    return _error_page(request, 500, "An internal error; please report it with the service's log.")


def _disconnected(_request: Request, _error: Exception) -> Response:
    """Answers a client that disconnected while it sent a form; nothing is logged."""
    return Response(status_code=400)


_HANDLERS: Any = {
    HTTPException: _http_error,
    HpoPilotError: _known_error,
    ClientDisconnect: _disconnected,
    Exception: _internal_error,
}
