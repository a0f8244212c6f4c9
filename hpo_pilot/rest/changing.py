"""Calls that register searches and change them."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from starlette.responses import Response
from typing_extensions import TypedDict

from hpo_pilot.client.documents import ExaminationDocument, ProblemDocument, SearchDocument
from hpo_pilot.client.local_client import LocalClient
from hpo_pilot.config.file_content import MAX_BYTES
from hpo_pilot.config.payload_files import python_here
from hpo_pilot.config.problem import SearchFileError
from hpo_pilot.config.search_file import examine_content
from hpo_pilot.panda.sandbox import build_sandbox
from hpo_pilot.rest import examples
from hpo_pilot.rest.answer import json_answer
from hpo_pilot.rest.context import Client, Context, Identity, Parts, answers
from hpo_pilot.rest.problem import ApiError
from hpo_pilot.rest.uploads import DIGEST
from hpo_pilot.search import Search
from hpo_pilot.search.limits import MOST_MACHINE_HOURS, MOST_PARALLEL
from hpo_pilot.search.point import Scalar
from hpo_pilot.search.warm_start import is_result_file
from hpo_pilot.service.registration import packed_family, payload_document
from hpo_pilot.service.rehearsal import first_task_of
from hpo_pilot.service.warm_start import earlier_results

router = APIRouter(tags=["changing"])

_YAML: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A search file.",
        "content": {"application/yaml": {"schema": {"type": "string"}, "example": examples.SEARCH_FILE}},
    }
}


class NamedResultsDocument(TypedDict):
    """A file with the results of an earlier search, as `warm_start` names it, and where."""

    source: str
    place: ProblemDocument


class NamedFilesDocument(TypedDict):
    """What a search file names beside itself, and where; for whoever has these files to look at them."""

    files: str | None
    command: str
    files_place: ProblemDocument
    command_place: ProblemDocument
    results: list[NamedResultsDocument]


class SentExaminationDocument(ExaminationDocument):
    """What was found in a search file; `named_files` is null where its payload's section is wrong."""

    named_files: NamedFilesDocument | None


class PayloadDocument(TypedDict):
    """A payload that was sent, or is to be."""

    digest: str
    present: bool


# Our own words on numbers that cannot be come with the budget, so they are only described here.
_Added = Annotated[int | float, Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": MOST_MACHINE_HOURS})]


class Extension(BaseModel):
    """What is added to a budget."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"add": {"trials": 50}, "seen": {"trials": 64}}]}
    )

    add: dict[str, _Added] = Field(description="What to add, of trials, hours, gpu_hours, core_hours, failures.")
    seen: dict[str, int | float | None] | None = Field(
        None, description="The budget that this is added to: the same call twice then adds once."
    )


class Retry(BaseModel):
    """Failed trials that are tried again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"trials": [3, 7]}]})

    trials: list[Annotated[StrictInt, Field(ge=1, le=2**31 - 1)]] | None = Field(
        None, max_length=100_000, description="Their numbers. null: all that failed and were not tried again yet."
    )


class WantedPoint(BaseModel):
    """A point to try."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"point": {"learning_rate": 0.01}}]})

    point: dict[str, Scalar] = Field(description="The parameters that are active at the point, by name.")


class Width(BaseModel):
    """How wide a search is."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"parallel": 16}]})

    parallel: StrictInt = Field(ge=1, le=MOST_PARALLEL, description="How many trials are out at once.")


async def _search_file(request: Request) -> bytes:
    content = await request.body()
    if len(content) > MAX_BYTES:
        raise ApiError(413, "too_large", f"a search file is at most {MAX_BYTES} bytes")
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
    str | None,
    Header(min_length=8, max_length=200, description="The same key again: the same call, done once."),
]
Digest = Annotated[str, Path(pattern=f"^{DIGEST.pattern}$", description="SHA-256 of the archive, hexadecimal.")]


