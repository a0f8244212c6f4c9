"""The pages of searches, trials, jobs, pilots and the manual."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import yaml
from anyio import CapacityLimiter, to_thread
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from hpo_pilot.advice import Place
from hpo_pilot.errors import InputError, TryAgainError
from hpo_pilot.hpc.site_files import price_of
from hpo_pilot.jobs import JobState
from hpo_pilot.jobs.results import MEASURES
from hpo_pilot.manual import PAGES, Page, page_named
from hpo_pilot.operations.client import OPERATIONS, SearchClient
from hpo_pilot.panda.server import bigpanda_link
from hpo_pilot.report.catalogue import kinds
from hpo_pilot.report.exports import TEXT_FORMS
from hpo_pilot.report.figure import same_objectives
from hpo_pilot.report.formatting import as_yaml, figures, span, whole
from hpo_pilot.report.result_figures import COMPARED_LIMIT, ComparedSearch, comparison_figures
from hpo_pilot.report.summary import failure_groups
from hpo_pilot.search import Search, Trial
from hpo_pilot.search.command import filled_command
from hpo_pilot.server.tokens import Tokens
from hpo_pilot.store import EMBEDDED, Annotation, Store, UnknownSearchError
from hpo_pilot.store.annotations import trial_annotations
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.store.queries import FILTER_STATES, SearchFilter, failed_folds_logs, filter_values
from hpo_pilot.store.trial_expressions import condition_of
from hpo_pilot.store.trial_queries import (
    TrialFilter,
    TrialOrder,
    count_trials,
    failed_trials,
    neighbours,
    page_of_trials,
    rank_of,
    results_of,
)
from hpo_pilot.web.api_context import Context, client_for, user_of
from hpo_pilot.web.live import JobFilter, JobFragments, LiveUpdates, away_text
from hpo_pilot.web.rendering import curves_svg, download, json_answer, packed_answer, paged, rendered, streamed_answer
from hpo_pilot.web.search_views import SLOW, FigureCache, SearchCache, SearchView, shown_counts
from hpo_pilot.web.server_jobs import LOG_MOST, NoJobError, ServerJobs
from hpo_pilot.web.sessions import Codes, Session, Sessions

#: Message after an action, by the word in the page's address. Pages never show text from a link.
NOTICES = {
    "resume": "The search continues.",
    "stop": "The search is being stopped; its results stay.",
    "extend": "The budget was extended.",
    "retry": "The points of the failed trials will be tried again.",
    "add": "The point will be tried next.",
    "note": "Note and tags were saved.",
    "submit": "The search was submitted.",
    **{operation.action: operation.done for operation in OPERATIONS if operation.button},
}


@dataclass(frozen=True)
class PageContext:
    """The parts of a running monitor.

    Attributes:
        library: the searches.
        gate: checks tokens.
        sessions: browser sessions.
        codes: codes of one-time links.
        figures: draws figures.
        live: streams changes to pages.
        server_jobs: jobs of the embedded PanDA server.
        job_fragments: fragments of the jobs and pilots pages.
        behind_proxy: whether a TLS proxy is in front.
        place: how commands shown on the pages address the searches; None: through this service.
        action_threads: limit of the threads that change searches. Each can wait up to half a minute for a locked store;
            pages must not wait with them.
        output_threads: limit of the threads that read kept outputs.
        sign_in_threads: limit of the threads that wait for an issuer.
        figure_threads: limit of the threads that draw quick figures.
        api: the parts of the REST API.
    """

    library: SearchCache
    gate: Tokens
    sessions: Sessions
    codes: Codes
    figures: FigureCache
    live: LiveUpdates
    server_jobs: ServerJobs
    job_fragments: JobFragments
    behind_proxy: bool
    place: Place | None
    action_threads: CapacityLimiter
    output_threads: CapacityLimiter
    sign_in_threads: CapacityLimiter
    figure_threads: CapacityLimiter
    api: Context


def context_of(request: Request) -> PageContext:
    """Returns the parts of the monitor that handles this request."""
    return cast(PageContext, request.app.state.parts)


def place_of(request: Request) -> Place:
    """Returns how commands shown on the pages address the searches."""
    return context_of(request).place or Place(service=str(request.base_url).rstrip("/"), token_file="FILE")  # noqa: S106  no secret


def session_of(request: Request) -> Session:
    """Returns the session of the request; the guard has made sure of it, except on pages that need none."""
    return cast(Session, request.state.session)


def client_of(request: Request) -> SearchClient:
    """Returns a client of the store with the rights of the user."""
    parts = context_of(request)
    return client_for(session_of(request).caller, parts.api.workdir, parts.api.store)


def may_change(request: Request, view: SearchView) -> bool:
    """Returns whether the user may change a search."""
    user = user_of(session_of(request).caller)
    return user.changes_all or user.name == view.record.owner


def view_of(request: Request) -> SearchView:
    """Returns the search that the address names.

    Raises:
        UnknownSearchError: there is no such search.
    """
    return context_of(request).library.view(request.path_params["name"])


def page(request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """Renders a whole page."""
    session: Session | None = getattr(request.state, "session", None)
    common = {
        "session": session,
        "form_token": "" if session is None else context_of(request).sessions.form_token(session),
        "path": request.url.path,
        "command": place_of(request).command,
        "notice": NOTICES.get(request.query_params.get("done", ""), ""),
    }
    return HTMLResponse(rendered(template, {**common, **values}), status)


#: Rows on a page.
SEARCHES_PER_PAGE, TRIALS_PER_PAGE = 50, 100

#: With more parameters than this, a table shows a point in one column, as the report does.
_COLUMNS = 12

#: Most causes of failures shown, and most characters of a log.
_REASONS, _LOG = 50, 6000


def searches_page(request: Request) -> Response:
    """Shows the list of searches."""
    parts = context_of(request)
    names = ("q" if name == "text" else name for name in SearchFilter._fields)
    given = {name: request.query_params.get(name, "")[:100] for name in names}
    state = given["state"] if given["state"] in FILTER_STATES else ""
    wanted = SearchFilter(*given.values())._replace(state=state)
    heads = parts.library.heads()
    chosen = [head for head in heads if wanted.matches(head)]
    paging = paged(len(chosen), SEARCHES_PER_PAGE, request.query_params.get("page", ""), "/", given)
    rows = parts.library.views([head.id for head in chosen[paging.start : paging.last]])
    steers = lease_holder(parts.library.store.engine)
    return page(
        request,
        "searches.j2",
        {
            "rows": rows,
            "paging": paging,
            "html": parts.live.searches.of_list(heads, rows).html,
            "all": len(heads),
            "filter": given,
            "filtered": any(given.values()),
            "choices": filter_values(heads),
            "steered": steers is not None and steers.searches is None,
        },
    )


def search_page(request: Request) -> Response:
    """Shows one search. The name of a family redirects to the list of its searches."""
    parts = context_of(request)
    try:
        view = view_of(request)
    except UnknownSearchError:
        name = request.path_params["name"]
        if any(head.family == name for head in parts.library.heads()):
            return RedirectResponse(f"/?family={quote(name, safe='')}", 303)
        raise
    content = parts.live.searches.of_search(view)
    values = {
        "view": view,
        "html": content.html,
        "state": content.state,
        "kinds": kinds(view.search),
        "may_change": may_change(request, view),
        "definition": as_yaml(view.search.shown()),
        "panda": bigpanda_link(view.record.server, view.record.uid, monitor=view.search.panda.monitor),
    }
    return page(request, "search.j2", values)


def compare_page(request: Request) -> Response:
    """Shows searches with the same objectives side by side. The address names them; without a name it says how."""
    library = context_of(request).library
    views = _compared(request, request.query_params.getlist("search"))
    parts = [_flat(view.search.shown()) for view in views]
    keys = sorted({key for one in parts for key in one} - {"search"})
    others = [one for one in library.others(views[0]) if same_objectives(views[0].search, one.search)] if views else []
    values = {
        "views": views,
        "others": others[:_CANDIDATES],
        "chosen": {view.record.name for view in views},
        "joined": ",".join(view.record.name for view in views),
        "took": [span(view.record.started, view.record.ended or datetime.now(UTC)) for view in views],
        "differences": [(key, values) for key in keys if len(set(values := [one.get(key, "") for one in parts])) > 1],
        "most": COMPARED_LIMIT,
    }
    return page(request, "compare.j2", values)


#: Other searches that the page of a comparison offers.
_CANDIDATES = 30


def compare_figures(request: Request) -> Response:
    """Returns the figures of a comparison as JSON."""
    library = context_of(request).library
    views = _compared(request, request.path_params["names"].split(","))
    searches = [_compared_search(library.store, view) for view in views]
    figures = [asdict(figure) for figure in comparison_figures(searches)]
    return json_answer(request, {"figures": figures})


def _compared_search(store: Store, view: SearchView) -> ComparedSearch:
    """Returns a search with the results that a comparison draws."""
    several = len(view.search.objectives) > 1
    places = None if several else [*(place for place, _ in view.progress.course), view.progress.told]
    results = results_of(store.engine, view.record.id, view.search, places)
    return ComparedSearch(view.record.name, view.search, results)


def _compared(request: Request, names: Sequence[str]) -> list[SearchView]:
    """Returns the searches to compare.

    Raises:
        HTTPException: they are too many, or have different objectives (422).
        UnknownSearchError: there is no such search.
    """
    wanted = list(dict.fromkeys(names))
    if len(wanted) > COMPARED_LIMIT:
        raise HTTPException(
            422, f"These are {len(wanted)} searches; at most {COMPARED_LIMIT} are compared on one page."
        )
    views = [context_of(request).library.view(name) for name in wanted]
    for other in views[1:]:
        if not same_objectives(views[0].search, other.search):
            raise HTTPException(
                422,
                f"{views[0].record.name} and {other.record.name} have different objectives: "
                f"{_objectives(views[0].search)}, and {_objectives(other.search)}. Compare others.",
            )
    return views


def _objectives(search: Search) -> str:
    return ", ".join(f"{objective.goal} {objective.metric}" for objective in search.objectives)


def _flat(document: Any, at: str = "") -> dict[str, str]:
    """Returns the values of a definition as texts, by their path."""
    if isinstance(document, Mapping) and document:
        return {
            path: text for key, one in document.items() for path, text in _flat(one, f"{at}.{key}".lstrip(".")).items()
        }
    return {
        at: ""
        if document is None
        else yaml.safe_dump(document, default_flow_style=True).removesuffix("\n...\n").strip()
    }


def actions_page(request: Request) -> Response:
    """Returns the actions for a search as HTML. A page requests them when the search's state has changed."""
    view, form_token = view_of(request), context_of(request).sessions.form_token(session_of(request))
    values = {"view": view, "may_change": may_change(request, view), "form_token": form_token}
    return packed_answer(request, rendered("actions.j2", values).encode(), "text/html; charset=utf-8")


