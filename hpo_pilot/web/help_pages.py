"""The manual as pages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hpo_pilot.errors import InputError
from hpo_pilot.manual import PAGES, Page, page_named
from hpo_pilot.web.pages import page
from hpo_pilot.web.rendering import packed_answer

#: Seconds for which a browser keeps a picture without asking: a day, for its address does not change with it.
_DAY = 86_400

_TYPES = {"svg": "image/svg+xml", "png": "image/png"}

#: A name of a picture: no folder, no hidden file.
_NAME = re.compile(r"[a-zA-Z0-9][\w-]*\.(svg|png)", re.ASCII)

_HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.DOTALL)

#: Shorter lists of a page's headings are not worth showing.
_HEADINGS = 2


@dataclass(frozen=True)
class _RenderedPage:
    """A page of the manual, ready to be shown.

    Attributes:
        html: its text.
        headings: of its parts, each its anchor and its words.
    """

    html: Markup
    headings: tuple[tuple[str, Markup], ...]


def contents_page(request: Request) -> Response:
    """The list of the manual's pages."""
    return page(request, "help.j2", {"groups": _groups()})


def redirect_to_contents(_request: Request) -> Response:
    """`/help/` is the list too, at the address that its links count from."""
    return RedirectResponse("/help", 308)


def manual_page(request: Request) -> Response:
    """A page of the manual."""
    try:
        found = page_named(request.path_params["name"][:100])
    except InputError as error:
        raise HTTPException(404, str(error)) from None
    at = PAGES.index(found)
    values = {
        "groups": _groups(),
        "here": found,
        "chapter": _rendered_page(found),
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
def _rendered_page(found: Page) -> _RenderedPage:
    html = Markup(as_html(found))  # noqa: S704 - the package's own text, in which HTML is text
    headings = tuple((anchor, Markup(words)) for anchor, words in _HEADING.findall(html))  # noqa: S704 - of the same
    return _RenderedPage(html, headings if len(headings) >= _HEADINGS else ())


def _picture(name: str) -> bytes | None:
    path = files("hpo_pilot.manual") / "pictures" / name
    return path.read_bytes() if path.is_file() else None


_NAMES = frozenset(page.name for page in PAGES)


@cache
def as_html(page: Page) -> str:
    """A page's text as HTML: headings have anchors, links to other pages are relative to this one's address.

    What the page links to in the repository is not there where the package is installed: such a link is left as text.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(page.text())
    for position, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[position + 1].content))
        elif token.type == "table_open":
            token.attrSet("class", "manual")
        elif token.type == "fence" and (title := re.search(r'title="([^"]*)"', token.info)):
            token.info = token.info.split()[0]
            token.content = f"# {title[1]}\n{token.content}" if token.info in ("python", "yaml") else token.content
        elif token.children:
            token.children = _linked(token.children)
    html: str = parser.renderer.render(tokens, parser.options, {})
    # Wide tables and listings scroll by themselves, with the keyboard too.
    html = html.replace("<pre>", '<pre tabindex="0">')
    return html.replace('<table class="manual">', '<div class="scroll" tabindex="0"><table>').replace(
        "</table>", "</table></div>"
    )


def anchor(heading: str) -> str:
    """What a heading is called in addresses, as code hosts call it."""
    plain = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return plain.strip().replace(" ", "-")


def _linked(tokens: Sequence[Token]) -> list[Token]:
    """An inline text with its links as they are in the monitor."""
    kept: list[Token] = []
    dropped = False
    for token in tokens:
        if token.type == "link_open":
            target = _address(str(token.attrs["href"]))
            dropped = target is None
            if target is not None:
                token.attrSet("href", target)
                kept.append(token)
        elif token.type == "link_close" and dropped:
            dropped = False
        elif token.type == "image":
            token.attrSet("src", f"pictures/{str(token.attrs['src']).rsplit('/', 1)[-1]}")
            token.attrSet("loading", "lazy")
            kept.append(token)
        else:
            kept.append(token)
    return kept


def _address(target: str) -> str | None:
    """A link's address in the monitor; None: it leads into the repository."""
    parts = urlsplit(target)
    if parts.scheme or target.startswith("#"):
        return target
    if parts.path.endswith(".md") and parts.path.removesuffix(".md") in _NAMES:
        return parts.path.removesuffix(".md") + (f"#{parts.fragment}" if parts.fragment else "")
    return None
