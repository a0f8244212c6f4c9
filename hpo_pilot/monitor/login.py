"""Signing in and out."""

from __future__ import annotations

import time
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from hpo_pilot.monitor.access import check_form, is_secure, safe_target
from hpo_pilot.monitor.context import page, parts_of, session_of
from hpo_pilot.monitor.sessions import CODE_SECONDS, Login, login_of
from hpo_pilot.server.access.auth import Role, TokenRefused

_PILOT = "A pilot's token takes jobs; the pages want a user's token."


def show(request: Request) -> Response:
    """The page for signing in; with a code, whoever brings it is signed in."""
    wanted = safe_target(request.query_params.get("next", "/"))
    code = request.query_params.get("code")
    # Programs that look at a link before its user does ask for its head.
    if code is not None and request.method == "GET":
        found = parts_of(request).codes.take(code)
        if found is not None:
            return _begun(request, found, page(request, "signed_in.j2", {"next": wanted}))
        problem = "This link was used already, or is older than ten minutes: print another."
        return page(request, "login.j2", {"problem": problem, "next": wanted}, 403)
    return page(request, "login.j2", {"problem": "", "next": wanted})


async def take(request: Request) -> Response:
    """Takes a token that was pasted."""
    async with request.form(max_files=0, max_fields=10) as given:
        token, wanted = given.get("token", ""), given.get("next", "/")
    return await run_in_threadpool(_take, request, str(token).strip(), safe_target(str(wanted)))


def _take(request: Request, token: str, wanted: str) -> Response:
    parts = parts_of(request)
    try:
        caller = parts.gate.tokens.verify(f"Bearer {token}")
        problem = _PILOT if caller.role is Role.PILOT else ""
    except TokenRefused as error:
        problem = f"{error}."
    if problem:
        return page(request, "login.j2", {"problem": problem, "next": wanted}, 403)
    return _begun(request, login_of(caller, token, time.time()), RedirectResponse(wanted, 303))


def _begun(request: Request, login: Login, answer: Response) -> Response:
    parts = parts_of(request)
    cookie, ends = parts.sessions.begin(login)
    answer.set_cookie(
        parts.sessions.cookie,
        cookie,
        max_age=max(1, int(ends - time.time())),
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_secure(request.scope, behind_proxy=parts.behind_proxy),
    )
    return answer


def link(request: Request) -> Response:
    """A one-time link for whoever shows a token: what `hpo-pilot monitor --link` asks for."""
    parts = parts_of(request)
    authorization = request.headers.get("authorization")
    try:
        # A token, not a session: whoever has only the cookie must not make it last.
        caller = parts.gate.tokens.verify(authorization)
    except TokenRefused as error:
        return JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": 'Bearer realm="hpo-pilot"'})
    if caller.role is Role.PILOT:
        return JSONResponse({"error": _PILOT}, 403)
    token = (authorization or "").partition(" ")[2].strip()
    code = parts.codes.make(login_of(caller, token, time.time()))
    return JSONResponse({"path": f"/login?{urlencode({'code': code})}", "seconds": CODE_SECONDS})


async def leave(request: Request) -> Response:
    """Ends the session."""
    parts, session = parts_of(request), session_of(request)
    assert session is not None  # the guard has made sure of it
    async with request.form(max_files=0, max_fields=10) as given:
        check_form(parts.sessions, session, given.get("form"))
    try:
        await run_in_threadpool(parts.sessions.end, session)
    except OSError as error:
        raise HTTPException(503, f"the session cannot be ended: {error.strerror}; try again") from error
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(parts.sessions.cookie, path="/", httponly=True, samesite="strict")
    return answer
