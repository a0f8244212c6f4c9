"""Shared parts of the REST API: errors, uploaded payloads, the context of a call, examples."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path as FilePath
from typing import Annotated, Any, cast

from anyio import CapacityLimiter
from fastapi import Depends, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from hpo_pilot.errors import HpoPilotError, InputError, SearchFileError, TryAgainError
from hpo_pilot.operations.client import SearchClient
from hpo_pilot.operations.here import NotYoursError, User
from hpo_pilot.operations.quotas import quotas_of
from hpo_pilot.panda.sandbox import in_worker
from hpo_pilot.pilot.settings import PilotSettings
from hpo_pilot.report.documents import ProblemDocument, ProgressDocument
from hpo_pilot.server.file_store import FileRefused, Folder
from hpo_pilot.server.tokens import Caller
from hpo_pilot.steering.changes import ChangedMeanwhileError
from hpo_pilot.steering.workdir import WorkDir
from hpo_pilot.store import SearchRecord, Store, StoreAwayError, UnknownSearchError
from hpo_pilot.web.asking import AskCalls
from hpo_pilot.web.figure_worker import FigureWorker
from hpo_pilot.web.live import ChangeWatcher, Snapshot

# --- errors: RFC 9457 documents with our own `code` and all mistakes of a search file ---

MEDIA_TYPE = "application/problem+json"

#: Message if the store does not answer.
STORE_AWAY = "the service's store is out of reach; nothing is lost: try again"

#: Value of the Retry-After header, in seconds.
RETRY_AFTER = "2"

log = logging.getLogger(__name__)


class ProblemAnswer(BaseModel):
    """The answer to every error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:hpo-pilot:problem:not_found",
                    "title": "Not Found",
                    "status": 404,
                    "code": "not_found",
                    "message": "no search 'digit': did you mean digits-mlp?",
                    "problems": [],
                }
            ]
        }
    )

    type: str = Field(description="A name of the kind of error.")
    title: str = Field(description="The same in a few words.")
    status: int = Field(description="The HTTP status.")
    code: str = Field(
        description="input, unauthorized, forbidden, not_found, conflict, too_large, quota (the uploads of one day are "
        "above the user's quota), try_again (the same call may succeed later) or give_up."
    )
    message: str = Field(description="What is wrong, and what to do.")
    problems: list[ProblemDocument] = Field(description="The mistakes of a search file, each with its place.")


