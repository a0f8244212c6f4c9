"""Search files: from a path to a `Search`, or to everything that is wrong with the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.config.problem import Problem, SearchFileError
from hpo_pilot.config.search_check import SearchCheck
from hpo_pilot.config.yaml_document import Document, decode_document, parse_document, read_document
from hpo_pilot.search import Search


@dataclass(frozen=True)
class Examination:
    """What was found in a search file.

    Attributes:
        search: the search; None where there are problems.
        problems: everything that is wrong, in the order of the file.
        notes: what is allowed but perhaps not meant, in the order of the file.
        named_files: what the file names beside itself; None where its payload's section is wrong.
        earlier: the earlier searches that it names (`warm_start`), each with its place, as a problem without a message.
    """

    search: Search | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    named_files: NamedFiles | None = None
    earlier: tuple[tuple[str, Problem], ...] = ()


@dataclass(frozen=True)
class NamedFiles:
    """What a search file names beside itself, for whoever has the files to check it.

    Attributes:
        files: `payload.files` as it stands there; None: nothing.
        command: `payload.command`.
        files_place: the place of the first, as a problem without a message.
        command_place: the place of the second.
    """

    files: str | None
    command: str
    files_place: Problem
    command_place: Problem


def examine(path: str | Path) -> Examination:
    """Reads and checks the search file at `path`; raises nothing for what is wrong with it."""
    path = Path(path)
    return _examine(read_document(path), path.parent)


def examine_content(content: bytes, file: str) -> Examination:
    """Checks the bytes of a search file that is elsewhere; the files that it names are not looked at.

    Args:
        content: the file's.
        file: its name in messages.
    """
    return _examine(decode_document(content, file), None)


def load_search(path: str | Path) -> Search:
    """The search of the file at `path`.

    Raises:
        SearchFileError: the file cannot be read or is wrong; its `problems` are all mistakes with their places.
    """
    return _search(examine(path))


def load_search_for(path: str | Path, site: str) -> Search:
    """The search of the file at `path` as it would be at another site than it names.

    Raises:
        SearchFileError: as `load_search`; also where a job does not fit into that site.
    """
    document = read_document(Path(path))
    whole = document.value
    section = whole.get("site") if isinstance(whole, dict) else None
    if isinstance(whole, dict) and (section is None or isinstance(section, dict)):
        whole["site"] = {**(section or {}), "profile": site}
    return _search(_examine(document, Path(path).parent))


def parse_search(text: str, source: str) -> Search:
    """The search of a file's text. Paths in it are not looked at, for they are relative to a file.

    Args:
        text: YAML.
        source: the text's name in messages.

    Raises:
        SearchFileError: the text is wrong; its `problems` are all mistakes with their places.
    """
    return _search(_examine(parse_document(text, source), None))


def payload_folder(search: Search, search_file: str | Path) -> Path | None:
    """The folder that is sent along with the jobs, as an absolute path; None where the search has none.

    Args:
        search: the search; its `payload.files` is as the file has it.
        search_file: the file that it came from, to whose folder the path is relative.
    """
    if search.payload.files is None:
        return None
    return (Path(search_file).parent / Path(search.payload.files).expanduser()).resolve()


def _examine(document: Document, folder: Path | None) -> Examination:
    check = SearchCheck(document, folder)
    search = check.run()
    named = None
    if check.payload is not None:
        places = (document.problem(("payload", key), "") for key in ("files", "command"))
        named = NamedFiles(check.payload.files, check.payload.command, *places)
    earlier = tuple(
        (source, document.problem(("warm_start", index), ""))
        for index, source in enumerate(search.warm_start if search is not None else ())
    )
    return Examination(search, in_order(check.problems), in_order(check.notes), named, earlier)


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems in the order of the file."""
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _search(examination: Examination) -> Search:
    if examination.search is None:
        raise SearchFileError(examination.problems)
    return examination.search
