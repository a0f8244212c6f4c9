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
_STALE = "This link was used already, or is older than ten minutes: print another."


def show(request: Request) -> Response:
    """The page for signing in; with a code, whoever brings it is signed in."""
    wanted = safe_target(request.query_params.get("next", "/"))
    code = request.query_params.get("code")
    # Programs that look at a link before its user does ask for its head.
    if code is None or request.method != "GET":
        return page(request, "login.j2", {"problem": "", "next": wanted})
    codes = parts_of(request).codes
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        # Another site's link or script may bring a code of its owner's: nobody is signed in as somebody else unasked.
        owner = codes.owner(code)
        if owner is not None:
            return page(request, "sign_in_as.j2", {"owner": owner, "code": code, "next": wanted})
    elif (found := codes.take(code)) is not None:
        return _begun(request, found, page(request, "signed_in.j2", {"next": wanted}))
    return page(request, "login.j2", {"problem": _STALE, "next": wanted}, 403)


async def take(request: Request) -> Response:
    """Takes a token that was pasted, or the code of a link that somebody meant to follow."""
    async with request.form(max_files=0, max_fields=10) as given:
        token, code, target = given.get("token", ""), given.get("code"), safe_target(str(given.get("next", "/")))
    if code is None:
        return await run_in_threadpool(_take, request, str(token).strip(), target)
    found = parts_of(request).codes.take(str(code))
    if found is None:
        return page(request, "login.j2", {"problem": _STALE, "next": target}, 403)
    return await run_in_threadpool(_begun, request, found, RedirectResponse(target, 303))


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
