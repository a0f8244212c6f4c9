"""The page of one trial, and what can be downloaded of searches and trials."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hpo_pilot.client.exports import FORMS
from hpo_pilot.config.site_power import price_of
from hpo_pilot.monitor.context import client_of, may_change, page, parts_of, view_of
from hpo_pilot.monitor.library import View
from hpo_pilot.monitor.search_pages import figure_texts
from hpo_pilot.monitor.serving import download
from hpo_pilot.monitor.svg import curves
from hpo_pilot.search import Trial
from hpo_pilot.search.cost import Spent
from hpo_pilot.store import EMBEDDED, JobOutcome
from hpo_pilot.store.overview import attempts_of

#: Metrics shown: a payload may report any number of them.
_METRICS = 60

_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json", "report": "text/html; charset=utf-8"}


def trial_of(request: Request, view: View) -> Trial:
    """The trial that the address names.

    Raises:
        HTTPException: there is none.
    """
    given = request.path_params["number"]
    for one in view.trials:
        if one.number == given:
            return one
    raise HTTPException(404, f"search {view.record.name!r} has no trial {given}; it has {len(view.trials):,}")


def trial(request: Request) -> Response:
    """One trial."""
    parts, view = parts_of(request), view_of(request)
    one = trial_of(request, view)
    store, record, search = parts.library.store, view.record, view.search
    attempts = attempts_of(store.engine, record.id, one.number)
    spent = Spent()
    for _, attempt in attempts:
        spent = spent.and_one(attempt.seconds, attempt.joules)
    reported = search.early_stopping.metric or search.objective.metric
    numbers = [each.number for each in view.trials]
    place = numbers.index(one.number)
    rank, ranked = view.place_of(one)
    metrics = sorted({name for _, attempt in attempts for name in attempt.metrics or ()})
    values = {
        "view": view,
        "trial": one,
        "figures": figure_texts(one, len(search.objectives)),
        "attempts": attempts,
        "told": _last_attempts(attempts),
        "metrics": metrics[:_METRICS],
        "more_metrics": max(0, len(metrics) - _METRICS),
        "cost": price_of(search).cost(spent),
        "curve": curves(store.intermediate_values(record.id, [one.number]).get(one.number, {}), reported),
        "reported": reported,
        "rank": rank,
        "ranked": ranked,
        "before": numbers[place - 1] if place else None,
        "after": numbers[place + 1] if place + 1 < len(numbers) else None,
        "again": sum(number > 1 for number, _ in attempts),
        "kept": [attempt.output for _, attempt in attempts if attempt.output],
        "embedded": record.server in (None, EMBEDDED),
        "may_change": may_change(request, view),
        "now": datetime.now(UTC),
    }
    return page(request, "trial.j2", values)


def _last_attempts(attempts: list[tuple[int, JobOutcome]]) -> list[JobOutcome]:
    """The last attempt of each fold that reported anything."""
    return list({attempt.fold: attempt for _, attempt in attempts if attempt.metrics}.values())


def trial_log(request: Request) -> Response:
    """The end of the log of one attempt, as the store has it."""
    parts, view = parts_of(request), view_of(request)
    one = trial_of(request, view)
    fold, wanted = (request.query_params.get(name, "") for name in ("fold", "attempt"))
    for number, attempt in attempts_of(parts.library.store.engine, view.record.id, one.number):
        if (str(attempt.fold), str(number)) == (fold, wanted) and attempt.log_tail:
            name = f"{view.record.name}-trial{one.number}-fold{fold}-attempt{number}.log"
            return download(attempt.log_tail, "text/plain; charset=utf-8", name)
    raise HTTPException(404, "the store has no log of that attempt")


def search_download(request: Request) -> Response:
    """A search and its trials in another form, or its report."""
    view, form = view_of(request), request.path_params["form"]
    client = client_of(request)
    if form == "report":
        text, ending = client.report(view.record.name), "html"
    elif form in FORMS and form in _TYPES:
        text, ending = client.export(view.record.name, form), form
    else:
        raise HTTPException(404, f"there is no download {quote(form)}; there is {', '.join(_TYPES)}")
    return download(text, _TYPES[form], f"{view.record.name}.{ending}")
