"""Pages of the manual as HTML, for the monitor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from hpo_pilot.manual.page import PAGES, Page

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
