"""Kept outputs of a trial on its page: pictures, texts, HTML in a sandboxed frame, and downloads.

A payload wrote these files, and other users look at them: nothing in them may act in the name of who looks. Pictures
are only loaded as pictures, texts are escaped, and HTML is in a frame with an origin of its own and without network.
Everything else, and each file that is opened by its address, is a download.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hpo_pilot.errors import GiveUpError, TryAgainError
from hpo_pilot.panda.rucio import is_did
from hpo_pilot.server.file_store import is_safe
from hpo_pilot.steering.results import fetched_outputs, kept_outputs
from hpo_pilot.store import EMBEDDED
from hpo_pilot.transformation.sandbox import UnsafeArchive, bounded, opened
from hpo_pilot.web.api_context import user_of
from hpo_pilot.web.pages import context_of, page, place_of, session_of, view_of
from hpo_pilot.web.search_views import SearchView

#: Most unpacked bytes of an archive; most bytes of a file that is sent, and of a text that is shown; most files shown.
_ARCHIVE, _FILE, _TEXT, _SHOWN = 256 << 20, 32 << 20, 100_000, 60

_IMAGES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
_IMAGES["svg"] = "image/svg+xml"
_TEXTS = ("txt", "log", "json", "jsonl", "csv", "tsv", "yaml", "yml", "toml", "md")
_KINDS = {**dict.fromkeys(_IMAGES, "image"), "html": "html", **dict.fromkeys(_TEXTS, "text")}

_NO_NETWORK = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_PLAIN_POLICY = f"sandbox; {_NO_NETWORK}; frame-ancestors 'none'"
_FRAME_POLICY = f"sandbox; {_NO_NETWORK}; frame-ancestors 'self'"
#: Scripts draw, for example plotly's. Without `allow-same-origin` they have neither cookies nor storage, but no policy
#: forbids them WebRTC (Chromium 156): so they run only for the owner of the search, who wrote them.
_SCRIPTS_POLICY = (
    f"sandbox allow-scripts; script-src 'unsafe-inline' 'unsafe-eval'; {_NO_NETWORK}; frame-ancestors 'self'"
)


@dataclass(frozen=True)
class KeptFile:
    """A kept file of a trial.

    Attributes:
        fold: the fold that wrote it.
        name: its name in the archive, with folders.
        size: bytes.
        kind: how it is shown: image, html or text; empty: only as a download, if it is not too large.
        text: the beginning of a text.
    """

    fold: int
    name: str
    size: int
    kind: str
    text: str = ""


async def trial_files(request: Request) -> Response:
    """Shows the kept files of a trial; the trial's page takes its part `kept`."""
    return await to_thread.run_sync(_trial_files, request, limiter=context_of(request).output_threads)


async def trial_file(request: Request) -> Response:
    """Sends one kept file of a trial."""
    return await to_thread.run_sync(_trial_file, request, limiter=context_of(request).output_threads)


def _trial_files(request: Request) -> Response:
    view, number, problem = view_of(request), request.path_params["number"], ""
    files: list[KeptFile] = []
    try:
        with _archives(request, view, number) as archives:
            for fold, (archive, folder) in sorted(archives.items()):
                files += _listed(archive, fold, folder)
    except (UnsafeArchive, GiveUpError, TryAgainError, OSError) as error:
        problem = place_of(request).completed(getattr(error, "strerror", None) or str(error))
    shown = sorted((file for file in files if file.kind), key=lambda file: ("image", "html", "text").index(file.kind))
    values = {
        "view": view,
        "number": number,
        "sent_size": _FILE,
        "text_size": _TEXT,
        "shown": shown[:_SHOWN],
        "others": [*shown[_SHOWN:], *(file for file in files if not file.kind)],
        "problem": problem,
        "sandbox": "allow-scripts" if _runs_scripts(request, view) else "",
        "several": len({file.fold for file in files}) > 1,
    }
    return page(request, "files.j2", values)


