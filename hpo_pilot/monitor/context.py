"""What the handlers of pages work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hpo_pilot.advice import Place
from hpo_pilot.client.local_client import LocalClient
from hpo_pilot.client.ownership import User
from hpo_pilot.monitor.board_pieces import BoardPieces
from hpo_pilot.monitor.figure_desk import FigureDesk
from hpo_pilot.monitor.library import Library, View
from hpo_pilot.monitor.live import LiveDesk
from hpo_pilot.monitor.rendering import rendered
from hpo_pilot.monitor.sessions import Codes, Session, Sessions
from hpo_pilot.panda.board import JobBoard
from hpo_pilot.server.access.gate import Gate
from hpo_pilot.service.workdir import WorkDir

#: What is said where the store does not answer.
AWAY = "The store is out of reach at the moment; nothing is lost: try again."

#: What a page says after an action, by the word in its address: no text of a link is ever shown.
NOTICES = {
    "pause": "Paused: no new trials until it is resumed.",
    "resume": "Resumed.",
    "stop": "It is being stopped; its results stay.",
    "extend": "The budget was extended.",
    "retry": "The failed points will be tried again.",
    "add": "The point will be tried next.",
    "parallel": "The number of trials side by side was changed.",
}


@dataclass(frozen=True)
class Parts:
    """The parts of a running monitor.

    Attributes:
        library: the searches.
        workdir: the service's work folder.
        gate: tells whose a token is.
        sessions: of browsers.
        codes: of one-time links.
        figures: makes figures.
        live: tells what changes.
        board: the embedded PanDA server's jobs.
        board_pieces: of the pages of jobs and pilots.
        behind_proxy: whether a TLS proxy is in front.
        place: where commands on the pages find the searches; None: behind the service that the pages are of.
        action_threads: those that change searches: each waits up to half a minute where the store is locked, and pages
            are not to wait with them.
    """

    library: Library
    workdir: WorkDir
    gate: Gate
    sessions: Sessions
    codes: Codes
    figures: FigureDesk
    live: LiveDesk
    board: JobBoard
    board_pieces: BoardPieces
    behind_proxy: bool
    place: Place | None
    action_threads: CapacityLimiter


def parts_of(request: Request) -> Parts:
    """The monitor that answers this request."""
    return cast(Parts, request.app.state.parts)


def place_of(request: Request) -> Place:
    """Where commands on the pages find the searches."""
    return parts_of(request).place or Place(service=str(request.base_url).rstrip("/"), token_file="FILE")  # noqa: S106  no secret


def session_of(request: Request) -> Session | None:
    """Who asks; None: nobody that is known, on the pages that need no session."""
    return cast("Session | None", getattr(request.state, "session", None))


def user_of(session: Session) -> User:
    """The same, as the store's clients name users."""
    return User.named(session.caller.name, changes_all=session.caller.is_operator)


def client_of(request: Request) -> LocalClient:
    """The store, for whoever asks."""
    parts, session = parts_of(request), session_of(request)
    assert session is not None  # the guard has made sure of it
    return LocalClient(parts.workdir.root, user=user_of(session), opened=parts.library.store)


def may_change(request: Request, view: View) -> bool:
    """Whether whoever asks may change a search."""
    session = session_of(request)
    if session is None:
        return False
    user = user_of(session)
    return user.changes_all or user.name == view.record.owner


def view_of(request: Request) -> View:
    """The search that the address names.

    Raises:
        UnknownSearchError: there is none.
    """
    return parts_of(request).library.view(request.path_params["name"])


def page(request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """A whole page."""
    session = session_of(request)
    common = {
        "session": session,
        "form_token": "" if session is None else parts_of(request).sessions.form_token(session),
        "path": request.url.path,
        "command": place_of(request).command,
        "notice": NOTICES.get(request.query_params.get("done", ""), ""),
    }
    return HTMLResponse(rendered(template, {**common, **values}), status)