class ApiError(Exception):
    """An error of the API itself, with HTTP status and `code`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


#: Titles by RFC 9110, where those of Python 3.13 and of older versions differ.
_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}


def problem_response(status: int, code: str, message: str, problems: list[dict[str, Any]] | None = None) -> Response:
    """Returns an error as an RFC 9457 document."""
    document = {
        "type": f"urn:hpo-pilot:problem:{code}",
        "title": _TITLES.get(status) or HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "message": message,
        "problems": problems or [],
    }
    headers = {}
    if code == "try_again":
        headers["Retry-After"] = RETRY_AFTER
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="hpo-pilot"'
    return Response(json.dumps(document, ensure_ascii=True), status, headers, MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Makes `app` answer every error with an RFC 9457 document."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HpoPilotError, _known_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(Exception, _internal_error)


def _api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return problem_response(error.status, error.code, str(error))


def error_answer(error: HpoPilotError) -> tuple[int, str, str]:
    """Returns status, code and message for an error of ours, and writes to the log what operators should see.

    API and pages share it. The message never contains the store's address; only the log has it.
    """
    if isinstance(error, UnknownSearchError):
        return 404, "not_found", f"no search {error.identity!r}: {error.there}"
    if isinstance(error, NotYoursError):
        return 403, "forbidden", str(error)
    if isinstance(error, InputError):
        return 422, "input", str(error)
    if isinstance(error, ChangedMeanwhileError):
        return 409, "conflict", str(error)
    if isinstance(error, TryAgainError):
        log.warning("%s", error)
        return 503, "try_again", STORE_AWAY if isinstance(error, StoreAwayError) else str(error)
    log.error("%s", error)
    return 500, "give_up", str(error)


def _known_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HpoPilotError)
    problems = [vars(problem) for problem in error.problems] if isinstance(error, SearchFileError) else []
    return problem_response(*error_answer(error), problems)


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
    return problem_response(422, "input", wrong)


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large"}
    answer = problem_response(error.status_code, codes.get(error.status_code, "input"), str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _disconnected(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # the client has disconnected


def _internal_error(request: Request, error: Exception) -> Response:
    log.exception("%s %r", request.method, request.scope["path"], exc_info=error)
    return problem_response(500, "give_up", "internal error; please report it with the service's log")


# --- uploaded payloads ---

DIGEST = re.compile(r"[0-9a-f]{64}")

#: Seconds after which an unused upload is removed; maximum wait in seconds for the next part of an upload.
_KEEP = 24 * 3600.0
_PATIENCE = 60.0

#: Default of the maximum size of a payload's unpacked files; maximum size of the result files that a search names.
UNPACKED_LIMIT = 1000 << 20
RESULTS_LIMIT = 256 << 20  # they are read into memory

#: Maximum total of stored uploads, in units of the largest allowed upload; the oldest are removed first.
_HELD = 10


class Uploads:
    """The uploaded archives of one work folder, named by the SHA-256 of their bytes."""

    def __init__(self, folder: FilePath, limit: int, unpacked_limit: int) -> None:
        """Opens the folder, and creates it if it is missing.

        Args:
            folder: folder of the archives.
            limit: maximum size of an archive, in bytes.
            unpacked_limit: maximum size of its unpacked files, in bytes.

        Raises:
            InputError: the folder cannot be written.
        """
        self._folder = Folder(folder)
        self.limit = limit
        self._unpacked_limit = unpacked_limit
        self._owners: dict[str, str] = {}  # by file; of those that came since the start
        self._coming: Counter[str] = Counter()  # bytes that may still come, by sender
        for left in folder.iterdir():  # left over from a killed process
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)

    def has(self, digest: str) -> bool:
        """Returns whether an archive is stored; if so, it is kept for another day."""
        path = self._folder.find(_name(digest))
        if path is None:
            return False
        path.touch()
        return True

    def used(self, user: str, besides: str | None = None) -> int:
        """Returns the bytes of a user's uploads of one day; `besides`: the digest of one that does not count."""
        mine = (path for path in self._folder if self._owners.get(path.name) == user)
        found = (_age_and_size(path) for path in mine if besides is None or path.name != _name(besides))
        return sum(size for when, size in found if time.time() - when <= _KEEP)

    async def receive(
        self, digest: str | None, size: int | None, parts: AsyncIterator[bytes], user: str, quota_mb: float | None
    ) -> str:
        """Receives and stores an archive; returns the SHA-256 of its bytes.

        Args:
            digest: the SHA-256 that the client announces; None: not announced.
            size: size in bytes that the client announces; None: not announced.
            parts: its bytes.
            user: its sender.
            quota_mb: megabytes that the sender's uploads may take; None: not limited.

        Raises:
            ApiError: it is too large, the sender's uploads would be, or its bytes do not match the digest.
            TryAgainError: there is no room for it, or the client sends nothing for too long.
        """
        if size is not None and size > self.limit:
            raise self._too_large()
        used = self.used(user, digest) + self._coming[user]  # the same archive, sent again, counts once
        most = self.limit if quota_mb is None else min(self.limit, int(quota_mb * 1e6) - used)
        beyond = ApiError(
            413,
            "quota",
            f"{user}'s uploads of one day take {used / 1e6:.1f} MB, and with this payload more than the "
            f"{quota_mb or 0:g} MB that this service allows: move data out of the payload and name it under "
            "payload.inputs, or try again tomorrow",
        )
        if most < (size or 1):
            raise beyond
        most = size or most
        self._make_room(most)
        self._coming[user] += most
        content = hashlib.sha256()
        try:
            with self._folder.writing() as upload:
                async for part in _in_time(parts):
                    content.update(part)
                    upload.write(part, most)
                found = content.hexdigest()
                if found != (digest or found):
                    raise ApiError(422, "input", f"the payload does not match its digest {digest}: send it again")
                await asyncio.to_thread(upload.keep, _name(found))
                self._owners.setdefault(_name(found), user)
            return found
        except FileRefused:
            raise (self._too_large() if size or most == self.limit else beyond) from None
        except OSError as error:
            raise TryAgainError(f"the service cannot store the payload: {error.strerror}") from error
        finally:
            self._coming[user] -= most

    @contextmanager
    def unpacked(self, digest: str, most: int | None = None) -> Iterator[FilePath]:
        """Unpacks an archive into a temporary folder, which is removed at the end of the ``with`` block.

        Args:
            digest: SHA-256 of its bytes.
            most: maximum size of its unpacked files, in bytes; None: that of payloads.

        Raises:
            InputError: the archive is not stored, or is not safe to unpack.
            TryAgainError: there is no room for it.
        """
        archive = self._folder.find(_name(digest))
        if archive is None:
            raise InputError(f"the service has no payload {digest}, or has removed it: send it again")
        # Half of the free space: the sandbox made from these files needs space, and so do other calls.
        room = min(most or self._unpacked_limit, self._unpacked_limit, shutil.disk_usage(archive.parent).free // 2)
        with tempfile.TemporaryDirectory(dir=self._folder.path) as scratch:
            yield in_worker("unpack", archive, FilePath(scratch, "payload"), room)

    def _make_room(self, size: int) -> None:
        now, kept = time.time(), size
        for when, held, path in sorted((*_age_and_size(path), path) for path in self._folder)[::-1]:
            kept += held
            if now - when > _KEEP or kept > _HELD * self.limit:
                path.unlink(missing_ok=True)  # a client that still needs it sends it again
        free = shutil.disk_usage(self._folder.path).free
        if free - size < PilotSettings.min_free_mb * 1_000_000:
            raise TryAgainError("the service's disk is nearly full: tell its operator, or try again later")

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            "too_large",
            f"the payload is above {self.limit / 1e6:.0f} MB: move data out of it and name it under payload.inputs",
        )


