"""From a file of another tool to a search file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpo_pilot.errors import InputError, Problem, SearchFileError
from hpo_pilot.migrate.draft import Draft, ImportedSearch, ImportOptions
from hpo_pilot.migrate.foreign_file import ForeignFile
from hpo_pilot.migrate.hpogrid import import_hpogrid
from hpo_pilot.migrate.idds import import_idds
from hpo_pilot.migrate.phpo import import_phpo, read_phpo
from hpo_pilot.steering.search_file import parse_search

#: The tools whose files are imported.
TOOLS = ("hpogrid", "phpo", "idds")


def import_search(
    tool: str, path: Path | None, options: ImportOptions, arguments: Sequence[str] = ()
) -> ImportedSearch:
    """The search file that says what another tool's file says.

    Args:
        tool: one of `TOOLS`.
        path: its file; for phpo it may be missing, where `arguments` has the command's words.
        options: what the user says beside the file.
        arguments: phpo's command line.

    Raises:
        SearchFileError: the file is wrong; it has all mistakes with their places.
        InputError: there is no file, or no such tool.
    """
    if tool == "phpo":
        task = read_phpo(path, arguments)
        draft, files = import_phpo(task, options), task.files()
    elif tool in TOOLS:
        if path is None:
            raise InputError(f"which file? `hpo-pilot import {tool} FILE`")
        if arguments:
            raise InputError(f"{tool} has no command line; only phpo has: {' '.join(arguments)}")
        file = ForeignFile.read(path)
        draft, files = (import_hpogrid if tool == "hpogrid" else import_idds)(file, options), [file]
    else:
        raise InputError(f"there is no importer for {tool!r}; there is {', '.join(TOOLS)}")
    problems = [problem for file in files for problem in file.problems]
    if problems:
        raise SearchFileError(problems)
    warnings = tuple(warning for file in files for warning in file.warnings)
    return _finished(draft, options, tool, path, warnings)


def _finished(
    draft: Draft, options: ImportOptions, tool: str, path: Path | None, warnings: tuple[Problem, ...]
) -> ImportedSearch:
    if options.name is not None:
        draft.put("search", options.name, origin="--name")
    if options.command is not None:
        draft.put("payload", "command", options.command, origin="--command")
    if options.payload is not None:
        draft.put("payload", "files", options.relative(options.payload), origin="--files")
    source = "phpo's command line" if path is None else str(path)
    text = draft.text([f"Made by `hpo-pilot import {tool}` of {source}."], warnings)
    # Whatever comes out is a search file that holds; what does not is told in its terms.
    return ImportedSearch(text, parse_search(text, f"the search file made of {source}"), warnings)
