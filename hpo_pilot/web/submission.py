"""A search that is started from the browser: a page with the search file, its check, and the packed payload."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast
from urllib.parse import quote

from anyio import to_thread
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpo_pilot.errors import InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES
from hpo_pilot.report.formatting import as_yaml
from hpo_pilot.search import Search
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.steering.search_file import examine_content
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.web.api import key_of, register_sent
from hpo_pilot.web.api_context import EXAMPLES, ApiError
from hpo_pilot.web.pages import client_of, context_of, page, place_of, session_of
from hpo_pilot.web.sessions import check_form

_FILE = "search.yaml"


def show_new(request: Request) -> Response:
    """Shows the page for a new search, with an example or, with `like`, with the definition of another search."""
    like = request.query_params.get("like", "")
    text = as_yaml(context_of(request).library.view(like).search.shown()) if like else EXAMPLES["search_file"]
    return _page(request, {"text": text, "key": secrets.token_hex(8)})


async def submit_new(request: Request) -> Response:
    """Checks the search file of a sent form; with the button `submit` also registers its search."""
    parts, session = context_of(request), session_of(request)
    assert session is not None  # the guard has made sure of it
    async with request.form(max_files=1, max_fields=10, max_part_size=MAX_SEARCH_FILE_BYTES) as given:
        check_form(parts.sessions, session, given.get("form"))
        problem, digest, archive = "", None, given.get("archive")
        if isinstance(archive, UploadFile) and archive.size:
            digest = await to_thread.run_sync(
                lambda: hashlib.file_digest(cast(Any, archive.file), "sha256").hexdigest()
            )
            await archive.seek(0)
            try:
                await parts.api.uploads.receive(digest, archive.size, _blocks(archive))
            except (ApiError, InputError, TryAgainError) as error:
                problem = str(error)
        return await to_thread.run_sync(partial(_answer, request, given, digest, problem), limiter=parts.action_threads)


async def _blocks(archive: UploadFile) -> AsyncIterator[bytes]:
    while block := await archive.read(1 << 20):
        yield block


def _answer(request: Request, given: FormData, digest: str | None, problem: str) -> Response:
    client, text, key = client_of(request), str(given.get("text", "")).replace("\r\n", "\n"), str(given.get("key", ""))
    found = client.here.examined(examine_content(text.encode("utf-8", "replace"), _FILE), None)
    problems = list(found.problems)
    if found.search is not None and not problems and not problem and given.get("do") == "submit":
        problems = _missing(found.search, digest)
        try:
            if not problems:
                uid = key_of(client, key)
                document = register_sent(
                    client,
                    context_of(request).api,
                    found.search,
                    _FILE,
                    payload=digest,
                    uid=uid and uid[:8],
                    is_loose=True,
                )
                name = quote(document["name"], safe="")
                is_family = "segments" in document
                return RedirectResponse(f"/?family={name}" if is_family else f"/searches/{name}?done=submit", 303)
        except SearchFileError as error:
            problems = list(error.problems)
        except (ApiError, InputError, TryAgainError) as error:
            problem = place_of(request).completed(str(error))
    values = {
        "text": text,
        "key": key,
        "problem": problem,
        "problems": problems,
        "notes": found.notes,
        "is_valid": not problems,
    }
    return _page(request, values, 422 if problems or problem else 200)


def _missing(search: Search, digest: str | None) -> list[Problem]:
    """Returns what a browser has not sent, or cannot send."""
    files = [source for source in search.warm_start if is_result_file(source)]
    wrong = [("warm_start", f"{files[0]} is a file on your machine", "submit with `hpo-pilot submit`")] if files else []
    if search.payload.files is not None and digest is None:
        wrong.append(("payload.files", "its files are missing", "choose the packed folder below the search file"))
    return [Problem(_FILE, None, None, *each) for each in wrong]


def _page(request: Request, values: dict[str, object], status: int = 200) -> Response:
    parts = context_of(request)
    steers = lease_holder(parts.library.store.engine)
    more = {"steered": steers is not None and steers.searches is None, "most": parts.api.uploads.limit}
    nothing = {"problem": "", "problems": [], "notes": [], "is_valid": False}
    return page(request, "new.j2", {**nothing, **more, **values}, status)
