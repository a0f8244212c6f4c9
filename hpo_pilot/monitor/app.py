"""The monitor: web pages over a store and the embedded PanDA server, for browsers."""

from __future__ import annotations

import logging
import threading
from typing import Any

from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hpo_pilot.advice import Place
from hpo_pilot.client.ownership import NotYoursError
from hpo_pilot.errors import HpoPilotError, InputError, TryAgainError
from hpo_pilot.monitor import actions, help_pages, job_pages, login, search_pages, trial_pages
from hpo_pilot.monitor.access import Access
from hpo_pilot.monitor.board_pieces import JOBS, PILOTS, BoardPieces, JobFilter
from hpo_pilot.monitor.context import AWAY, Parts, page, parts_of, place_of, session_of, view_of
from hpo_pilot.monitor.figure_desk import FigureDesk
from hpo_pilot.monitor.library import Library
from hpo_pilot.monitor.live import LiveDesk
from hpo_pilot.monitor.pieces import ALL, Pieces
from hpo_pilot.monitor.rendering import environment
from hpo_pilot.monitor.sessions import Codes, Sessions
from hpo_pilot.monitor.static_files import pack_all, serve_static, static_path
from hpo_pilot.panda.board import JobBoard
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.service.workdir import WorkDir
from hpo_pilot.store import Store, StoreAwayError, UnknownSearchError

#: Searches that are not over, of which the page is made ready.
_WARM = 20

#: Changes of searches that are made at once; further ones wait for them.
_ACTIONS = 3

_TITLES = {
    400: "That makes no sense",
    403: "Not allowed",
    404: "Not found",
    405: "Not so",
    413: "Too large",
    422: "That does not work",
    500: "Something broke",
    503: "Not now",
}

log = logging.getLogger(__name__)


class _IdConvertor(IntegerConvertor):
    """A number of a trial or a job: with more digits there is none, in no store."""

    regex = "[0-9]{1,18}"


register_url_convertor("id", _IdConvertor())


class Monitor:
    """The pages of one work folder."""

    def __init__(
        self,
        store: Store,
        workdir: WorkDir,
        gate: Gate,
        sessions: Sessions,
        *,
        behind_proxy: bool,
        place: Place | None = None,
    ) -> None:
        """Joins the parts; nothing runs yet.

        Args:
            store: the searches; stays the caller's.
            workdir: the service's.
            gate: tells whose a token is, and whom a proxy's header names.
            sessions: of browsers.
            behind_proxy: whether a TLS proxy is in front.
            place: where commands on the pages find the searches; None: behind the service that the pages are of.
        """
        library = Library(store)
        board = JobBoard(workdir.root)
        board_pieces = BoardPieces(board)
        self._live = LiveDesk(Pieces(library, place, workdir.place()), board_pieces)
        self._gate = gate
        self._parts = Parts(
            library=library,
            workdir=workdir,
            gate=gate,
            sessions=sessions,
            codes=Codes(),
            figures=FigureDesk(library),
            live=self._live,
            board=board,
            board_pieces=board_pieces,
            behind_proxy=behind_proxy,
            place=place,
            action_threads=CapacityLimiter(_ACTIONS),
        )

    def application(self) -> ASGIApp:
        """The application, behind its guard."""
        app = Starlette(routes=_routes(), exception_handlers=_HANDLERS)
        app.router.redirect_slashes = False
        app.state.parts = self._parts
        return Access(app, self._gate, self._parts.sessions)

    def warm_up(self) -> None:
        """Reads what the first page will want, in a thread of its own."""
        threading.Thread(target=self._warm_up, name="warm up", daemon=True).start()

    def _warm_up(self) -> None:
        try:
            views = self._parts.library.views()
            self._live.pieces.of_all(views)
            for view in [view for view in views if not view.record.state.is_over][:_WARM] + views[:1]:
                self._live.pieces.of_search(view)
            for template in ("searches.j2", "search.j2", "trials.j2"):
                environment().get_template(template)
            pack_all()
        except HpoPilotError as error:
            log.warning("%s", error)  # whoever asks for a page will hear of it

    def close_waiting(self) -> None:
        """Ends the streams of news, for the server ends."""
        self._live.close()


