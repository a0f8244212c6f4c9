"""The pages of the manual, in the order in which they are listed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.errors import InputError

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        name: of its file without the ending, and in addresses.
        group: what it is among: pages of a group stand together.
    """

    name: str
    group: str

    @property
    def path(self) -> Path:
        """Its Markdown file."""
        return _FOLDER / f"{self.name}.md"

    @property
    def title(self) -> str:
        """Its first heading."""
        with self.path.open(encoding="utf-8") as file:
            return file.readline().lstrip("#").strip()

    def text(self) -> str:
        """Its Markdown."""
        return self.path.read_text(encoding="utf-8")


_GROUPS = {
    "Begin": ("quick-start", "tutorial"),
    "How to": (
        "payload",
        "folds",
        "optimizers",
        "monitor",
        "service",
        "real-panda",
        "slurm",
        "supercomputers",
        "moving",
    ),
    "Run it": ("operations",),
    "Reference": ("search-file", "commands", "architecture"),
}

PAGES = tuple(Page(name, group) for group, names in _GROUPS.items() for name in names)


def page_named(name: str) -> Page:
    """The page of that name.

    Raises:
        InputError: there is none; the message lists those that are.
    """
    for page in PAGES:
        if page.name == name:
            return page
    names = [page.name for page in PAGES]
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
    raise InputError(f"the manual has no page {name!r}{meant}")