async def figure_json(request: Request) -> Response:
    """Returns the figures of a kind as JSON."""
    parts, key = context_of(request), request.path_params["key"]
    axes = tuple(request.query_params[name] for name in ("x", "y") if request.query_params.get(name))
    threads = parts.api.worker_threads if key in SLOW else parts.figure_threads
    view = await run_in_threadpool(view_of, request)
    drawn = await run_in_threadpool(parts.figures.kept, view, key, axes)
    if drawn is None:
        drawn = await to_thread.run_sync(parts.figures.drawn, view, key, axes, limiter=threads)
    headers = {"ETag": drawn.tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if drawn.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return packed_answer(request, drawn.packed, "application/json", headers, is_packed=True)


def order_of(text: str, search: Search) -> TrialOrder:
    """Reads the order of a table of trials from an address, such as `-value`; newest first if it is not valid."""
    key, descending = text.removeprefix("-"), text.startswith("-")
    return TrialOrder(key, descending) if key in sort_keys(search) else TrialOrder("number", descending=True)


def sort_keys(search: Search) -> list[str]:
    """Returns the columns by which a table of trials can be sorted."""
    values = ["value", *(f"value{index}" for index in range(2, len(search.objectives) + 1))]
    return ["number", "state", *values, "seconds", "generation", *(f"p.{name}" for name in search.space.names)]


def trials_page(request: Request) -> Response:
    """Shows the trials of a search as a table."""
    view, store = view_of(request), context_of(request).library.store
    record, progress, query = view.record, view.progress, request.query_params
    order = order_of(query.get("sort", ""), view.search)
    levels, where, problem = view.search.levels, query.get("where", "").strip(), ""
    counts = shown_counts(store.engine, view)
    state = given if (given := query.get("state", "")) in counts else ""
    wanted = TrialFilter(state, query.get("q", "")[:100], levels=levels)
    try:
        wanted = wanted._replace(where=condition_of(store.engine, view.search, where) if where else None)
    except InputError as error:
        problem = str(error)
    if problem:
        total = 0
    elif wanted.text or where:
        total = count_trials(store.engine, record.id, wanted)
    else:
        total = counts[state] if state else progress.trials
    path = f"/searches/{quote(record.name, safe='')}/trials"
    columns = trial_columns(view.search)
    chosen = [key for key in columns if key in query.getlist("col")]
    kept = {"state": state, "q": wanted.text, "where": where, "col": chosen}
    paging = paged(total, TRIALS_PER_PAGE, query.get("page", ""), path, {**kept, "sort": _text_of(order)})
    rows = page_of_trials(store.engine, record.id, wanted, order, paging.start, TRIALS_PER_PAGE) if total else []
    kept = {name: value for name, value in kept.items() if value}
    turned = {key: _text_of(_turned(order, key)) for key in sort_keys(view.search)}
    links = {key: f"{path}?{urlencode({**kept, 'sort': text}, doseq=True)}" for key, text in turned.items()}
    metrics = [objective.metric for objective in view.search.objectives]
    usual = "point" if len(view.search.space.names) > _COLUMNS else "p."
    values = {
        "view": view,
        "rows": rows,
        "annotations": trial_annotations(store.engine, record.id, [trial.number for trial in rows]),
        "paging": paging,
        "sort": order,
        "sort_text": _text_of(order),
        "links": links,
        "wanted": state,
        "counts": counts,
        "text": wanted.text,
        "where": where,
        "problem": problem,
        "filtered": bool(kept.keys() - {"col"}),
        "reported": metrics.index(stops.metric) if (stops := view.search.early_stopping).metric in metrics else 0,
        "columns": columns,
        "chosen": chosen or [key for key in columns if key in _USUAL or key.startswith(("value", usual))],
        "figures": lambda trial: figures(trial.values, trial.stds, len(metrics)),
    }
    return page(request, "trials.j2", values, 422 if problem else 200)


#: Columns of a table of trials that are shown without a choice, besides the figures of merit and the parameters.
_USUAL = ("state", "seconds", "generation", "remark")


def trial_columns(search: Search) -> dict[str, str]:
    """Returns the columns of a table of trials that users can choose, and their headings."""
    values = {f"value{index if index > 1 else ''}": one.metric for index, one in enumerate(search.objectives, 1)}
    parameters = {f"p.{name}": name for name in search.space.names}
    times = {"seconds": "time", "submitted": "submitted", "started": "started", "ended": "ended"}
    more = {"generation": "gen.", "remark": "remark"}
    return {"state": "state", **values, **parameters, "point": "point", **times, **more}


def _text_of(order: TrialOrder) -> str:
    """Returns the order as text in an address."""
    return ("-" if order.descending else "") + order.key


def _turned(order: TrialOrder, key: str) -> TrialOrder:
    """Returns the order after a click on a column's header; the reverse if this column already sorts the table."""
    return TrialOrder(key, not order.descending if order.key == key else key in ("number", "seconds", "generation"))


def errors_page(request: Request) -> Response:
    """Shows the failures of a search, grouped by cause."""
    parts, view = context_of(request), view_of(request)
    engine, number = parts.library.store.engine, view.record.id
    groups = failure_groups(failed_trials(engine, number))
    first = groups[:_REASONS]
    samples = {number for group in first for number in group.trials[:5]}
    tails = failed_folds_logs(engine, number, samples)
    logs = [next((tails[number][-_LOG:] for number in group.trials[:5] if number in tails), "") for group in first]
    values = {"view": view, "groups": groups, "limit": _REASONS, "logs": logs, "may_change": may_change(request, view)}
    return page(request, "errors.j2", values)


#: Most metrics shown: a payload may report any number.
_METRICS = 60

_DOWNLOAD_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json", "report": "text/html; charset=utf-8"}


def trial_of(request: Request, view: SearchView) -> Trial:
    """Returns the trial that the address names, with everything that the store has of its folds.

    Raises:
        HTTPException: there is no such trial (404).
    """
    given = request.path_params["number"]
    found = context_of(request).library.store.trial(view.record.id, given)
    if found is None:
        raise HTTPException(
            404, f"search {view.record.name!r} has no trial {given}; it has {whole(view.progress.trials)}"
        )
    return found


def trial_page(request: Request) -> Response:
    """Shows one trial."""
    parts, view = context_of(request), view_of(request)
    one = trial_of(request, view)
    store, record, search = parts.library.store, view.record, view.search
    attempts = [(number, attempt) for fold in one.folds for number, attempt in enumerate(fold.attempts, 1)]
    reported = search.early_stopping.metric or search.objective.metric
    before, after = neighbours(store.engine, record.id, one.number)
    rank, ranked = rank_of(store.engine, record.id, search, view.progress, one)
    metrics = sorted({name for _, attempt in attempts for name in attempt.metrics or ()})
    values = {
        "view": view,
        "trial": one,
        "figures": figures(one.values, one.stds, len(search.objectives)),
        "job_command": filled_command(search, one.point, level=one.level),
        "attempts": attempts,
        "measured": [reports[-1] for fold in one.folds if (reports := [one for one in fold.attempts if one.metrics])],
        "metrics": metrics[:_METRICS],
        "headings": {measure.name: measure.heading for measure in MEASURES},
        "more_metrics": max(0, len(metrics) - _METRICS),
        "cost": price_of(search).cost(one.spent),
        "curve": curves_svg(store.intermediate_values(record.id, [one.number]).get(one.number, {}), reported),
        "reported": reported,
        "annotation": trial_annotations(store.engine, record.id, [one.number]).get(one.number, Annotation()),
        "rank": rank,
        "ranked": ranked,
        "before": before,
        "after": after,
        "again": sum(number > 1 for number, _ in attempts),
        "kept": [attempt.output for _, attempt in attempts if attempt.output],
        "embedded": record.server in (None, EMBEDDED),
        "may_change": may_change(request, view),
        "now": datetime.now(UTC),
    }
    return page(request, "trial.j2", values)


def trial_log(request: Request) -> Response:
    """Downloads the end of an attempt's log, which the store keeps."""
    view = view_of(request)
    one = trial_of(request, view)
    fold, wanted = (request.query_params.get(name, "") for name in ("fold", "attempt"))
    for each in one.folds:
        for nr, attempt in enumerate(each.attempts, 1):
            if (str(each.number), str(nr)) == (fold, wanted) and attempt.log_tail:
                name = f"{view.record.name}-trial{one.number}-fold{fold}-attempt{nr}.log"
                return download(attempt.log_tail, "text/plain; charset=utf-8", name)
    raise HTTPException(404, "the store has no log of that attempt")


async def search_report(request: Request) -> Response:
    """Downloads the report of a search."""
    return await to_thread.run_sync(_search_report, request, limiter=context_of(request).api.worker_threads)


def _search_report(request: Request) -> Response:
    record = view_of(request).record
    return download(context_of(request).api.report(record), _DOWNLOAD_TYPES["report"], f"{record.name}.html")


def search_download(request: Request) -> Response:
    """Downloads a search and its trials in an export format."""
    view, form = view_of(request), request.path_params["form"]
    if form not in TEXT_FORMS or form not in _DOWNLOAD_TYPES:
        raise HTTPException(404, f"there is no download {quote(form)}; there is {', '.join(_DOWNLOAD_TYPES)}")
    headers = {"Content-Disposition": f'attachment; filename="{view.record.name}.{form}"'}
    return streamed_answer(request, client_of(request).export(view.record.name, form), _DOWNLOAD_TYPES[form], headers)


#: Most search names offered in the filter of jobs.
_NAMES = 200


def jobs_page(request: Request) -> Response:
    """Shows jobs, newest first."""
    parts, wanted = context_of(request), JobFilter.of_query(request.query_params)
    content = parts.job_fragments.jobs(wanted)
    values = {
        "html": content.html,
        "state": content.state,
        "filter": wanted,
        "names": [head.name for head in parts.library.heads()[:_NAMES]],
        "states": list(JobState),
    }
    return page(request, "jobs.j2", values)


def job_page(request: Request) -> Response:
    """Shows one job."""
    parts, number = context_of(request), request.path_params["number"]
    try:
        found = parts.server_jobs.job(number)
        log = parts.server_jobs.log(number) if found.job.has_log else None
    except NoJobError:
        raise HTTPException(404, f"the embedded PanDA server has no job {number}, or has deleted it") from None
    except TryAgainError as error:
        return page(request, "error.j2", {"title": f"Job {number}", "message": away_text(error), "back": ""}, 503)
    values = {
        "found": found,
        "log": log.text if log else "",
        "whole": log is None or log.is_whole,
        "curve": curves_svg({0: found.job.progress}, "the reported value"),
        "now": datetime.now(UTC),
    }
    return page(request, "job.j2", values)


def job_log(request: Request) -> Response:
    """Downloads the log of a job: at most its last `LOG_MOST` bytes."""
    number = request.path_params["number"]
    try:
        log = context_of(request).server_jobs.log(number, LOG_MOST)
    except NoJobError:
        raise HTTPException(404, f"the embedded PanDA server has no job {number}, or has deleted it") from None
    except TryAgainError as error:
        raise HTTPException(503, away_text(error)) from None
    return download(log.text, "text/plain; charset=utf-8", f"job{number}.log")


def pilots_page(request: Request) -> Response:
    """Shows pilots and queues."""
    parts = context_of(request)
    content = parts.job_fragments.pilots()
    return page(request, "pilots.j2", {"html": content.html, "state": content.state, "server": parts.server_jobs.url})


# --- the manual ---

#: Seconds for which a browser caches a picture. Only a day: its address does not change when the picture does.
_DAY = 86_400

_PICTURE_TYPES = {"svg": "image/svg+xml", "png": "image/png"}

#: Valid name of a picture: no folder, no hidden file.
_PICTURE_NAME = re.compile(r"[a-zA-Z0-9][\w-]*\.(svg|png)", re.ASCII)

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)

