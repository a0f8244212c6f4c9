"""Whether a payload's inputs can be fetched, have names of their own, and are there where they are paths."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpo_pilot.errors import InputError
from hpo_pilot.search import Payload
from hpo_pilot.search.misfit import Misfit
from hpo_pilot.search.payload import OUR_FILES, OUR_PREFIX
from hpo_pilot.transformation.input_source import InputKind, InputSource, parse_source


def input_misfits(inputs: Sequence[str], payload: Payload, base: Path | None) -> list[Misfit]:
    """What is wrong with inputs in themselves and among each other; paths are indices.

    Args:
        inputs: as the search file has them.
        payload: whose they are.
        base: the search file's folder; None: its files are not looked at.
    """
    misfits = []
    first: dict[str, int] = {}
    own = dict.fromkeys(payload.file_names.named().values(), "is the payload's own file")
    own |= dict.fromkeys(OUR_FILES, "is a file of hpo-pilot's own")
    if base is not None and payload.files is not None:
        folder = base / Path(payload.files).expanduser()
        if folder.is_dir():
            own = {path.name: f"is in {payload.files} too" for path in folder.iterdir()} | own
    for index, text in enumerate(inputs):
        try:
            name = parse_source(text).name
        except ValueError as error:
            message, _, hint = str(error).partition(": ")
            misfits.append(Misfit((index,), message, hint))
            continue
        if name is None:
            continue
        if name in own or name.startswith(OUR_PREFIX):
            message = f"{name} {own.get(name, 'has a name like those of hpo-pilot')}"
            misfits.append(Misfit((index,), message, "all are put into one folder: rename one of the two"))
        elif first.setdefault(name, index) != index:
            message = f"has the name of inputs[{first[name]}]: {name}"
            misfits.append(Misfit((index,), message, "all are put into one folder: rename one of the two"))
    return misfits


def missing_paths(inputs: Sequence[str], base: Path) -> Iterator[tuple[int, str]]:
    """The inputs that are paths or patterns of which nothing is there: index, and what to say."""
    for index, text in enumerate(inputs):
        source = _understood(text)
        if source is None or source.kind is not InputKind.PATH:
            continue
        try:
            where = _absolute(source.where, base)
            if source.name is None and not glob.glob(where):  # noqa: PTH207  a pattern of any path, absolute ones too
                yield index, f"no file matches {where}"
            elif source.name is not None and not Path(where).exists():
                yield index, f"there is no such file: {where}"
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no such user's home
            yield index, f"{text} cannot be looked at: {error}"


def absolute_inputs(inputs: Sequence[str], base: Path | None) -> list[str]:
    """The inputs as workers are told them: they know no folder to which a path could be relative.

    Args:
        inputs: as the search file has them.
        base: the search file's folder; None: it is on another machine.

    Raises:
        InputError: a path is relative, and nobody here knows to what.
    """
    found = []
    for text in inputs:
        source = _understood(text)
        if source is None or source.kind is not InputKind.PATH:
            found.append(text)
        elif base is not None:
            found.append(_absolute(source.where, base))
        elif source.where.startswith("/"):
            found.append(source.where)
        else:
            raise InputError(
                f"payload.inputs: {text} is relative to a folder of yours: give the path as the workers see it"
            )
    return found


def _understood(text: str) -> InputSource | None:
    try:
        return parse_source(text)
    except ValueError:
        return None


def _absolute(path: str, base: Path) -> str:
    return str(base.absolute() / Path(path).expanduser())
