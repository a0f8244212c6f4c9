"""Calls that look at searches."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response
from typing_extensions import TypedDict

from hpo_pilot.client.documents import (
    EventDocument,
    ProgressDocument,
    SearchDocument,
    StatusDocument,
    TrialDocument,
)
from hpo_pilot.client.exports import FORMS
from hpo_pilot.client.intermediate import IntermediateDocument, intermediate_documents
from hpo_pilot.rest import examples
from hpo_pilot.rest.answer import answer, json_answer
from hpo_pilot.rest.context import Client, Identity, Parts, answers
from hpo_pilot.rest.problem import ApiError
from hpo_pilot.service.outputs import fetched, kept_outputs

#: Bytes after which a page of trials is full: their log tails may be long.
_PAGE_BYTES = 4_000_000

#: Seconds that a call may wait for news.
_LONGEST_WAIT = 30.0

_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

router = APIRouter(tags=["looking"])


class TrialsPage(TypedDict):
    """Some trials, by number; `next` is what to give as `after` for those that follow, null where there are none."""

    trials: list[TrialDocument]
    next: int | None


class IntermediatePage(TypedDict):
    """What some trials reported while they ran; `next` is as in `TrialsPage`."""

    trials: list[IntermediateDocument]
    next: int | None


class KeptOutputs(TypedDict):
    """Which folds' outputs of a trial are kept, of so many folds that each trial has."""

    trial: int
    folds: list[int]
    of: int


@router.get("/searches", response_model=list[SearchDocument], responses=answers([examples.SEARCH]))
def list_searches(request: Request, client: Client) -> Response:
    """All searches, oldest first; everybody sees all of them."""
    return json_answer(request, client.searches())


@router.get("/searches/{identity}", response_model=StatusDocument, responses=answers(examples.STATUS, 404))
def status(request: Request, client: Client, identity: Identity) -> Response:
    """How a search stands, with all that its file says."""
    return json_answer(request, client.status(identity))


@router.get(
    "/searches/{identity}/progress",
    response_model=ProgressDocument,
    responses={
        **answers(examples.PROGRESS, 404),
        304: {"description": "Nothing has changed; to ask again is all there is to do."},
    },
)
async def progress(
    request: Request,
    parts: Parts,
    identity: Identity,
    timeout: Annotated[float, Query(ge=0, le=_LONGEST_WAIT, description="Seconds to wait for a change.")] = 0.0,
    if_none_match: Annotated[str | None, Header(description="The ETag of what is known.")] = None,
) -> Response:
    """How far a search is: at once, or, with an ETag, as soon as that has changed."""
    seen = if_none_match.removeprefix("W/").strip() if if_none_match else None
    news = await parts.news.next(identity, seen, timeout)
    if news.tag == seen:
        return Response(status_code=304, headers={"ETag": news.tag})
    return answer(request, news.content, "application/json", headers={"ETag": news.tag})


@router.get(
    "/searches/{identity}/trials",
    response_model=TrialsPage,
    responses=answers({"trials": [examples.TRIAL], "next": None}, 404),
)
def trials(
    request: Request,
    client: Client,
    identity: Identity,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only trials with larger numbers.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many; fewer where their logs are long.")] = 200,
    logs: Annotated[bool, Query(description="Whether failed folds have their log tails.")] = True,
) -> Response:
    """Trials by number, a page at a time."""
    found = client.some_trials(identity, after, limit, logs=logs)
    page: list[str] = []
    size = 0
    for trial in found:
        if page and size > _PAGE_BYTES:
            break
        page.append(json.dumps(trial, allow_nan=False))
        size += len(page[-1])
    more = len(page) < len(found) or len(found) == limit
    following = json.dumps(found[len(page) - 1]["number"] if more else None)
    content = f'{{"trials": [{", ".join(page)}], "next": {following}}}'
    return answer(request, content.encode(), "application/json")