#: Least number of headings for which a page shows a list of them.
_LEAST_HEADINGS = 2


def contents_page(request: Request) -> Response:
    """Shows the list of the manual's pages."""
    return page(request, "help.j2", {"groups": manual_groups()})


def redirect_to_contents(_request: Request) -> Response:
    """Redirects `/help/` to `/help`, because the links of the list are relative to that address."""
    return RedirectResponse("/help", 308)


def manual_page(request: Request) -> Response:
    """Shows a page of the manual."""
    try:
        found = page_named(request.path_params["name"][:100])
    except InputError as error:
        raise HTTPException(404, str(error)) from None
    return page(request, "chapter.j2", chapter_values(found))


def manual_picture(request: Request) -> Response:
    """Returns a picture of the manual."""
    name = request.path_params["file"]
    content = _picture_content(name) if _PICTURE_NAME.fullmatch(name) else None
    if content is None:
        raise HTTPException(404, "the manual has no such picture")
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"Cache-Control": f"private, max-age={_DAY}", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return packed_answer(request, content, _PICTURE_TYPES[name.rpartition(".")[2]], headers)


@cache
def manual_groups() -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """Returns the names and titles of the manual's pages, by group."""
    by_group = groupby(PAGES, key=lambda one: one.group)
    return tuple((group, tuple((one.name, one.title) for one in pages)) for group, pages in by_group)


