"""Search spaces of any tool: which dialect a parameter is written in is seen parameter by parameter."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from hpo_pilot.config.foreign.foreign_file import ForeignFile
from hpo_pilot.config.foreign.foreign_space import ForeignSpace
from hpo_pilot.config.foreign.hpogrid_space import add_hpogrid, is_hpogrid_entry
from hpo_pilot.config.foreign.nevergrad_space import KINDS, add_nevergrad, is_nevergrad_entry
from hpo_pilot.config.foreign.skopt_space import add_skopt, is_skopt_entry
from hpo_pilot.search.dimension import DIMENSION, DIMENSION_TYPES
from hpo_pilot.search.misfit import Path, closest
from hpo_pilot.search.point import show
from hpo_pilot.search.wording import misfits_of


def read_space(file: ForeignFile, path: Path, value: Any) -> ForeignSpace:
    """The space at `path` of a file; what is wrong with it is noted there."""
    space = ForeignSpace(file)
    entries = file.mapping(path, value, "must be a mapping of parameters")
    if entries is None:
        return space
    space.names = frozenset(entries)
    if not entries:
        file.wrong(path, "is empty: there is nothing to search")
    for name, entry in entries.items():
        place = (*path, name)
        if not name or name != name.strip():
            file.wrong(place, f"{name!r} is not a usable name", "leave out blanks at its ends", at_key=True)
        elif not file.is_readable(place):
            continue
        elif is_hpogrid_entry(entry):
            add_hpogrid(space, name, place, entry)
        elif is_nevergrad_entry(entry):
            add_nevergrad(space, name, place, entry)
        elif is_skopt_entry(entry):
            add_skopt(space, name, place, entry)
        elif isinstance(entry, dict) and entry.get("type") in DIMENSION_TYPES:
            _add_own(space, name, place, entry)
        else:
            _refuse(file, place, entry)
    if entries:
        space.searchable(path)
    return space


def _add_own(space: ForeignSpace, name: str, path: Path, entry: dict[str, Any]) -> None:
    """A parameter as search files have it."""
    try:
        DIMENSION.validate_python(entry)
    except ValidationError as error:
        for misfit in misfits_of(error, entry, DIMENSION_TYPES):
            space.file.wrong((*path, *misfit.path), misfit.message, misfit.hint, at_key=misfit.at_key)
    else:
        space.add(name, entry, "as it was")


def _refuse(file: ForeignFile, path: Path, entry: Any) -> None:
    if not isinstance(entry, dict):
        message = f"must be a mapping with method and dimension (hpogrid) or with type (iDDS), not {show(entry)}"
        file.wrong(path, message)
    elif "type" in entry:
        known = [*KINDS, "Real", "Integer", "Categorical", *DIMENSION_TYPES]
        file.one_of((*path, "type"), entry["type"], known)
    else:
        near = next((key for key in entry if closest(key, ("method", "dimension", "type"))), None)
        meant = closest(near, ("method", "dimension", "type")) if near else None
        place = (*path, near) if near else path
        message = "has neither method and dimension (hpogrid) nor type (iDDS)"
        file.wrong(place, message, f"did you mean {meant}?" if meant else "", at_key=True)