def _age_and_size(path: FilePath) -> tuple[float, int]:
    try:
        status = path.stat()
    except FileNotFoundError:  # another call has just removed it
        return 0.0, 0
    return status.st_mtime, status.st_size


def _name(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise ApiError(422, "input", "a payload is named by its SHA-256, 64 hexadecimal digits")
    return f"{digest}.tar.gz"


async def _in_time(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while True:
        try:
            async with asyncio.timeout(_PATIENCE):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise TryAgainError(f"the payload stopped arriving for {_PATIENCE:.0f} s: send it again") from None
        yield part


# --- context of a call ---


@dataclass(frozen=True)
class Context:
    """The parts of a running API.

    Attributes:
        store: store of the searches.
        workdir: work folder for sandboxes.
        uploads: uploaded payloads.
        news: tells waiting calls about changes of searches.
        asking: the calls that wait for a trial.
        worker: draws slow figures and reports, one at a time.
        worker_threads: limit of the threads that wait for `worker`; pages and calls must not wait with them.
    """

    store: Store
    workdir: WorkDir
    uploads: Uploads
    news: ChangeWatcher[bytes]
    asking: AskCalls = field(default_factory=AskCalls)
    worker: FigureWorker = field(default_factory=FigureWorker)
    worker_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))

    def report(self, record: SearchRecord) -> str:
        """Returns the HTML report of a search; see `FigureWorker.report`."""
        return self.worker.report(self.store, record.id, self.workdir.place())


def context_of(request: Request) -> Context:
    """Returns the context of the API that answers this call."""
    return cast(Context, request.app.state.context)


def caller_of(request: Request) -> Caller:
    """Returns the caller; the guard has verified the token."""
    return cast(Caller, request.state.caller)


def user_of(caller: Caller) -> User:
    """Returns the user of a token, a session or a proxy's header."""
    return User.named(caller.name, changes_all=caller.is_operator)


def upload_quota(caller: Caller, workdir: WorkDir) -> tuple[str, float | None]:
    """Returns the user of a caller, and the megabytes that the user's uploads may take; None: not limited."""
    user = user_of(caller)
    return user.name, None if user.changes_all else quotas_of(workdir, user.name).get("uploads_mb")


def client_for(caller: Caller, workdir: WorkDir, store: Store) -> SearchClient:
    """Returns a client of an opened store, with the caller's rights."""
    return SearchClient.local(workdir.root, user=user_of(caller), opened=store)


def client_of(request: Request) -> SearchClient:
    """Returns a client of the store, with the rights of the call's user."""
    context = context_of(request)
    return client_for(caller_of(request), context.workdir, context.store)


Client = Annotated[SearchClient, Depends(client_of)]
Parts = Annotated[Context, Depends(context_of)]
Identity = Annotated[str, Path(description="The search's name or number.", max_length=100, examples=["digits-mlp"])]


def answers(example: Any = None, *more: int, content: Any = None) -> dict[int | str, dict[str, Any]]:
    """Returns the OpenAPI description of a call's answers: an example of success, and the possible errors.

    Args:
        example: example of an answer with status 200; None: no example.
        more: HTTP statuses of further errors, in addition to the errors of every call.
        content: content of an answer with status 200 that is not JSON, by its media type.
    """
    reasons = {
        401: "The token is missing or invalid.",
        403: "The token is a pilot's, or the search belongs to another user.",
        404: "The search does not exist.",
        409: "The search has changed meanwhile: look at it, then repeat the call.",
        413: "The body is too large.",
        422: "The input is wrong; the message says where and why.",
        426: "The client speaks another version of this API: upgrade the older one.",
        503: "The same call may succeed later.",
    }
    wrong = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": reasons[status], "content": wrong}
        for status in sorted({401, 403, 422, 426, 503, *more})
    }
    if example is not None or content is not None:
        found[200] = {"content": content or {"application/json": {"example": example}}}
    return found


def progress_watcher(look: Callable[[str], ProgressDocument]) -> ChangeWatcher[bytes]:
    """Returns a watcher of progress: `ProgressDocument` in JSON, with its ETag; `look` reads it from the store."""

    def now(identity: str) -> Snapshot[bytes]:
        content = json.dumps(look(identity), allow_nan=False).encode()
        return Snapshot(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    return ChangeWatcher(now)


#: Examples in the OpenAPI description, by the name of the document.
EXAMPLES: dict[str, Any] = json.loads(FilePath(__file__).with_name("examples.json").read_text(encoding="utf-8"))