@cache
def chapter_values(found: Page, ending: str = "") -> dict[str, Any]:
    """Returns the values of `chapter.j2` for a page of the manual.

    Args:
        found: the page.
        ending: ending of the pages' names in links.
    """
    html = Markup(as_html(found, ending))  # noqa: S704 - the package's own text, in which HTML is text
    headings = [(anchor, Markup(words)) for anchor, words in _HEADING.findall(html)]  # noqa: S704 - of the same
    at = PAGES.index(found)
    return {
        "groups": manual_groups(),
        "here": found,
        "html": html,
        "headings": headings if len(headings) >= _LEAST_HEADINGS else [],
        "before": PAGES[at - 1] if at else None,
        "after": PAGES[at + 1] if at + 1 < len(PAGES) else None,
    }


def _picture_content(name: str) -> bytes | None:
    path = files("hpo_pilot.manual") / "pictures" / name
    return path.read_bytes() if path.is_file() else None


_PAGE_NAMES = frozenset(one.name for one in PAGES)


@cache
def as_html(page: Page, ending: str = "") -> str:
    """Converts a page's text to HTML. Headings get anchors; links to other pages are relative to this page's address.

    `ending` is that of the pages' names in links.

    A link to another file of the repository becomes plain text, because an installed package lacks that file.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(page.text())
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[position + 1].content))
        elif token.type == "table_open":
            token.attrSet("class", "manual")
        elif token.type == "fence" and (title := re.search(r'title="([^"]*)"', token.info)):
            token.info = token.info.split()[0]
            token.content = f"# {title[1]}\n{token.content}" if token.info in ("python", "yaml") else token.content
        elif token.children:
            token.children = _linked(token.children, ending)
    html: str = parser.renderer.render(tokens, parser.options, {})
    # Wide tables and listings scroll separately; tabindex makes them scroll with the keyboard too.
    html = html.replace("<pre>", '<pre tabindex="0">')
    return html.replace('<table class="manual">', '<div class="scroll" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )


def anchor(heading: str) -> str:
    """Returns the anchor of a heading, in the form that code hosts use."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return plain.strip().replace(" ", "-")


def _linked(tokens: Sequence[Token], ending: str) -> list[Token]:
    """Returns inline tokens with links and pictures changed to the addresses of pages."""
    kept: list[Token] = []
    dropped = False
    for token in tokens:
        if token.type == "link_open":
            target = _address(str(token.attrs["href"]), ending)
            dropped = target is None
            if target is not None:
                token.attrSet("href", target)
                kept.append(token)
        elif token.type == "link_close" and dropped:
            dropped = False
        elif token.type == "image":
            token.attrSet("src", f"pictures/{str(token.attrs['src']).rsplit('/', 1)[-1]}")
            token.attrSet("loading", "lazy")
            kept.append(token)
        else:
            kept.append(token)
    return kept


def _address(target: str, ending: str) -> str | None:
    """Returns a link's address; None: the link leads to a file of the repository."""
    parts = urlsplit(target)
    if parts.scheme or target.startswith("#"):
        return target
    if parts.path.endswith(".md") and parts.path.removesuffix(".md") in _PAGE_NAMES:
        return parts.path.removesuffix(".md") + ending + (f"#{parts.fragment}" if parts.fragment else "")
    return None
