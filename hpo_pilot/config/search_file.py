"""Search files: from a path to a `Search`, or to everything that is wrong with the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpo_pilot.config.problem import Problem, SearchFileError
from hpo_pilot.config.search_check import SearchCheck
from hpo_pilot.config.yaml_document import Document, parse_document, read_document
from hpo_pilot.search import Search


@dataclass(frozen=True)
class Examination:
    """What was found in a search file.

    Attributes:
        search: the search; None where there are problems.
        problems: everything that is wrong, in the order of the file.
        notes: what is allowed but perhaps not meant, in the order of the file.
    """

    search: Search | None
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]


def examine(path: str | Path) -> Examination:
    """Reads and checks the search file at `path`; raises nothing for what is wrong with it."""
    path = Path(path)
    return _examine(read_document(path), path.parent)


def load_search(path: str | Path) -> Search:
    """The search of the file at `path`.

    Raises:
        SearchFileError: the file cannot be read or is wrong; its `problems` are all mistakes with their places.
    """
    return _search(examine(path))


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
    return Examination(search, _in_order(check.problems), _in_order(check.notes))


def _in_order(problems: list[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0)))


def _search(examination: Examination) -> Search:
    if examination.search is None:
        raise SearchFileError(examination.problems)
    return examination.search
