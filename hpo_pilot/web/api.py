"""The calls of the REST API."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, create_model
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response
from typing_extensions import TypedDict

from hpo_pilot import __version__
from hpo_pilot.errors import SearchFileError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES
from hpo_pilot.operations.asked_trials import checked_ask
from hpo_pilot.operations.asking import LEASE, LONGEST_CALL
from hpo_pilot.operations.client import OPERATIONS, SearchClient
from hpo_pilot.operations.families import for_each
from hpo_pilot.operations.operation import Operation
from hpo_pilot.operations.quotas import usage
from hpo_pilot.panda.sandbox import build_sandbox, in_worker
from hpo_pilot.report.documents import (
    AskedDocument,
    EventDocument,
    ExaminationDocument,
    ProblemDocument,
    ProgressDocument,
    SearchDocument,
    StatusDocument,
    ToldDocument,
)
from hpo_pilot.report.exports import TEXT_FORMS
from hpo_pilot.report.trial_documents import (
    IntermediateDocument,
    RecommendationDocument,
    TrialDocument,
    intermediate_documents,
)
from hpo_pilot.search import Search
from hpo_pilot.search.fields import Scalar
from hpo_pilot.search.limits import MOST_MACHINE_HOURS, MOST_PARALLEL
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.search.space import MAX_LENGTH
from hpo_pilot.steering.registration import earlier_results, first_task_of, packed_family, payload_document
from hpo_pilot.steering.results import fetched_outputs, kept_outputs
from hpo_pilot.steering.search_file import examination_document, examine_content
from hpo_pilot.store import SearchRecord
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.store.queries import search_heads
from hpo_pilot.web.api_context import (
    DIGEST,
    EXAMPLES,
    RESULTS_LIMIT,
    ApiError,
    Client,
    Context,
    Identity,
    Parts,
    answers,
    caller_of,
    upload_quota,
    user_of,
)
from hpo_pilot.web.rendering import json_answer, packed_answer, streamed_answer

service_router = APIRouter(tags=["service"])


class HealthDocument(TypedDict):
    """The API answers."""

    status: str


class UserDocument(TypedDict):
    """Owner of the token, and its role: `user` or `operator`."""

    name: str
    role: str


class ServiceDocument(TypedDict):
    """The service; `steering` says whether a process runs its searches, `upload_limit` is in bytes."""

    version: str
    user: UserDocument
    steering: bool
    searches: int
    upload_limit: int
    quotas: dict[str, dict[str, float]]


@service_router.get(
    "/health",
    response_model=HealthDocument,
    responses={200: {"content": {"application/json": {"example": {"status": "ok"}}}}},
    openapi_extra={"security": []},
)
async def health(request: Request) -> Response:
    """Says whether the API answers; needs no token."""
    return json_answer(request, {"status": "ok"})


@service_router.get("/service", response_model=ServiceDocument, responses=answers(EXAMPLES["service"]))
def service(request: Request, parts: Parts) -> Response:
    """Returns version, state and limits of the service, and the user of the token."""
    caller, user = caller_of(request), user_of(caller_of(request))
    return json_answer(
        request,
        {
            "version": __version__,
            "user": {"name": caller.name, "role": caller.role.value},
            "steering": lease_holder(parts.store.engine) is not None,
            "searches": len(search_heads(parts.store.engine)),
            "upload_limit": parts.uploads.limit,
            "quotas": {}
            if user.changes_all
            else usage(parts.store, parts.workdir, user.name, parts.uploads.used(user.name)),
        },
    )


_encoded = json.JSONEncoder(allow_nan=False).encode

#: Bytes after which a page of trials ends: log tails may be long.
_PAGE_BYTES = 4_000_000

#: The longest time in seconds that a call waits for a change.
_LONGEST_WAIT = 30.0

_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}

reading_router = APIRouter(tags=["looking"])


class TrialsPage(TypedDict):
    """Trials by number; `next` is the value of `after` for the next page, null on the last page."""

    trials: list[TrialDocument]
    next: int | None


class IntermediatePage(TypedDict):
    """Intermediate values of trials; `next` is as in `TrialsPage`."""

    trials: list[IntermediateDocument]
    next: int | None


class OutputsDocument(TypedDict):
    """The folds of a trial whose outputs are kept; `of` is the number of folds of each trial."""

    trial: int
    folds: list[int]
    of: int


@reading_router.get(
    "/searches/{identity}/progress",
    response_model=ProgressDocument,
    responses={**answers(EXAMPLES["progress"], 404), 304: {"description": "Nothing has changed; ask again."}},
)
async def progress(
    request: Request,
    parts: Parts,
    identity: Identity,
    timeout: Annotated[float, Query(ge=0, le=_LONGEST_WAIT, description="Seconds to wait for a change.")] = 0.0,
    if_none_match: Annotated[str | None, Header(description="The ETag of what is known.")] = None,
) -> Response:
    """Returns the progress of a search: at once, or with an ETag as soon as it changes."""
    seen = if_none_match.removeprefix("W/").strip() if if_none_match else None
    news = await parts.news.next(identity, seen, timeout)
    if news.tag == seen:
        return Response(status_code=304, headers={"ETag": news.tag})
    return packed_answer(request, news.content, "application/json", headers={"ETag": news.tag})


@reading_router.get(
    "/searches/{identity}/trials",
    response_model=TrialsPage,
    responses=answers({"trials": [EXAMPLES["trial"]], "next": None}, 404),
)
def trials(
    request: Request,
    client: Client,
    identity: Identity,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only trials with larger numbers.")] = 0,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Most trials of a page; fewer if their logs are long.")
    ] = 200,
    logs: Annotated[bool, Query(description="Whether failed folds have their log tails.")] = True,
    where: Annotated[
        str, Query(max_length=MAX_LENGTH, description="Only these trials, such as `loss < 0.1 and layers == 2`.")
    ] = "",
) -> Response:
    """Returns trials by number, page by page."""
    page: list[str] = []
    size = last = 0
    more = False
    for trial in client.trials(identity, after=after, limit=limit, logs=logs, where=where):
        if page and size > _PAGE_BYTES:
            more = True
            break
        page.append(_encoded(trial))
        size, last = size + len(page[-1]), trial["number"]
    following = json.dumps(last if more or len(page) == limit else None)
    content = f'{{"trials": [{", ".join(page)}], "next": {following}}}'
    return packed_answer(request, content.encode(), "application/json")


@reading_router.get(
    "/searches/{identity}/intermediate",
    response_model=IntermediatePage,
    responses=answers({"trials": [EXAMPLES["intermediate"]], "next": None}, 404),
)
def intermediate(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    after: Annotated[int, Query(ge=0, le=2**31 - 1, description="Only trials with larger numbers.")] = 0,
    limit: Annotated[int, Query(ge=1, le=100, description="Number of trials to look at.")] = 100,
) -> Response:
    """Returns the intermediate values of trials, by number, without trials that reported none."""
    found, following = intermediate_documents(parts.store, client.here.search(identity).id, after, limit)
    return json_answer(request, {"trials": found, "next": following})


@reading_router.get(
    "/searches/{identity}/report",
    response_class=Response,
    responses=answers(None, 404, content={"text/html": {"schema": {"type": "string"}}}),
)
async def report(request: Request, client: Client, parts: Parts, identity: Identity) -> Response:
    """Returns the report as one self-contained HTML document."""

    def drawn() -> Response:
        content = parts.report(client.here.search(identity)).encode("utf-8", "replace")
        headers = {"Content-Disposition": 'attachment; filename="report.html"'}
        return packed_answer(request, content, "text/html; charset=utf-8", headers)

    return await to_thread.run_sync(drawn, limiter=parts.worker_threads)


@reading_router.get(
    "/searches/{identity}/export",
    response_class=Response,
    responses=answers(
        None, 404, content={kind: {"schema": {}} for kind in ("text/csv", "application/json", "text/plain")}
    ),
)
def export(
    request: Request,
    client: Client,
    identity: Identity,
    form: Annotated[
        str, Query(alias="format", description=f"One of {', '.join(TEXT_FORMS)}.", examples=["csv"])
    ] = "csv",
) -> Response:
    """Returns a search and its trials in another format."""
    parts = client.export(identity, form)
    return streamed_answer(request, parts, _MEDIA_TYPES.get(form, "text/plain; charset=utf-8"))


@reading_router.get(
    "/searches/{identity}/outputs/{which}",
    response_model=OutputsDocument,
    responses=answers({"trial": 26, "folds": [0, 1, 2], "of": 3}, 404),
)
def outputs(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    which: Annotated[str, Path(description="`best`, or a trial's number.", max_length=20, examples=["best"])],
) -> Response:
    """Returns which outputs of a trial are kept."""
    record = client.here.search(identity)
    number, names = kept_outputs(parts.store, record, which)
    return json_answer(request, {"trial": number, "folds": sorted(names), "of": record.search.folds.k})


@reading_router.get(
    "/searches/{identity}/outputs/{trial}/{fold}",
    response_class=FileResponse,
    responses=answers(None, 404, content={"application/gzip": {"schema": {"type": "string", "format": "binary"}}}),
)
def output(
    client: Client,
    parts: Parts,
    identity: Identity,
    trial: Annotated[int, Path(ge=0, le=2**31 - 1, description="The trial's number.")],
    fold: Annotated[int, Path(ge=0, le=2**31 - 1, description="The fold, from 0.")],
) -> Response:
    """Returns the kept outputs of one fold of a trial, a .tar.gz archive."""
    record = client.here.search(identity)
    number, names = kept_outputs(parts.store, record, str(trial))
    wanted: dict[int, Any] = {fold: names[fold]} if fold in names else {}
    with contextlib.ExitStack() as stack:
        archives = stack.enter_context(fetched_outputs(parts.workdir, wanted, server=record.server, start=False))
        if fold not in archives:
            raise ApiError(404, "not_found", f"fold {fold} of trial {number} has no kept outputs")
        ended = stack.pop_all()
    return FileResponse(archives[fold], media_type="application/gzip", background=BackgroundTask(ended.close))


changing_router = APIRouter(tags=["changing"])

_YAML: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A search file.",
        "content": {"application/yaml": {"schema": {"type": "string"}, "example": EXAMPLES["search_file"]}},
    }
}


class NamedResultsDocument(TypedDict):
    """A file with results of an earlier search, as `warm_start` names it, with its place."""

    source: str
    place: ProblemDocument


class NamedFilesDocument(TypedDict):
    """Files that a search file names, with their places; the client that has these files checks them."""

    files: str | None
    command: str
    files_place: ProblemDocument
    command_place: ProblemDocument
    results: list[NamedResultsDocument]


class SentExaminationDocument(ExaminationDocument):
    """Result of the check of a search file; `named_files` is null if its section `payload` is wrong."""

    named_files: NamedFilesDocument | None


class UploadDocument(TypedDict):
    """A payload, and whether the service has it."""

    digest: str
    present: bool


# The budget checks these limits with better messages; here they are only described.
_Added = Annotated[int | float, Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": MOST_MACHINE_HOURS})]


class Extension(
    BaseModel, extra="forbid", json_schema_extra={"examples": [{"add": {"trials": 50}, "seen": {"trials": 64}}]}
):
    """Amounts that are added to a budget."""

    add: dict[str, _Added] = Field(
        description="Amounts by limit: trials, hours, gpu_hours, core_hours, fidelity, failures; and high, the new "
        "highest level itself."
    )
    seen: dict[str, int | float | None] | None = Field(
        None, description="The budget of one search before the call: a repeated call then adds only once."
    )


class Retry(BaseModel, extra="forbid", json_schema_extra={"examples": [{"trials": [3, 7]}]}):
    """Failed trials to retry."""

    trials: list[Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]] | None = Field(
        None, max_length=100_000, description="Their numbers. null: all failed trials that have not been retried."
    )


class WantedPoint(BaseModel, extra="forbid", json_schema_extra={"examples": [{"point": {"learning_rate": 0.01}}]}):
    """A point to try."""

    point: dict[str, Scalar] = Field(description="The parameters that are active at the point, by name.")


class Width(BaseModel, extra="forbid", json_schema_extra={"examples": [{"parallel": 16}]}):
    """The number of trials at once."""

    parallel: StrictInt = Field(ge=1, le=MOST_PARALLEL, description="Number of trials at once.")


class Asking(BaseModel, extra="forbid", json_schema_extra={"examples": [{"wait": 20, "lease": 3600}]}):
    """A client that asks for a trial."""

    wait: float = Field(0.0, ge=0, le=LONGEST_CALL, description="Seconds to wait for a trial.")
    lease: float = Field(LEASE, description="Seconds without report or result after which another client gets it.")
    node: str = Field("", max_length=200, description="Name of the client's machine.")


async def _search_file(request: Request) -> bytes:
    content = await request.body()
    if len(content) > MAX_SEARCH_FILE_BYTES:
        raise ApiError(413, "too_large", f"a search file is at most {MAX_SEARCH_FILE_BYTES} bytes")
    return content


SearchFile = Annotated[bytes, Depends(_search_file)]
FileName = Annotated[
    str, Query(min_length=1, max_length=4096, description="The file's name in messages.", examples=["search.yaml"])
]
PayloadDigest = Annotated[
    str | None,
    Query(pattern=f"^{DIGEST.pattern}$", description="The payload's folder: the SHA-256 under which it was sent."),
]
ResultsDigest = Annotated[
    str | None,
    Query(
        pattern=f"^{DIGEST.pattern}$",
        description="The result files that warm_start names, sent as a payload is: 0 for the first of its entries, and "
        "so on.",
    ),
]
CallKey = Annotated[
    str | None, Header(min_length=8, max_length=200, description="Calls with the same key are done once.")
]
Digest = Annotated[str, Path(pattern=f"^{DIGEST.pattern}$", description="SHA-256 of the archive, hexadecimal.")]


@changing_router.post(
    "/examinations",
    response_model=SentExaminationDocument,
    responses=answers(EXAMPLES["examination"], 413),
    openapi_extra=_YAML,
)
def examine(request: Request, client: Client, content: SearchFile, file: FileName = "search.yaml") -> Response:
    """Checks a search file and registers nothing. The answer lists its mistakes, each with its place."""
    found = client.here.examined(examine_content(content, file), None)
    named: dict[str, Any] | None = None
    if found.named_files is not None:
        results = [
            {"source": source, "place": vars(place)} for source, place in found.earlier if is_result_file(source)
        ]
        named = {**asdict(found.named_files), "results": results}
    return json_answer(request, {**examination_document(found), "named_files": named})


@changing_router.post("/rehearsals", responses=answers({"taskName": "user.alice.…"}, 413), openapi_extra=_YAML)
def rehearse(
    request: Request,
    parts: Parts,
    content: SearchFile,
    file: FileName = "search.yaml",
    payload: PayloadDigest = None,
    results: ResultsDigest = None,
) -> Response:
    """Returns the task parameters of the first generation, as PanDA would get them; registers and submits nothing."""
    search = _checked(content, file)
    with tempfile.TemporaryDirectory() as folder, _results(parts, search, results) as files:
        sandbox = _sandbox(parts, search, payload, FilePath(folder))
        return json_answer(request, first_task_of(search, sandbox, earlier=earlier_results(parts.store, search, files)))


@changing_router.post(
    "/searches",
    status_code=201,
    response_model=SearchDocument,
    responses={**answers(None, 413), 201: {"content": {"application/json": {"example": EXAMPLES["search"]}}}},
    openapi_extra=_YAML,
)
def register(
    request: Request,
    client: Client,
    parts: Parts,
    content: SearchFile,
    file: FileName = "search.yaml",
    source: Annotated[
        str | None, Query(max_length=4096, description="Path of the file on your machine, for messages.")
    ] = None,
    payload: PayloadDigest = None,
    results: ResultsDigest = None,
    go_on: Annotated[bool, Query(description="Continue the search if it is registered already.")] = False,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=8, max_length=200, description="Calls with the same key and content register one search."),
    ] = None,
) -> Response:
    """Registers a search, which the service then runs. Send the payload folder first: PUT payloads/{digest}."""
    where = source or file
    if not (file.isprintable() and where.isprintable()):
        raise ApiError(422, "input", "file and source are printable text")
    search = _checked(content, file)
    key = key_of(client, idempotency_key)
    registered = register_sent(client, parts, search, file, where, payload, results, go_on=go_on, key=key)
    return json_answer(request, registered, 201)


def register_sent(
    client: SearchClient,
    parts: Context,
    search: Search,
    file: str,
    source: str | None = None,
    payload: str | None = None,
    results: str | None = None,
    *,
    go_on: bool = False,
    key: str | None = None,
    is_loose: bool = False,
) -> SearchDocument:
    """Registers a search with the files that the user sent; arguments as of `register`, `key_of` and `_sandbox`."""
    # With the content, for a key that is used again for other content must not give its search the same identity.
    sent = json.dumps([key, search.to_dict(), payload, results], sort_keys=True)
    uid = None if key is None else hashlib.sha256(sent.encode()).hexdigest()[:8]
    with _results(parts, search, results) as files:
        folder = parts.workdir.sandboxes
        pack = partial(_sandbox, parts, payload=payload, folder=folder, is_loose=is_loose)
        return client.here.register(packed_family(search, file, source or file, pack, files), go_on=go_on, uid=uid)


@changing_router.get(
    "/payloads/{digest}",
    response_model=UploadDocument,
    responses=answers({"digest": hashlib.sha256(b"").hexdigest(), "present": True}),
)
def payload_present(request: Request, parts: Parts, digest: Digest) -> Response:
    """Says whether the service has a payload; if so, it keeps the payload for another day."""
    return json_answer(request, {"digest": digest, "present": parts.uploads.has(digest)})


@changing_router.put(
    "/payloads/{digest}",
    response_model=UploadDocument,
    responses=answers({"digest": hashlib.sha256(b"").hexdigest(), "present": True}, 413),
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "A .tar.gz of the payload's folder: its files, nothing else.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def send_payload(request: Request, parts: Parts, digest: Digest) -> Response:
    """Stores a payload folder, for a search that is registered within a day."""
    announced = request.headers.get("content-length")
    size = int(announced) if announced is not None and announced.isdecimal() else None
    await parts.uploads.receive(digest, size, request.stream(), *upload_quota(caller_of(request), parts.workdir))
    return json_answer(request, {"digest": digest, "present": True})


@changing_router.post(
    "/searches/{identity}/resume", response_model=SearchDocument, responses=answers(EXAMPLES["search"], 404)
)
def resume(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    new_payload: Annotated[bool, Query(description="The files of the payload were corrected and sent again.")] = False,
    payload: PayloadDigest = None,
) -> Response:
    """Continues a paused, stopped or failed search."""
    if not new_payload:
        return json_answer(request, client.resume(identity))

    def resume_one(record: SearchRecord) -> None:
        client.here.resume(record.name, _sandbox(parts, record.search, payload, parts.workdir.sandboxes))

    for_each(client.here.own_family(identity), resume_one)
    return json_answer(request, client.here.document(identity))


@changing_router.post(
    "/searches/{identity}/extend", response_model=SearchDocument, responses=answers(EXAMPLES["search"], 404, 409)
)
def extend(request: Request, client: Client, identity: Identity, extension: Annotated[Extension, Body()]) -> Response:
    """Adds to the budget of a search, once; a search that was over continues."""
    return json_answer(request, client.extend(identity, extension.add, seen=extension.seen))


#: JSON bodies of declared operations whose limits OpenAPI describes; others are derived from the parameters.
_BODIES: dict[str, type[BaseModel]] = {"retry": Retry, "add_point": WantedPoint, "set_parallel": Width}

#: Limits of parameters in the query, by type.
_LIMITS: dict[type, dict[str, int]] = {int: {"ge": 0, "le": 2**31 - 1}, str: {"max_length": 200}, bool: {}}

#: Examples of answers.
_EXAMPLES: tuple[tuple[Any, Any], ...] = (
    (SearchDocument, EXAMPLES["search"]),
    (StatusDocument, EXAMPLES["status"]),
    (list[SearchDocument], [EXAMPLES["search"]]),
    (list[EventDocument], [EXAMPLES["event"]]),
    (ToldDocument, EXAMPLES["told"]),
    (
        RecommendationDocument | None,
        {"number": 17, "point": {"learning_rate": 0.01}, "value": 0.042, "error": 0.003, "reason": ""},
    ),
    (TrialDocument | list[TrialDocument] | None, EXAMPLES["trial"]),
)


def _body_of(operation: Operation) -> type[BaseModel] | None:
    """Returns the JSON body of an operation; None: it has no parameters, or takes them from the address."""
    if operation.method == "GET":
        return None
    if operation.name in _BODIES or not operation.fields():
        return _BODIES.get(operation.name)
    title = operation.name.title().replace("_", "")
    fields: dict[str, Any] = operation.fields()
    return create_model(title, __config__=ConfigDict(extra="forbid"), __doc__=operation.summary, **fields)


def _add_route(operation: Operation) -> None:
    """Adds the route of an operation that `hpo_pilot.operations.operation` declares."""
    of_search, model = "{identity}" in operation.path, _body_of(operation)
    query = operation.fields() if operation.method == "GET" else {}

    def handler(request: Request, client: SearchClient, **given: Any) -> Response:
        fields: dict[str, Any] = {"identity": given["identity"]} if of_search else {}
        fields |= {name: given[name] for name in query}
        if model is not None:
            fields |= {name: getattr(given["body"], name) for name in model.model_fields}
        if operation.is_keyed:
            fields["key"] = key_of(client, given["idempotency_key"])
        return json_answer(request, getattr(client, operation.name)(**fields))

    kinds: dict[str, Any] = {"request": Request, "client": Client}
    if of_search:
        kinds["identity"] = Identity
    if model is not None:
        kinds["body"] = Annotated[model, Body()]
    only = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, only, annotation=kind) for name, kind in kinds.items()]
    for name, (kind, default) in query.items():
        annotation = Annotated[kind, Query(**_LIMITS[kind])]  # type: ignore[valid-type]  # FastAPI reads it at run time
        parameters.append(inspect.Parameter(name, only, default=default, annotation=annotation))
    if operation.is_keyed:
        parameters.append(inspect.Parameter("idempotency_key", only, default=None, annotation=CallKey))
    handler.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # FastAPI reads it
    example = next((example for kind, example in _EXAMPLES if kind == operation.answer), None)
    router = reading_router if operation.method == "GET" else changing_router
    router.add_api_route(
        f"/{operation.path}",
        handler,
        methods=[operation.method],
        name=operation.name if of_search else f"list_{operation.name}",
        description=operation.summary,
        response_model=operation.answer,
        responses=answers(EXAMPLES["added"] if operation.is_keyed else example, *([404] if of_search else [])),
    )


@changing_router.post(
    "/searches/{identity}/ask", response_model=AskedDocument, responses=answers(EXAMPLES["asked"], 404)
)
async def ask(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    asking: Annotated[Asking, Body()],
    idempotency_key: CallKey = None,
) -> Response:
    """Gives a trial of a search without payload to this client; `hpo-pilot ask` waits for longer."""
    key = key_of(client, idempotency_key) or secrets.token_hex(32)
    asked = checked_ask(asking.lease, asking.node, key)
    return json_answer(request, await parts.asking.next(client.here, identity, asked, asking.wait, request))


for _operation in OPERATIONS:
    if _operation.name != "ask":  # its calls wait together
        _add_route(_operation)


def key_of(client: SearchClient, key: str | None) -> str | None:
    """Returns the key of a call as the store keeps it; keys of two users never collide."""
    if key is None:
        return None
    return hashlib.sha256(f"{client.here.user.name}\n{key}".encode("utf-8", "replace")).hexdigest()


def _checked(content: bytes, file: str) -> Search:
    found = examine_content(content, file)
    if found.search is None:
        raise SearchFileError(found.problems)
    return found.search


def _sandbox(
    parts: Context, search: Search, payload: str | None, folder: FilePath, *, is_loose: bool = False
) -> FilePath:
    """Packs the sandbox of a search from the files that the user sent; the runner in it is the service's own.

    Args:
        parts: the parts of the API.
        search: the search.
        payload: digest of the sent archive.
        folder: folder of the sandbox.
        is_loose: the archive may have the payload's folder, and not only the files in it.

    Raises:
        InputError: the files are missing, or a payload may not contain them.
    """
    document = payload_document(search, None)
    if search.payload.files is None:
        return build_sandbox(None, document, folder)
    if payload is None:
        raise ApiError(
            422, "input", "the search has payload.files: send the folder (PUT payloads/{digest}), and name its digest"
        )
    with parts.uploads.unpacked(payload) as files:
        inside = files / FilePath(search.payload.files).name
        is_inside = is_loose and list(files.iterdir()) == [inside] and inside.is_dir()
        return in_worker("build", inside if is_inside else files, document, folder)


@contextmanager
def _results(parts: Context, search: Search, digest: str | None) -> Iterator[dict[str, FilePath]]:
    """Unpacks the result files that a search names, for the length of a block; yields their paths by name."""
    named = {source: str(index) for index, source in enumerate(search.warm_start) if is_result_file(source)}
    if not named:
        yield {}
        return
    if digest is None:
        raise ApiError(
            422, "input", "warm_start names result files: send them (PUT payloads/{digest}), and give the digest"
        )
    with parts.uploads.unpacked(digest, RESULTS_LIMIT) as folder:
        yield {source: folder / name for source, name in named.items()}
