"""Forms for signing in and out, and for changes to searches."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from anyio import to_thread
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from hpo_pilot.advice import printable
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.operations.client import OPERATIONS, SearchClient
from hpo_pilot.operations.here import NotYoursError
from hpo_pilot.operations.operation import Operation
from hpo_pilot.operations.sign_in import browser_sign_in, token_for_code
from hpo_pilot.report.formatting import count, exact, number, scalar, whole
from hpo_pilot.search import Dimension
from hpo_pilot.search.limits import MOST_PARAMETERS
from hpo_pilot.server.issuers import RETURN_PATH, BrowserClient
from hpo_pilot.server.tokens import Role, TokenRefused
from hpo_pilot.store import Annotation
from hpo_pilot.store.annotations import trial_annotations
from hpo_pilot.store.trial_queries import failed_without_retry
from hpo_pilot.web.api_context import error_answer
from hpo_pilot.web.pages import client_of, context_of, page, place_of, session_of, view_of
from hpo_pilot.web.search_views import SearchCache, SearchView
from hpo_pilot.web.sessions import CODE_SECONDS, Login, Sessions, check_form, is_for, is_secure, login_of, safe_target

#: Limits of a budget that can be extended, and the highest level, with their labels.
_LIMITS = {
    "trials": "More trials",
    "hours": "More hours",
    "gpu_hours": "More GPU-hours",
    "core_hours": "More core-hours",
    "fidelity": "More of the sum of levels",
    "high": "New highest level",
    "failures": "More failures in a row",
}


@dataclass(frozen=True)
class FormField:
    """One field of a form.

    Attributes:
        name: name in the sent form.
        label: text shown to the user.
        kind: text, long, decimal, numeric, choice or hidden.
        value: initial value.
        note: text beside the field.
        choices: (value, text) of each option of a choice.
        mistake: what is wrong with the value that was sent.
    """

    name: str
    label: str = ""
    kind: str = "text"
    value: str = ""
    note: str = ""
    choices: Sequence[tuple[str, str]] = ()
    mistake: str = ""


class FieldMistakesError(InputError):
    """Some fields of a form are wrong.

    Attributes:
        fields: what is wrong, by the name of the field.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        wrong = "One value is" if len(fields) == 1 else f"{len(fields)} values are"
        super().__init__(f"{wrong} wrong: see below.")
        self.fields = fields


@dataclass(frozen=True)
class ActionForm:
    """One form and the texts of its page.

    Attributes:
        key: last part of the page's address.
        title: title of the page.
        texts: description of the action, one paragraph each.
        button: label of the button.
        fields: the fields, in order.
        danger: whether the action discards work.
    """

    key: str
    title: str
    texts: Sequence[str]
    button: str
    fields: Sequence[FormField] = ()
    danger: bool = False


_Form = Callable[[SearchCache, SearchView], ActionForm]
_Change = Callable[[SearchClient, SearchView, FormData], object]

# --- forms ---


def _derived(operation: Operation, _library: SearchCache, view: SearchView) -> ActionForm:
    """Returns the form of a declared operation, with a field for each of its parameters.

    A parameter that has the name of a limit of the budget shows its present value.
    """
    budget = view.search.to_dict()["budget"]
    fields = []
    for name, (kind, _) in operation.fields().items():
        now = budget.get(name)
        value = "" if now is None else str(now)
        fields.append(FormField(name, _label(name), _INPUT_MODES[kind], value, _now(now)))
    button = "Change" if fields else operation.button
    return ActionForm(operation.action, operation.button, [operation.summary], button, fields)


#: Types of parameters that a derived form can ask for, with the input mode of their fields.
_INPUT_MODES: Mapping[Any, str] = {int: "numeric", float: "decimal", str: "text"}


def _now(value: float | None) -> str:
    """Formats the present value of a limit; empty: no limit."""
    return "" if value is None else f"now {whole(value) if isinstance(value, int) else number(value)}"


