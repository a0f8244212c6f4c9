"""A search that is started from the browser: a page with the search file, its check, and the packed payload."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from urllib.parse import quote

from anyio import to_thread
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpo_pilot.errors import InputError, Problem, SearchFileError, TryAgainError
from hpo_pilot.files import MAX_SEARCH_FILE_BYTES
from hpo_pilot.operations.quotas import usage
from hpo_pilot.report.formatting import as_yaml, quotas_text
from hpo_pilot.search.sections import is_result_file
from hpo_pilot.steering.search_file import Examination, examine_content
from hpo_pilot.store.lease import lease_holder
from hpo_pilot.web.api import key_of, register_sent
from hpo_pilot.web.api_context import EXAMPLES, ApiError, upload_quota
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
    parts, session, digest = context_of(request), session_of(request), None
    async with request.form(max_files=1, max_fields=10, max_part_size=MAX_SEARCH_FILE_BYTES) as given:
        check_form(parts.sessions, session, given.get("form"))
        fields = {name: str(given.get(name, "")).replace("\r\n", "\n") for name in ("text", "key", "do")}
        archive = given.get("archive")
        try:
            if isinstance(archive, UploadFile) and archive.size:
                whose, digest = upload_quota(session.caller, parts.api.workdir), None
                if archive.size <= parts.api.uploads.limit:  # else it is refused below
                    digest = await to_thread.run_sync(_digest, archive)
                    await archive.seek(0)
                digest = await parts.api.uploads.receive(digest, archive.size, _blocks(archive), *whose)
        except (ApiError, TryAgainError) as error:
            return await to_thread.run_sync(_page, request, {**fields, "problem": str(error)}, 422)
    return await to_thread.run_sync(_answer, request, fields, digest, limiter=parts.action_threads)


def _digest(archive: UploadFile) -> str:
    return hashlib.file_digest(archive.file, "sha256").hexdigest()  # type: ignore[arg-type]  # it has `readinto`


async def _blocks(archive: UploadFile) -> AsyncIterator[bytes]:
    while block := await archive.read(1 << 20):
        yield block


def _answer(request: Request, fields: dict[str, str], digest: str | None) -> Response:
    client, values = client_of(request), dict[str, object](fields)
    try:
        found = client.here.examined(examine_content(fields["text"].encode("utf-8", "replace"), _FILE), None)
        values["notes"] = found.notes
        if found.search is None:
            raise SearchFileError(found.problems)
        if fields["do"] != "submit":
            return _page(request, {**values, "is_valid": True})
        if missing := _missing(found, digest):
            raise SearchFileError(missing)
        api, key = context_of(request).api, key_of(client, fields["key"])
        document = register_sent(client, api, found.search, _FILE, payload=digest, key=key, is_loose=True)
        name = quote(document["name"], safe="")
        return RedirectResponse(f"/?family={name}" if "segments" in document else f"/searches/{name}?done=submit", 303)
    except SearchFileError as error:
        values["problems"] = error.problems
    except (ApiError, InputError, TryAgainError) as error:
        values["problem"] = place_of(request).completed(str(error))
    return _page(request, values, 422)


def _missing(found: Examination, digest: str | None) -> list[Problem]:
    """Returns the files that a search names and the browser has not sent, or cannot send."""
    local, remedy = "is a file on your machine", "submit with `hpo-pilot submit`"
    wrong = [replace(at, message=local, suggestion=remedy) for name, at in found.earlier if is_result_file(name)]
    if found.named_files is not None and found.named_files.files is not None and digest is None:
        remedy = "choose the packed folder below the search file"
        wrong.append(replace(found.named_files.files_place, message="its files were not sent", suggestion=remedy))
    return wrong


def _page(request: Request, values: Mapping[str, object], status: int = 200) -> Response:
    parts = context_of(request)
    steers = lease_holder(parts.library.store.engine)
    more = {"steered": steers is not None and steers.searches is None, "most": parts.api.uploads.limit}
    user, api = client_of(request).here.user, parts.api
    quotas = {} if user.changes_all else usage(api.store, api.workdir, user.name, api.uploads.used(user.name))
    nothing = {"problem": "", "problems": [], "notes": [], "is_valid": False, "quotas": quotas_text(quotas)}
    return page(request, "new.j2", {**nothing, **more, **values}, status)
