"""The pages of the manual, in the order in which they are listed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.errors import InputError

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Page:
    """One page of the manual.

    Attributes:
        name: name of its file without the ending, and its name in addresses.
        group: heading under which it is listed.
    """

    name: str
    group: str

    @property
    def path(self) -> Path:
        """The path of its Markdown file."""
        return _FOLDER / f"{self.name}.md"

    @property
    def title(self) -> str:
        """Its first heading."""
        with self.path.open(encoding="utf-8") as file:
            return file.readline().lstrip("#").strip()

    def text(self) -> str:
        """Returns its Markdown."""
        return self.path.read_text(encoding="utf-8")


_GROUPS = {
    "Begin": ("quick-start", "tutorial"),
    "How to": (
        "payload",
        "asking",
        "folds",
        "optimizers",
        "extending",
        "monitor",
        "service",
        "real-panda",
        "multi-gpu",
        "slurm",
        "htcondor",
        "supercomputers",
        "moving",
    ),
    "Run it": ("operations", "invariants", "threats"),
    "Reference": ("search-file", "commands", "architecture"),
}

PAGES = tuple(Page(name, group) for group, names in _GROUPS.items() for name in names)


def page_named(name: str) -> Page:
    """Returns the page with this name.

    Raises:
        InputError: there is no such page; the message suggests one, or lists all.
    """
    for page in PAGES:
        if page.name == name:
            return page
    names = [page.name for page in PAGES]
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
    raise InputError(f"the manual has no page {name!r}{meant}")
