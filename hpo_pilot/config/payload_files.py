"""Whether a payload's folder is there, and what its command names: looked at where the folder is."""

from __future__ import annotations

import difflib
import os
import shlex
from pathlib import Path


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
