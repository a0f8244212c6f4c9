"""What the manual's pages hold: listings, links, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MANUAL = Path(__file__).parents[2] / "hpo_pilot" / "manual"
REPOSITORY = MANUAL.parents[1]

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?[^\n]*\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Listing:
    """A fenced block: its language, the name of the file that it is (or None), its text."""

    language: str
    file: str | None
    text: str


def listings(page: Path) -> list[Listing]:
    return [Listing(m[1], m[2], m[3]) for m in _FENCE.finditer(page.read_text())]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def sessions(listing: Listing) -> Iterator[tuple[str, list[str]]]:
    """Commands of a console listing, each with the lines that it prints."""
    command, printed = "", []
    for line in listing.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        else:
            printed.append(line)
    yield command, printed