def _trial_file(request: Request) -> Response:
    view, number, content = view_of(request), request.path_params["number"], None
    fold, name = request.query_params.get("fold", ""), request.query_params.get("name", "")
    try:
        with _archives(request, view, number, fold) as archives:
            for place in archives.values():
                content = _content(*place, name)
    except (UnsafeArchive, OSError) as error:
        raise HTTPException(422, f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if content is None:
        raise HTTPException(404, f"trial {number} has no such file, or it has more than {_FILE >> 20} MB")
    kind = _ending(name)
    in_frame = kind == "html" and request.headers.get("sec-fetch-dest") == "iframe"
    file_name = name.rpartition("/")[2]
    frame_policy = _SCRIPTS_POLICY if _runs_scripts(request, view) else _FRAME_POLICY
    headers = {
        "Content-Disposition": "inline" if in_frame else f"attachment; filename*=UTF-8''{quote(file_name, safe='')}",
        "Content-Security-Policy": frame_policy if in_frame else _PLAIN_POLICY,
        "X-Frame-Options": "SAMEORIGIN" if in_frame else "DENY",
    }
    plain = "text/html; charset=utf-8" if in_frame else "application/octet-stream"
    return Response(content, 200, headers, _IMAGES.get(kind, plain))


def _runs_scripts(request: Request, view: SearchView) -> bool:
    """Returns whether the user owns the search; an operator is not enough."""
    return user_of(session_of(request).caller).name == view.record.owner


@contextlib.contextmanager
def _archives(
    request: Request, view: SearchView, number: int, only: str | None = None
) -> Iterator[dict[int, tuple[Path, str]]]:
    """Yields the archives of a trial's kept files by fold, each with the folder of the trial in it; `only`: of a fold.

    Raises:
        InputError: it has no kept files.
        GiveUpError: they are in Rucio, or the server no longer has them.
        TryAgainError: the server does not answer.
    """
    parts, record = context_of(request), view.record
    names = kept_outputs(parts.library.store, record, str(number))[1]
    names = {fold: name for fold, name in names.items() if only in (None, str(fold))}
    if any(is_did(name) for name in names.values()):
        raise GiveUpError(f"they are in Rucio: `hpo-pilot fetch {number} {record.name}` downloads them")
    here = {}
    for fold, name in names.items():
        archive, _, folder = name.partition("/")
        path = parts.api.workdir.panda_files / "storage" / archive
        # The embedded server's own file: it is there also while no server runs.
        if record.server in (None, EMBEDDED) and is_safe(archive) and path.is_file():
            here[fold] = (path, folder)
    others = {fold: name for fold, name in names.items() if fold not in here}
    if not others:
        yield here
        return
    with fetched_outputs(parts.api.workdir, others, server=record.server, start=False) as fetched:
        yield {**here, **{fold: (path, "") for fold, path in fetched.items()}}


def _members(archive: Path, folder: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo, str]]:
    """Yields the files of an archive, or of one folder in it, with their names there."""
    within = f"{folder}/" if folder else ""
    with opened(str(archive), _ARCHIVE) as packed:
        for member in bounded(packed, _ARCHIVE):
            if member.isfile() and member.name.startswith(within):
                yield packed, member, member.name.removeprefix(within)


def _listed(archive: Path, fold: int, folder: str) -> Iterator[KeptFile]:
    for packed, member, name in _members(archive, folder):
        kind, text = _KINDS.get(_ending(name), ""), ""
        kind = kind if kind == "text" or member.size <= _FILE else ""
        if kind == "text" and (content := packed.extractfile(member)) is not None:
            text = content.read(_TEXT).decode("utf-8", "replace")
            if _ending(name) == "json" and member.size <= _TEXT:
                with contextlib.suppress(ValueError, RecursionError):
                    text = json.dumps(json.loads(text), indent=1, ensure_ascii=False)
        yield KeptFile(fold, name, member.size, kind, text)


def _content(archive: Path, folder: str, wanted: str) -> bytes | None:
    for packed, member, name in _members(archive, folder):
        if name == wanted and member.size <= _FILE and (content := packed.extractfile(member)) is not None:
            return content.read()
    return None


def _ending(name: str) -> str:
    ending = name.rpartition(".")[2].lower()
    return "html" if ending == "htm" else ending