@router.post(
    "/examinations",
    response_model=SentExaminationDocument,
    responses=answers(examples.EXAMINATION, 413),
    openapi_extra=_YAML,
)
def examine(request: Request, client: Client, content: SearchFile, file: FileName = "search.yaml") -> Response:
    """Checks a search file and registers nothing. Mistakes are in the answer, each with its place."""
    found = client.examined(examine_content(content, file), None)
    named = found.named_files
    return json_answer(
        request,
        {
            "valid": found.search is not None,
            "problems": [vars(problem) for problem in found.problems],
            "notes": [vars(note) for note in found.notes],
            "search": None if found.search is None else found.search.to_dict(),
            "python": None if found.search is None else python_here(found.search),
            "named_files": None
            if named is None
            else {
                "files": named.files,
                "command": named.command,
                "files_place": vars(named.files_place),
                "command_place": vars(named.command_place),
                "results": [
                    {"source": source, "place": vars(place)}
                    for source, place in found.earlier
                    if is_result_file(source)
                ],
            },
        },
    )


@router.post("/rehearsals", responses=answers({"taskName": "user.alice.…"}, 413), openapi_extra=_YAML)
def rehearse(
    request: Request,
    parts: Parts,
    content: SearchFile,
    file: FileName = "search.yaml",
    payload: PayloadDigest = None,
    results: ResultsDigest = None,
) -> Response:
    """The parameters of the first task of a search, as PanDA would get them; registers and submits nothing."""
    search = _checked(content, file)
    with tempfile.TemporaryDirectory() as folder, _results(parts, search, results) as files:
        sandbox = _sandbox(parts, search, payload, FilePath(folder))
        return json_answer(request, first_task_of(search, sandbox, earlier=earlier_results(parts.store, search, files)))


@router.post(
    "/searches",
    status_code=201,
    response_model=SearchDocument,
    responses={**answers(None, 413), 201: {"content": {"application/json": {"example": examples.SEARCH}}}},
    openapi_extra=_YAML,
)
def register(
    request: Request,
    client: Client,
    parts: Parts,
    content: SearchFile,
    file: FileName = "search.yaml",
    source: Annotated[
        str | None, Query(max_length=4096, description="Where the file is on your machine; for messages.")
    ] = None,
    payload: PayloadDigest = None,
    results: ResultsDigest = None,
    go_on: Annotated[bool, Query(description="Go on with the search where it is registered already.")] = False,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=8, max_length=200, description="The same key again: the same search, registered once."),
    ] = None,
) -> Response:
    """Registers a search for the service to run. Its payload's folder is sent before: PUT payloads/{digest}."""
    where = source or file
    if not (file.isprintable() and where.isprintable()):
        raise ApiError(422, "input", "file and source are printable text")
    search = _checked(content, file)
    key = _key_of(client, idempotency_key)
    uid = None if key is None else key[:8]
    with _results(parts, search, results) as files:
        family = packed_family(
            search, file, where, lambda one: _sandbox(parts, one, payload, parts.workdir.sandboxes), files
        )
        registered = client.register(family, go_on=go_on, uid=uid)
    return json_answer(request, registered, 201)


@router.get(
    "/payloads/{digest}",
    response_model=PayloadDocument,
    responses=answers({"digest": hashlib.sha256(b"").hexdigest(), "present": True}),
)
def payload_present(request: Request, parts: Parts, digest: Digest) -> Response:
    """Whether a payload need not be sent again; it then stays for another day."""
    return json_answer(request, {"digest": digest, "present": parts.uploads.has(digest)})


