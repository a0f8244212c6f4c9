"""The manual, as pages: what the package brings, so that it can be read where there is no network."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpo_pilot.errors import InputError
from hpo_pilot.manual import PAGES, Page, page_named
from hpo_pilot.manual.rendering import as_html
from hpo_pilot.monitor.context import page
from hpo_pilot.monitor.serving import packed_answer

#: Seconds for which a browser keeps a picture without asking: a day, for its address does not change with it.
_DAY = 86_400

_TYPES = {"svg": "image/svg+xml", "png": "image/png"}

#: A name of a picture: no folder, no hidden file.
_NAME = re.compile(r"[a-zA-Z0-9][\w-]*\.(svg|png)", re.ASCII)

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)

#: Shorter lists of a page's headings are not worth showing.
_HEADINGS = 2


@dataclass(frozen=True)
class _Chapter:
    """A page of the manual, ready to be shown.

    Attributes:
        html: its text.
        headings: of its parts, each its anchor and its words.
    """

    html: Markup
    headings: tuple[tuple[str, Markup], ...]


def contents(request: Request) -> Response:
    """The list of the manual's pages."""
    return page(request, "help.j2", {"groups": _groups()})


def no_folder(_request: Request) -> Response:
    """`/help/` is the list too, at the address that its links count from."""
    return RedirectResponse("/help", 308)


def chapter(request: Request) -> Response:
    """A page of the manual."""
    try:
        found = page_named(request.path_params["name"][:100])
    except InputError as error:
        raise HTTPException(404, str(error)) from None
    at = PAGES.index(found)
    values = {
        "groups": _groups(),
        "here": found,
        "chapter": _chapter(found),
        "before": PAGES[at - 1] if at else None,
        "after": PAGES[at + 1] if at + 1 < len(PAGES) else None,
    }
    return page(request, "chapter.j2", values)


def picture(request: Request) -> Response:
    """A picture of the manual."""
    name = request.path_params["file"]
    content = _picture(name) if _NAME.fullmatch(name) else None
    if content is None:
        raise HTTPException(404, "the manual has no such picture")
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"Cache-Control": f"private, max-age={_DAY}", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return packed_answer(request, content, _TYPES[name.rpartition(".")[2]], headers)


@cache
def _groups() -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The pages' names and titles by group."""
    by_group = groupby(PAGES, key=lambda one: one.group)
    return tuple((group, tuple((one.name, one.title) for one in pages)) for group, pages in by_group)


@cache
def _chapter(found: Page) -> _Chapter:
    html = Markup(as_html(found))  # noqa: S704 - the package's own text, in which HTML is text
    headings = tuple((anchor, Markup(words)) for anchor, words in _HEADING.findall(html))  # noqa: S704 - of the same
    return _Chapter(html, headings if len(headings) >= _HEADINGS else ())


def _picture(name: str) -> bytes | None:
    path = files("hpo_pilot.manual") / "pictures" / name
    return path.read_bytes() if path.is_file() else None
