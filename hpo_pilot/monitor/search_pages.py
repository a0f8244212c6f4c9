"""The pages of all searches and of one: what people look at all day."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import yaml
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpo_pilot.figures.failures import failure_groups
from hpo_pilot.figures.wording import number, plus_minus, span
from hpo_pilot.monitor.context import may_change, page, parts_of, session_of, view_of
from hpo_pilot.monitor.library import View
from hpo_pilot.monitor.paging import paged
from hpo_pilot.monitor.pieces import summary
from hpo_pilot.monitor.rendering import rendered
from hpo_pilot.monitor.serving import packed_answer
from hpo_pilot.panda.bigpanda_link import search_link
from hpo_pilot.search import Search, Trial, TrialState
from hpo_pilot.store import SearchState, UnknownSearchError
from hpo_pilot.store.lease import holder
from hpo_pilot.store.overview import failed_folds_logs, trials_with_errors, trials_with_folds

#: Rows of a page.
SEARCHES, TRIALS = 50, 100

#: Above this many parameters a table shows a point in one column, as the report does.
_COLUMNS = 12

#: Reasons of failures shown, and characters of a log.
_REASONS, _LOG = 50, 6000


def searches(request: Request) -> Response:
    """All searches."""
    parts = parts_of(request)
    given = {name: request.query_params.get(name, "")[:100] for name in ("q", "state", "owner", "family")}
    views = parts.library.views()
    shown = [view for view in views if _is_wanted(view, given)]
    found = paged(shown, SEARCHES, request.query_params.get("page", ""), "/", given)
    html: dict[str, Any] = {"f-summary": summary(views)}
    steers = holder(parts.library.store.engine)
    for view in found.rows:
        html |= parts.live.pieces.of_row(view, steers)
    return page(
        request,
        "searches.j2",
        {
            "rows": found.rows,
            "paging": found.paging,
            "html": html,
            "all": len(views),
            "filter": given,
            "filtered": any(given.values()),
            "owners": sorted({view.record.owner for view in views}),
            "steered": steers is not None and steers.searches is None,
        },
    )


def _is_wanted(view: View, given: dict[str, str]) -> bool:
    record, state = view.record, given["state"]
    if (state == "active" and record.state.is_over) or (state == "over" and not record.state.is_over):
        return False
    if state in list(SearchState) and record.state.value != state:
        return False
    if (given["owner"] and record.owner != given["owner"]) or (given["family"] and record.family != given["family"]):
        return False
    return given["q"].lower() in record.name.lower()


def search(request: Request) -> Response:
    """One search; of a family the page of its searches."""
    parts = parts_of(request)
    try:
        view = view_of(request)
    except UnknownSearchError:
        name = request.path_params["name"]
        if any(one.record.family == name for one in parts.library.views()):
            return RedirectResponse(f"/?family={quote(name, safe='')}", 303)
        raise
    values = {
        "view": view,
        "html": parts.live.pieces.of_search(view).html,
        "kinds": parts.figures.kinds(view),
        "may_change": may_change(request, view),
        "definition": yaml.safe_dump(view.search.to_dict(), sort_keys=False, allow_unicode=True),
        "panda": search_link(view.record.server, view.record.uid, monitor=view.search.panda.monitor),
    }
    return page(request, "search.j2", values)


def actions(request: Request) -> Response:
    """What may be done with a search now, for a page whose search is in another state than before."""
    parts, session, view = parts_of(request), session_of(request), view_of(request)
    assert session is not None
    values = {
        "view": view,
        "may_change": may_change(request, view),
        "form_token": parts.sessions.form_token(session),
    }
    return packed_answer(request, rendered("actions.j2", values).encode(), "text/html; charset=utf-8")


def figures(request: Request) -> Response:
    """The figures of a kind, as JSON."""
    drawn = parts_of(request).figures.drawn(view_of(request), request.path_params["key"])
    headers = {"ETag": drawn.tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if drawn.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return packed_answer(request, drawn.packed, "application/json", headers, is_packed=True)


@dataclass(frozen=True)
class Sort:
    """How a table of trials is sorted.

    Attributes:
        key: the column: number, state, value, value2, …, seconds, generation, or `p.` and a parameter's name.
        descending: the largest first.
    """

    key: str
    descending: bool

    @property
    def text(self) -> str:
        """As an address has it."""
        return ("-" if self.descending else "") + self.key

    @classmethod
    def of_text(cls, text: str, search: Search) -> Sort:
        """The sort that an address names, or the usual one."""
        key, descending = text.removeprefix("-"), text.startswith("-")
        return cls(key, descending) if key in sort_keys(search) else cls("number", descending=True)


def sort_keys(search: Search) -> list[str]:
    """The columns that a table of trials can be sorted by."""
    values = ["value", *(f"value{index}" for index in range(2, len(search.objectives) + 1))]
    return ["number", "state", *values, "seconds", "generation", *(f"p.{name}" for name in search.space.names)]


def sorted_trials(trials: Sequence[Trial], sort: Sort) -> list[Trial]:
    """The trials by a column; those that have nothing there come last, either way. Numbers come before texts."""
    if sort.key == "number":  # as they are
        return list(reversed(trials)) if sort.descending else list(trials)
    read = _reader(sort.key)
    there: list[tuple[Any, Trial]] = []
    without: list[Trial] = []
    for trial in trials:
        value = read(trial)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            without.append(trial)
        else:
            is_text = isinstance(value, str)
            there.append(((is_text, value if is_text else float(value)), trial))
    there.sort(key=lambda pair: pair[0], reverse=sort.descending)
    return [trial for _, trial in there] + without


def _reader(key: str) -> Callable[[Trial], Any]:
    if key.startswith("p."):
        return lambda trial: trial.point.get(key[2:])
    if key.startswith("value"):
        index = int(key[5:] or "1") - 1
        return lambda trial: (trial.figures or ())[index] if len(trial.figures or ()) > index else None
    if key == "seconds":
        return lambda trial: span(trial.started, trial.ended)
    if key == "state":
        return lambda trial: trial.state.value
    return lambda trial: getattr(trial, key)


def trials(request: Request) -> Response:
    """The trials of a search as a table."""
    view = view_of(request)
    wanted = request.query_params.get("state", "")
    sort = Sort.of_text(request.query_params.get("sort", ""), view.search)
    state = TrialState(wanted) if wanted in list(TrialState) else None
    chosen = view.trials if state is None else [trial for trial in view.trials if trial.state is state]
    path = f"/searches/{quote(view.record.name, safe='')}/trials"
    found = paged(
        sorted_trials(chosen, sort),
        TRIALS,
        request.query_params.get("page", ""),
        path,
        {"state": wanted, "sort": sort.text},
    )
    links = {
        key: f"{path}?{urlencode({'state': wanted, 'sort': _turned(sort, key).text})}" for key in sort_keys(view.search)
    }
    names = view.search.space.names
    values = {
        "view": view,
        "rows": found.rows,
        "paging": found.paging,
        "sort": sort,
        "links": links,
        "wanted": wanted,
        "metrics": [objective.metric for objective in view.search.objectives],
        "columns": names if len(names) <= _COLUMNS else (),
        "best": view.best.trial.number if view.best else None,
        "figures": lambda trial: figure_texts(trial, len(view.search.objectives)),
    }
    return page(request, "trials.j2", values)


def _turned(sort: Sort, key: str) -> Sort:
    """What a click on a column's head asks for: the other way round, where it is sorted by that already."""
    return Sort(key, not sort.descending if sort.key == key else key in ("number", "seconds", "generation"))


def figure_texts(trial: Trial, objectives: int) -> list[str]:
    """A trial's figures of merit with their spreads, one text for each objective."""
    figures, spreads = trial.figures, trial.spreads or (None,) * objectives
    if figures is None or len(figures) != objectives:
        return [number(None)] * objectives
    return [plus_minus(figure, spread) for figure, spread in zip(figures, spreads, strict=False)]


def errors(request: Request) -> Response:
    """The failures of a search by their causes."""
    parts, view = parts_of(request), view_of(request)
    engine, number = parts.library.store.engine, view.record.id
    groups = failure_groups(trials_with_folds(engine, number, trials_with_errors(engine, number)))
    shown = groups[:_REASONS]
    samples = {number for group in shown for number in group.trials[:5]}
    tails = failed_folds_logs(engine, number, samples)
    logs = [next((tails[number][-_LOG:] for number in group.trials[:5] if number in tails), "") for group in shown]
    values = {"view": view, "groups": groups, "limit": _REASONS, "logs": logs, "may_change": may_change(request, view)}
    return page(request, "errors.j2", values)
