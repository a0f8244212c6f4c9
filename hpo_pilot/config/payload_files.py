"""Whether a payload's folder is there, and what its command names: looked at where the folder is."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # clients of a service look at folders without models of searches
    from hpo_pilot.search import Search

#: The word of a command that starts a Python.
_PYTHON = re.compile(r"(?:^|[\s;&|('\"])((?:[\w.+/-]*/)?python[0-9.]*)(?=$|[\s;&|)'\"])")


def folder_mistake(files: str, base: Path) -> tuple[str, str] | None:
    """What is wrong with `payload.files`, and what to do; None where it is a folder.

    Args:
        files: the path as the search file has it.
        base: the search file's folder.
    """
    try:
        folder = base / Path(files).expanduser()
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no such user's home
        return f"cannot be looked at: {error}", ""
    if is_folder:
        return None
    what = "is a file, not a folder" if exists else "there is no such folder"
    return f"{what}: {folder}", _nearest_folder(folder, base) or "it is relative to this file"


def missing_programs(files: str, command: str, base: Path) -> list[str]:
    """The scripts that `payload.command` names and the folder does not have; for a folder that is there."""
    folder = base / Path(files).expanduser()
    return [
        word
        for word in _words(command)
        if word.endswith((".py", ".sh")) and not word.startswith(("/", "$", "~")) and not (folder / word).exists()
    ]


def python_word(command: str, python: str | None) -> str | None:
    """The Python that a payload's command starts, by the name or path that it has there; None: it names none.

    Args:
        command: `payload.command`.
        python: `payload.python`, which stands for `python` and `python3`.
    """
    found = _PYTHON.search(command)
    if found is None:
        return python
    return python if python and found[1] in ("python", "python3") else found[1]


def python_here(search: Search) -> str | None:
    """The path of the Python that a search's payload runs in, where its jobs run on this machine; None: not known."""
    payload = search.payload
    word = None if payload.container else python_word(payload.command, payload.python)
    return shutil.which(word) if word and search.site.profile == "local" else None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quote: the shell will say so
        return []


def _nearest_folder(folder: Path, base: Path) -> str:
    """The hint for a misspelt folder."""
    if not folder.parent.is_dir():
        return ""
    names = {child.name.casefold(): child for child in folder.parent.iterdir() if child.is_dir()}
    meant = difflib.get_close_matches(folder.name.casefold(), names, n=1, cutoff=0.6)
    return f"did you mean {os.path.relpath(names[meant[0]], base)}?" if meant else ""