@router.get(
    "/searches/{identity}/intermediate",
    response_model=IntermediatePage,
    responses=answers({"trials": [examples.INTERMEDIATE], "next": None}, 404),
)
def intermediate(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only trials with larger numbers.")] = 0,
    limit: Annotated[int, Query(ge=1, le=100, description="Of the next so many trials.")] = 100,
) -> Response:
    """What trials reported while they ran, by number; those that reported nothing are left out."""
    found, following = intermediate_documents(parts.store, client.record(identity).id, after, limit)
    return json_answer(request, {"trials": found, "next": following})


@router.get(
    "/searches/{identity}/best",
    response_model=TrialDocument | list[TrialDocument] | None,
    responses=answers(examples.TRIAL, 404),
)
def best(request: Request, client: Client, identity: Identity) -> Response:
    """The best trial; null while none has a figure of merit. Of several objectives, those of the Pareto front."""
    return json_answer(request, client.best(identity))


@router.get("/searches/{identity}/events", response_model=list[EventDocument], responses=answers([examples.EVENT], 404))
def events(request: Request, client: Client, identity: Identity) -> Response:
    """Who did what with the search and when, oldest first."""
    return json_answer(request, client.events(identity))


@router.get(
    "/searches/{identity}/report",
    response_class=Response,
    responses={**answers(None, 404), 200: {"content": {"text/html": {"schema": {"type": "string"}}}}},
)
def report(request: Request, client: Client, identity: Identity) -> Response:
    """The report: one self-contained HTML document."""
    return answer(
        request,
        client.report(identity).encode("utf-8", "replace"),
        "text/html; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="report.html"'},
    )


@router.get(
    "/searches/{identity}/export",
    response_class=Response,
    responses={
        **answers(None, 404),
        200: {"content": {kind: {"schema": {}} for kind in ("text/csv", "application/json", "text/plain")}},
    },
)
def export(
    request: Request,
    client: Client,
    identity: Identity,
    form: Annotated[str, Query(alias="format", description=f"One of {', '.join(FORMS)}.", examples=["csv"])] = "csv",
) -> Response:
    """A search and its trials in another form."""
    text = client.export(identity, form)
    return answer(request, text.encode("utf-8", "replace"), _MEDIA_TYPES.get(form, "text/plain; charset=utf-8"))


@router.get(
    "/searches/{identity}/outputs/{which}",
    response_model=KeptOutputs,
    responses=answers({"trial": 26, "folds": [0, 1, 2], "of": 3}, 404),
)
def outputs(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    which: Annotated[str, Path(description="`best`, or a trial's number.", max_length=20, examples=["best"])],
) -> Response:
    """Which outputs of a trial are kept."""
    record = client.record(identity)
    number, names = kept_outputs(parts.store, record, which)
    return json_answer(request, {"trial": number, "folds": sorted(names), "of": record.search.folds.k})


@router.get(
    "/searches/{identity}/outputs/{trial}/{fold}",
    response_class=FileResponse,
    responses={
        **answers(None, 404),
        200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}},
    },
)
def output(
    client: Client,
    parts: Parts,
    identity: Identity,
    trial: Annotated[int, Path(ge=0, le=2**31 - 1, description="The trial's number.")],
    fold: Annotated[int, Path(ge=0, le=2**31 - 1, description="The fold, from 0.")],
) -> Response:
    """The kept outputs of one fold of a trial, a .tar.gz archive."""
    record = client.record(identity)
    number, names = kept_outputs(parts.store, record, str(trial))
    wanted: dict[int, Any] = {fold: names[fold]} if fold in names else {}
    with contextlib.ExitStack() as stack:
        archives = stack.enter_context(fetched(parts.workdir, wanted, server=record.server, start=False))
        if fold not in archives:
            raise ApiError(404, "not_found", f"fold {fold} of trial {number} has no kept outputs")
        ended = stack.pop_all()
    return FileResponse(archives[fold], media_type="application/gzip", background=BackgroundTask(ended.close))