@router.put(
    "/payloads/{digest}",
    response_model=PayloadDocument,
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
    """Takes a payload's folder, to register a search with it within a day."""
    announced = request.headers.get("content-length")
    size = int(announced) if announced is not None and announced.isdecimal() else None
    await parts.uploads.receive(digest, size, request.stream())
    return json_answer(request, {"digest": digest, "present": True})


@router.post("/searches/{identity}/pause", response_model=SearchDocument, responses=answers(examples.SEARCH, 404))
def pause(request: Request, client: Client, identity: Identity) -> Response:
    """No new trials from now on; those that are out end as they end."""
    return json_answer(request, client.pause(identity))


@router.post("/searches/{identity}/resume", response_model=SearchDocument, responses=answers(examples.SEARCH, 404))
def resume(
    request: Request,
    client: Client,
    parts: Parts,
    identity: Identity,
    new_payload: Annotated[bool, Query(description="The payload's files were mended; they were sent anew.")] = False,
    payload: PayloadDigest = None,
) -> Response:
    """Lets a paused, stopped or failed search go on."""
    if not new_payload:
        return json_answer(request, client.resume_with(identity, None))
    for record in client.own_family(identity):
        client.resume_with(record.name, _sandbox(parts, record.search, payload, parts.workdir.sandboxes))
    return json_answer(request, client.document(identity))


@router.post("/searches/{identity}/stop", response_model=SearchDocument, responses=answers(examples.SEARCH, 404))
def stop(request: Request, client: Client, identity: Identity) -> Response:
    """Has the search's jobs killed and ends it; its results stay."""
    return json_answer(request, client.stop(identity))


@router.post("/searches/{identity}/extend", response_model=SearchDocument, responses=answers(examples.SEARCH, 404, 409))
def extend(request: Request, client: Client, identity: Identity, extension: Annotated[Extension, Body()]) -> Response:
    """Adds to the search's budget; one that was over goes on."""
    return json_answer(request, client.extend(identity, extension.add, seen=extension.seen))


@router.post("/searches/{identity}/retry", response_model=SearchDocument, responses=answers(examples.ADDED, 404))
def retry(
    request: Request,
    client: Client,
    identity: Identity,
    again: Annotated[Retry, Body()],
    idempotency_key: CallKey = None,
) -> Response:
    """Tries failed trials' points again, ahead of what the optimizer proposes; the budget grows by one for each."""
    key = _key_of(client, idempotency_key)
    return json_answer(request, client.retry(identity, again.trials, key=key))


@router.post("/searches/{identity}/points", response_model=SearchDocument, responses=answers(examples.ADDED, 404))
def add_point(
    request: Request,
    client: Client,
    identity: Identity,
    wanted: Annotated[WantedPoint, Body()],
    idempotency_key: CallKey = None,
) -> Response:
    """Tries a point, ahead of what the optimizer proposes; the budget grows by one."""
    key = _key_of(client, idempotency_key)
    return json_answer(request, client.add_point(identity, wanted.point, key=key))


@router.post("/searches/{identity}/parallel", response_model=SearchDocument, responses=answers(examples.SEARCH, 404))
def set_parallel(request: Request, client: Client, identity: Identity, width: Annotated[Width, Body()]) -> Response:
    """Changes how many trials are out at once, from now on."""
    return json_answer(request, client.set_parallel(identity, width.parallel))


def _key_of(client: LocalClient, key: str | None) -> str | None:
    """A call's key as the store keeps it: two users' keys are never the same."""
    if key is None:
        return None
    return hashlib.sha256(f"{client.user.name}\n{key}".encode("utf-8", "replace")).hexdigest()


def _checked(content: bytes, file: str) -> Search:
    found = examine_content(content, file)
    if found.search is None:
        raise SearchFileError(found.problems)
    return found.search


def _sandbox(parts: Context, search: Search, payload: str | None, folder: FilePath) -> FilePath:
    """The packed payload of a search, made of the files that were sent: runner and all are ours.

    Raises:
        InputError: the files are missing, or not what a payload may have.
    """
    with _files(parts, search, payload) as files:
        return build_sandbox(files, payload_document(search, None), folder)


@contextmanager
def _files(parts: Context, search: Search, payload: str | None) -> Iterator[FilePath | None]:
    if search.payload.files is None:
        yield None
        return
    if payload is None:
        raise ApiError(
            422, "input", "the search has payload.files: send the folder (PUT payloads/{digest}), and name its digest"
        )
    with parts.uploads.unpacked(payload) as folder:
        yield folder


@contextmanager
def _results(parts: Context, search: Search, digest: str | None) -> Iterator[dict[str, FilePath]]:
    """Where the result files are that a search names, for the length of a block."""
    named = {source: str(index) for index, source in enumerate(search.warm_start) if is_result_file(source)}
    if not named:
        yield {}
        return
    if digest is None:
        raise ApiError(
            422, "input", "warm_start names result files: send them (PUT payloads/{digest}), and give the digest"
        )
    with parts.uploads.unpacked(digest) as folder:
        yield {source: folder / name for source, name in named.items()}
