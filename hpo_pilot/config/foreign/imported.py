"""What an import is told beside the file, and what comes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.config.problem import Problem
from hpo_pilot.search import Search


@dataclass(frozen=True)
class ImportOptions:
    """What the user says beside the file.

    Attributes:
        output_folder: where the search file goes; its paths are relative to it.
        name: the search's name; None: from the file.
        command: payload.command; None: from the file.
        payload: the payload's folder; None: from the file.
    """

    output_folder: Path
    name: str | None = None
    command: str | None = None
    payload: Path | None = None

    def relative(self, folder: Path) -> str:
        """A folder as the search file names it."""
        return os.path.relpath(folder.resolve(), self.output_folder.resolve())


@dataclass(frozen=True)
class Imported:
    """A search file made of another tool's file.

    Attributes:
        text: the search file.
        search: what it says.
        warnings: what was not carried over, or not as it was, each with its reason.
    """

    text: str
    search: Search
    warnings: tuple[Problem, ...]
