"""Finding what a search can learn from earlier ones, when it is registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hpo_pilot.config.problem import Problem
from hpo_pilot.config.result_path import result_path
from hpo_pilot.config.results_file import read_results
from hpo_pilot.config.search_file import Examination, in_order
from hpo_pilot.errors import InputError
from hpo_pilot.search import Search
from hpo_pilot.search.earlier import EarlierResults, EarlierSearch, earlier_search, fitted
from hpo_pilot.search.warm_start import is_result_file
from hpo_pilot.store import Store


def result_files(search: Search, base: Path) -> dict[str, Path]:
    """The result files that a search names, by how it names them; `base` is the folder of its file."""
    return {source: result_path(source, base) for source in search.warm_start if is_result_file(source)}


def earlier_results(store: Store | None, search: Search, files: Mapping[str, Path]) -> list[EarlierResults]:
    """What a search has from the earlier ones that it names; a copy, which no later change of theirs touches.

    Args:
        store: where searches are found by their names; None: there is none.
        search: the new search, of one segment where its file has several.
        files: where the result files are that it names.

    Raises:
        InputError: an earlier search is not there, or has nothing to teach.
    """
    return [_results(store, search, source, files) for source in search.warm_start]


def _results(store: Store | None, search: Search, source: str, files: Mapping[str, Path]) -> EarlierResults:
    try:
        if is_result_file(source):
            if source not in files:
                raise InputError(f"the file {source} was not sent along")
            earlier = read_results(files[source], source, search.space, search.objectives)
        else:
            earlier = _of_store(store, search, source)
        return fitted(earlier, search.space, search.objectives)
    except InputError as error:
        raise InputError(f"warm_start: {error}") from error


def _of_store(store: Store | None, search: Search, name: str) -> EarlierSearch:
    """The results of a search of the store; of a family those of the same segment."""
    if store is None:
        raise InputError(f"there is no store with a search {name!r} (yet)")
    record = None
    if family := store.family(name):
        record = next((one for one in family if one.search.segment == search.segment), None)
        if record is None:
            members = ", ".join(one.name for one in family)
            raise InputError(f"{name!r} is a family of {len(family)} searches: name one of {members}")
    record = record or store.search(name)
    return earlier_search(name, record.search.objectives, store.trials(record.id))


def examined(store: Store | None, found: Examination, base: Path | None) -> Examination:
    """What was found in a search file, with what is to say of the earlier searches that it names.

    Args:
        store: where searches are found by their names; None: there is none, which is worth a note.
        found: what was found in the file; one with problems stays as it is.
        base: the folder of the file; None: it is elsewhere, and so are the result files.
    """
    search = found.search
    if search is None:
        return found
    problems: dict[tuple[str, str], Problem] = {}
    notes: dict[tuple[str, str], Problem] = {}
    for source, place in found.earlier:
        if is_result_file(source) and base is None:
            continue
        if store is None and not is_result_file(source):
            message = "whether there is such a search was not looked at, for there is no store yet"
            notes[place.path, message] = replace(place, message=message)
            continue
        for one in list(search.by_segment().values()) or [search]:
            try:
                results = _results(store, one, source, {} if base is None else result_files(one, base))
            except InputError as error:
                message = str(error).removeprefix("warm_start: ")
                problems[place.path, message] = replace(place, message=message)
            else:
                for message in results.notes:
                    notes[place.path, message] = replace(place, message=message)
    return replace(
        found,
        search=None if problems else search,
        problems=in_order([*found.problems, *problems.values()]),
        notes=in_order([*found.notes, *notes.values()]),
    )