def _routes() -> list[Route]:
    of_search = "/searches/{name}"
    of_trial = of_search + "/trials/{number:id}"
    return [
        Route("/", search_pages.searches),
        Route("/live", _live_of_all),
        Route("/help", help_pages.contents),
        Route("/help/", help_pages.no_folder),
        Route("/help/pictures/{file}", help_pages.picture),
        Route("/help/{name}", help_pages.chapter),
        Route("/favicon.ico", _icon),
        Route("/login", login.show, methods=["GET"]),
        Route("/login", login.take, methods=["POST"]),
        Route("/login/link", login.link, methods=["POST"]),
        Route("/logout", login.leave, methods=["POST"]),
        Route("/jobs", job_pages.jobs),
        Route("/jobs/live", _live_of_jobs),
        Route("/jobs/{number:id}", job_pages.job),
        Route("/jobs/{number:id}/log", job_pages.job_log),
        Route("/pilots", job_pages.pilots),
        Route("/pilots/live", _live_of_pilots),
        Route("/static/{digest}/{file}", serve_static),
        Route(of_search, search_pages.search),
        Route(of_search + "/live", _live_of_search),
        Route(of_search + "/actions", search_pages.actions),
        Route(of_search + "/trials", search_pages.trials),
        Route(of_trial, trial_pages.trial),
        Route(of_trial + "/log", trial_pages.trial_log),
        Route(of_search + "/errors", search_pages.errors),
        Route(of_search + "/figures/{key}", search_pages.figures),
        Route(of_search + "/download/{form}", trial_pages.search_download),
        Route(of_search + "/{action}", actions.show, methods=["GET"]),
        Route(of_search + "/{action}", actions.do, methods=["POST"]),
    ]


def _icon(_request: Request) -> Response:
    return Response(status_code=308, headers={"Location": static_path("icon.svg")})


async def _live_of_all(request: Request) -> Response:
    return _live(request, ALL)


def _live_of_search(request: Request) -> Response:
    return _live(request, view_of(request).record.name)


async def _live_of_jobs(request: Request) -> Response:
    return _live(request, JOBS + JobFilter.of_query(request.query_params).query)


async def _live_of_pilots(request: Request) -> Response:
    return _live(request, PILOTS)


def _live(request: Request, topic: str) -> Response:
    parts, session = parts_of(request), session_of(request)
    assert session is not None  # the guard has made sure of it
    cookie = request.cookies.get(parts.sessions.cookie, "")

    def is_good() -> bool:
        # Whoever showed a token or a certificate has shown it for as long as the connection lasts.
        return not session.id or parts.sessions.of_cookie(cookie) is not None

    return parts.live.answer(request, topic, session.caller.name, is_good)


# --- errors ---


def _failed(request: Request, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error: as a page for whoever reads pages, as JSON for scripts."""
    if "text/html" not in request.headers.get("accept", ""):
        answer: Response = JSONResponse({"error": message}, status)
    else:
        name = request.path_params.get("name") if status != 404 else None
        back = f"/searches/{name}" if name and name.replace("_", "").replace("-", "").isalnum() else ""
        values = {"title": _TITLES.get(status, "Error"), "message": message, "back": back}
        answer = page(request, "error.j2", values, status)
    answer.headers.update(headers or {})
    return answer


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "There is no such page." if error.detail == "Not Found" else str(error.detail)
    return _failed(request, error.status_code, message, dict(error.headers or {}))


def _ours(request: Request, error: Exception) -> Response:
    if isinstance(error, UnknownSearchError):
        return _failed(request, 404, f"There is no search {error.identity!r}: {error.there}.")
    if isinstance(error, NotYoursError):
        return _failed(request, 403, str(error))
    if isinstance(error, InputError):
        return _failed(request, 422, place_of(request).completed(str(error)))
    if isinstance(error, TryAgainError):
        log.warning("%s", error)
        # It says where the store is, which is no user's business.
        return _failed(request, 503, AWAY if isinstance(error, StoreAwayError) else str(error), {"Retry-After": "2"})
    log.error("%s", error)
    return _failed(request, 500, str(error))


def _defect(request: Request, error: Exception) -> Response:
    log.exception("%s %r", request.method, request.scope["path"], exc_info=error)
    return _failed(request, 500, "An internal error; please report it with the service's log.")


def _gone(_request: Request, _error: Exception) -> Response:
    """Whoever sent half a form and left hears nothing, and the log is not filled with it."""
    return Response(status_code=400)


_HANDLERS: Any = {HTTPException: _http, HpoPilotError: _ours, ClientDisconnect: _gone, Exception: _defect}