def _label(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _resume(_library: SearchCache, _view: SearchView) -> ActionForm:
    return ActionForm("resume", "Resume", ["The search continues from its present state."], "Resume")


def _stop(_library: SearchCache, view: SearchView) -> ActionForm:
    out = view.progress.running + view.progress.pending
    texts = [f"This ends the search {view.record.name}. All results stay, and you can resume the search."]
    if out:
        texts.append(f"{count(out, 'open trial')} will be killed; work since the last checkpoint is lost.")
    return ActionForm("stop", f"Stop {view.record.name}?", texts, "Stop it", danger=True)


def _extend(_library: SearchCache, view: SearchView) -> ActionForm:
    levels = view.search.levels
    budget = {**view.search.to_dict()["budget"], "high": None if levels is None else levels.high}
    fields = [
        FormField(name, label, "numeric" if name in ("trials", "failures") else "decimal", note=_now(budget[name]))
        for name, label in _LIMITS.items()
        if budget.get(name) is not None
    ]
    # The form also sends the budget that the user saw: the same form sent twice then adds only once.
    seen = [FormField(f"seen.{name}", kind="hidden", value=repr(budget[name])) for name in _LIMITS if name in budget]
    texts = ["These amounts are added to the budget. A search that was over continues."]
    texts += [] if levels is None else ["The best points go on to a new highest level."]
    return ActionForm("extend", "Extend the budget", texts, "Extend", [*fields, *seen])


def _retry(library: SearchCache, view: SearchView) -> ActionForm:
    failed = failed_without_retry(library.store.engine, view.record.id)
    texts = [
        f"{count(failed, 'failed trial')} {'has' if failed == 1 else 'have'} not been retried.",
        "Each point runs again as a new trial; the budget grows by one trial for each.",
    ]
    field = FormField(
        "trials", "Only these trials", value="", note="numbers, separated by commas; empty: all failed trials"
    )
    return ActionForm("retry", "Retry failed trials", texts, "Try again", [field])


def _add(library: SearchCache, view: SearchView) -> ActionForm:
    best = library.best(view) if len(view.search.objectives) == 1 else []
    start = dict(best[0].trial.point) if best else {}
    fields = [
        _dimension_field(name, dimension, start.get(name)) for name, dimension in view.search.space_dimensions.items()
    ]
    texts = [
        "This point is tried before new points of the optimizer. The budget grows by one trial.",
        *(["The form shows the best point so far."] if start else []),
    ]
    return ActionForm("add", "Try a point", texts, "Try it", fields)


def _dimension_field(name: str, dimension: Dimension, value: Any) -> FormField:
    when = ", ".join(f"{other} is {_alternatives(wanted)}" for other, wanted in dimension.when.items())
    only = f"only if {when}; otherwise leave it empty" if when else ""
    key = f"p.{name}"
    if dimension.type == "categorical" or dimension.type == "ordinal":  # noqa: PLR1714  # mypy narrows this way alone
        places = [(str(index), scalar(choice)) for index, choice in enumerate(dimension.choices)]
        same = (str(i) for i, choice in enumerate(dimension.choices) if type(choice) is type(value) and choice == value)
        chosen = next(same, "")
        nothing = [("", "–")] if when or not chosen else []
        return FormField(key, name, "choice", chosen, only, [*nothing, *places])
    bounds = f"{exact(dimension.low)} to {exact(dimension.high)}"
    kind = "numeric" if dimension.type == "integer" else "decimal"
    # All digits: a rounded value would be a different point.
    shown = "" if value is None else repr(value)
    return FormField(key, name, kind, shown, f"{bounds}; {only}" if only else bounds)


def _alternatives(wanted: Any) -> str:
    several = wanted if isinstance(wanted, list | tuple) else [wanted]
    return " or ".join(exact(value) for value in several)


def _note(library: SearchCache, view: SearchView, trial: int = 0) -> ActionForm:
    now = view.annotation
    if trial:
        now = trial_annotations(library.store.engine, view.record.id, [trial]).get(trial, Annotation())
    fields = [
        FormField("tags", "Tags", value=", ".join(now.tags), note="separated by commas"),
        FormField("note", "Note", "long", now.note),
    ]
    texts = ["Everybody who sees the search sees them. The lists of searches and trials find them."]
    key, of = (f"trials/{trial}/note", f" of trial {trial}") if trial else ("note", "")
    return ActionForm(key, f"Note and tags{of}", texts, "Save", fields)


# --- actions ---


def _do_extend(client: SearchClient, view: SearchView, given: FormData) -> None:
    changes = {name: _field_number(given, name, label) for name, label in _LIMITS.items() if _field_text(given, name)}
    if not changes:
        raise InputError("Give at least one amount, such as 50 more trials.")
    seen: dict[str, float | None] = {}
    for name in changes:
        if text := _field_text(given, f"seen.{name}"):
            seen[name] = None if text == "None" else _field_number(given, f"seen.{name}", name)
    client.extend(view.record.name, changes, seen=seen or None)


def _do_derived(operation: Operation, client: SearchClient, view: SearchView, given: FormData) -> None:
    fields: dict[str, Any] = {}
    for name, (kind, _) in operation.fields().items():
        fields[name] = _field_text(given, name) if kind is str else _field_number(given, name, _label(name))
        if kind is int:
            fields[name] = _whole(fields[name], _label(name))
    getattr(client, operation.name)(view.record.name, **fields)


def _whole(value: float, label: str) -> int:
    if value != int(value):
        raise InputError(f"{label}: {value:g} is not a whole number.")
    return int(value)


def _do_retry(client: SearchClient, view: SearchView, given: FormData) -> None:
    words = [word for word in _field_text(given, "trials").replace(",", " ").split() if word]
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise InputError(f"Only these trials: {wrong!r} is not a trial number. Give numbers, as in 3, 7, 12.")
    client.retry(view.record.name, [int(word) for word in words] or None)


def _do_note(client: SearchClient, view: SearchView, given: FormData, trial: int = 0) -> None:
    client.annotate(view.record.name, _field_text(given, "note"), _field_text(given, "tags").split(","), trial)


def _do_add(client: SearchClient, view: SearchView, given: FormData) -> None:
    point: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, dimension in view.search.space_dimensions.items():
        key = f"p.{name}"
        text = _field_text(given, key)
        if not text:
            continue
        if dimension.type in ("categorical", "ordinal"):
            if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(dimension.choices):
                point[name] = dimension.choices[int(text)]
            else:
                wrong[key] = "choose a value from the list"
            continue
        try:
            value = _number(text)
            point[name] = int(value) if dimension.type == "integer" and value == int(value) else value
        except ValueError as error:
            wrong[key] = str(error)
    for mistake in view.search.space.mistakes(point):
        if mistake.path:  # what is not a number above is missing here
            wrong.setdefault(f"p.{mistake.path[0]}", f"{mistake.message}{mistake.hint and f': {mistake.hint}'}")
    if wrong:
        raise FieldMistakesError(wrong)
    client.add_point(view.record.name, point)


def _field_number(given: FormData, name: str, label: str) -> float:
    try:
        return _number(_field_text(given, name))
    except ValueError as error:
        raise InputError(f"{label}: {error}.") from None


def _number(text: str) -> float:
    """Reads a finite number.

    Raises:
        ValueError: it is none.
    """
    try:
        value = float(text.removeprefix("+").replace("\u2212", "-"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text[:60]!r} is not a number")
    return value


def _field_text(given: FormData, name: str) -> str:
    value = given.get(name, "")
    return value.strip() if isinstance(value, str) else ""


#: The actions of the monitor, by the last part of the form's address: the form, and the change that it makes.
_ACTIONS: Mapping[str, tuple[_Form, _Change]] = {
    "resume": (_resume, lambda client, view, _given: client.resume(view.record.name)),
    "stop": (_stop, lambda client, view, _given: client.stop(view.record.name)),
    "extend": (_extend, _do_extend),
    "retry": (_retry, _do_retry),
    "add": (_add, _do_add),
    "note": (_note, _do_note),
    **{
        operation.action: (partial(_derived, operation), partial(_do_derived, operation))
        for operation in OPERATIONS
        if operation.button
    },
}


def _action_of(request: Request) -> tuple[_Form, _Change]:
    if (trial := request.path_params.get("number")) is not None:
        return partial(_note, trial=trial), partial(_do_note, trial=trial)
    key = request.path_params["action"]
    if key not in _ACTIONS:
        raise HTTPException(404, "There is no such page.")
    return _ACTIONS[key]


def show_form(request: Request) -> Response:
    """Shows the page of a form to those who may send it."""
    (make, _), view = _action_of(request), view_of(request)
    try:
        client_of(request).here.user.check(view.record.name, view.record.owner)
    except NotYoursError as error:
        raise HTTPException(403, str(error)) from error
    return page(request, "action.j2", {"view": view, "action": make(context_of(request).library, view), "problem": ""})


async def change(request: Request) -> Response:
    """Makes the change of a sent form and redirects to the search; on an error, shows the form with the reason."""
    make, do = _action_of(request)
    async with request.form(max_files=0, max_fields=MOST_PARAMETERS + 20) as given:
        check_form(context_of(request).sessions, session_of(request), given.get("form"))
        doing = partial(_change, request, make, do, given)
        return await to_thread.run_sync(doing, limiter=context_of(request).action_threads)


def _change(request: Request, make: _Form, do: _Change, given: FormData) -> Response:
    library, view = context_of(request).library, view_of(request)
    try:
        do(client_of(request), view, given)
    except (InputError, TryAgainError) as error:
        form = make(library, view_of(request))
        wrong = error.fields if isinstance(error, FieldMistakesError) else {}
        filled = [
            replace(field, value=_field_text(given, field.name), mistake=wrong.get(field.name, ""))
            if field.kind != "hidden"
            else field
            for field in form.fields
        ]
        problem = place_of(request).completed(error_answer(error)[2])
        values = {"view": view, "action": replace(form, fields=filled), "problem": problem}
        return page(request, "action.j2", values, 503 if isinstance(error, TryAgainError) else 422)
    where, _, done = f"/{make(library, view).key}".rpartition("/")
    return RedirectResponse(f"/searches/{quote(view.record.name, safe='')}{where}?done={done}", 303)


_NOT_FOR_PILOTS = "This is a pilot's token. Sign in with a user's token."
_STALE_LINK = "This link was used already, or is older than ten minutes. Print a new one: `hpo-pilot monitor --link`."


def show_sign_in(request: Request) -> Response:
    """Shows the page for signing in. A request with a valid one-time code is signed in at once."""
    wanted = safe_target(request.query_params.get("next", "/"))
    code = request.query_params.get("code")
    # Link previews send HEAD before the user opens the link; they must not use up the code.
    if code is None or request.method != "GET":
        return _login_page(request, wanted)
    codes = context_of(request).codes
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        # A link or script of another site may carry its author's code. Ask before a user is signed in as somebody else.
        owner = codes.owner(code)
        if owner is not None:
            return page(request, "sign_in_as.j2", {"owner": owner, "code": code, "next": wanted})
    elif (found := codes.take(code)) is not None:
        return _session_answer(request, found, page(request, "signed_in.j2", {"next": wanted}))
    return _login_page(request, wanted, _STALE_LINK)


async def sign_in(request: Request) -> Response:
    """Signs in with a pasted token, or with the code of a link after the user has confirmed it."""
    async with request.form(max_files=0, max_fields=10) as given:
        token, code, target = given.get("token", ""), given.get("code"), safe_target(str(given.get("next", "/")))
    if code is None:
        answer = RedirectResponse(target, 303)
        return await run_in_threadpool(_sign_in_with_token, request, str(token).strip(), target, answer)
    found = context_of(request).codes.take(str(code))
    if found is None:
        return _login_page(request, target, _STALE_LINK)
    return await run_in_threadpool(_session_answer, request, found, RedirectResponse(target, 303))


def _login_page(request: Request, wanted: str, problem: str = "") -> Response:
    """Returns the page for signing in, with the reason if that failed."""
    links = {}
    for vo, client in _browser_clients(request).items():
        # At the address to which the issuer sends the browser back: cookies of another name of this host stay there.
        base = client.redirect_uri.removesuffix(RETURN_PATH)
        links[vo] = f"{base}/login/issuer?{urlencode({'vo': vo, 'next': wanted})}"
    return page(request, "login.j2", {"problem": problem, "next": wanted, "links": links}, 403 if problem else 200)


def _sign_in_with_token(request: Request, token: str, wanted: str, answer: Response) -> Response:
    parts = context_of(request)
    try:
        caller = parts.gate.verify(f"Bearer {token}")
        problem = _NOT_FOR_PILOTS if caller.role is Role.PILOT else ""
    except TokenRefused as error:
        problem = f"{error}."
    if problem:
        return _login_page(request, wanted, problem)
    return _session_answer(request, login_of(caller, token, time.time()), answer)


def _session_answer(request: Request, login: Login, answer: Response) -> Response:
    parts = context_of(request)
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


def make_link(request: Request) -> Response:
    """Returns a one-time sign-in link in exchange for a user's token. `hpo-pilot monitor --link` calls this."""
    parts = context_of(request)
    authorization = request.headers.get("authorization")
    try:
        # A session is not enough: a session cookie alone must not be used to prolong access.
        caller = parts.gate.verify(authorization)
    except TokenRefused as error:
        return JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": 'Bearer realm="hpo-pilot"'})
    if caller.role is Role.PILOT:
        return JSONResponse({"error": _NOT_FOR_PILOTS}, 403)
    token = (authorization or "").partition(" ")[2].strip()
    code = parts.codes.make(login_of(caller, token, time.time()))
    return JSONResponse({"path": f"/login?{urlencode({'code': code})}", "seconds": CODE_SECONDS})


def _browser_clients(request: Request) -> dict[str, BrowserClient]:
    others = context_of(request).gate.others
    return {} if others is None else others.browser_clients()


async def begin_at_issuer(request: Request) -> Response:
    """Sends the browser to an issuer."""
    return await to_thread.run_sync(_begin_at_issuer, request, limiter=context_of(request).sign_in_threads)


def _begin_at_issuer(request: Request) -> Response:
    parts, vo = context_of(request), request.query_params.get("vo", "")
    client = _browser_clients(request).get(vo)
    if client is None:
        raise HTTPException(404, "This service has no such issuer for browsers.")
    place, kept = browser_sign_in(client.settings, client.redirect_uri)
    answer = RedirectResponse(place, 303)
    answer.set_cookie(
        _sign_in_cookie(parts.sessions),
        parts.sessions.sealed({**kept, "vo": vo, "next": safe_target(request.query_params.get("next", "/"))}),
        max_age=int(CODE_SECONDS),
        path=RETURN_PATH,
        httponly=True,
        samesite="lax",  # the issuer's page leads back
        secure=is_secure(request.scope, behind_proxy=parts.behind_proxy),
    )
    return answer


async def return_from_issuer(request: Request) -> Response:
    """Signs in a browser that an issuer has sent back."""
    return await to_thread.run_sync(_return_from_issuer, request, limiter=context_of(request).sign_in_threads)


def _return_from_issuer(request: Request) -> Response:
    sessions, given = context_of(request).sessions, request.query_params
    kept = sessions.unsealed(request.cookies.get(_sign_in_cookie(sessions), ""))
    client = _browser_clients(request).get(kept.get("vo", ""))
    if client is None or not hmac.compare_digest(kept["state"].encode(), given.get("state", "").encode()):
        return _login_page(request, "/", "This sign-in began in another browser, or over ten minutes ago: begin again.")
    if "code" not in given:
        said = given.get("error_description") or given.get("error", "it sends no code")
        return _login_page(request, kept["next"], f"The issuer refused: {printable(said[:500])}.")
    try:
        token = token_for_code(client.settings, client.redirect_uri, given["code"], kept["verifier"])
    except InputError as error:
        return _login_page(request, kept["next"], f"{error}.")
    if not is_for(token, client.issuer, kept["nonce"]):
        return _login_page(request, kept["next"], "The issuer's token is not for this sign-in: begin again.")
    answer = page(request, "signed_in.j2", {"next": kept["next"]})
    answer.delete_cookie(_sign_in_cookie(sessions), path=RETURN_PATH, httponly=True, samesite="lax")
    return _sign_in_with_token(request, token, kept["next"], answer)


def _sign_in_cookie(sessions: Sessions) -> str:
    return f"{sessions.cookie}_issuer"


def issuer_settings(request: Request) -> Response:
    """Returns what a client needs to get a token from an issuer of this service; `hpo-pilot token login` calls this."""
    others = context_of(request).gate.others
    found = None if others is None else others.client_settings(request.query_params.get("vo", ""))
    return JSONResponse(
        {"error": "this service names no issuer for clients"} if found is None else found, 404 if found is None else 200
    )


async def sign_out(request: Request) -> Response:
    """Ends the session."""
    parts, session = context_of(request), session_of(request)
    async with request.form(max_files=0, max_fields=10) as given:
        check_form(parts.sessions, session, given.get("form"))
    try:
        await run_in_threadpool(parts.sessions.end, session)
    except OSError as error:
        raise HTTPException(503, f"the session cannot be ended: {error.strerror}; try again") from error
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(parts.sessions.cookie, path="/", httponly=True, samesite="strict")
    return answer
