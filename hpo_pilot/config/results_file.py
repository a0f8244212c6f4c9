"""Files with the results of an earlier search: what `hpo-pilot export` and `trials --json` write, and hpogrid and phpo.

A JSON file says itself what its figures are, where its form has a place for that; a CSV file says only what is in its
columns, and its cells are read as the values that the space of the new search has.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpo_pilot.config.result_columns import column_of
from hpo_pilot.config.result_path import result_mistake
from hpo_pilot.errors import InputError
from hpo_pilot.search import Integer, Objective, Real, SearchSpace
from hpo_pilot.search.earlier import EarlierSearch, EarlierTrial
from hpo_pilot.search.misfit import listing
from hpo_pilot.search.point import is_number

_FORMS = (
    "it is read as `hpo-pilot export --format json` or csv, `hpo-pilot trials --json`, hpogrid's results, or phpo's "
    "points with their losses"
)


def read_results(path: Path, source: str, space: SearchSpace, objectives: Sequence[Objective]) -> EarlierSearch:
    """The results in a file.

    Trials that are not over, that ended with their search, and confirmation runs are passed over. Of one that was
    stopped early the values are what it would probably have come to.

    Args:
        path: the file.
        source: its name in messages, as the search file has it.
        space: the new search's.
        objectives: the new search's, by whose names the columns of a table with several figures are found.

    Raises:
        InputError: it cannot be read, has no results in a form that is known, or lacks one of the figures.
    """
    text = _content(path, source)
    if text.lstrip()[:1] in ("{", "["):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source}: is not JSON: {error}") from error
        theirs, trials = _of_document(document, source)
    else:
        theirs, trials = (), _of_table(text, source, space, objectives)
    return EarlierSearch(source, theirs, tuple(trials))


def _content(path: Path, source: str) -> str:
    mistake = result_mistake(path)
    if mistake is not None:
        raise InputError(f"{source}: {mistake[0]}" + (f" — {mistake[1]}" if mistake[1] else ""))
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"cannot be read: {error}"
        raise InputError(f"{source}: {reason}") from error


def _of_document(document: Any, source: str) -> tuple[tuple[Objective, ...], list[EarlierTrial]]:
    objectives: tuple[Objective, ...] = ()
    items = document
    if isinstance(document, dict):
        if isinstance(document.get("result"), dict):
            return _of_hpogrid(document)
        objectives = _objectives(document.get("search"), source)
        items = document.get("trials", document.get("points"))
    trials = [trial for item in items for trial in _trial(item)] if isinstance(items, list) else []
    if not trials:
        raise InputError(f"{source}: has no results: {_FORMS}")
    return objectives, trials


def _objectives(search: Any, source: str) -> tuple[Objective, ...]:
    """The objectives of an exported search; none where there is no such thing."""
    objective = search.get("objective") if isinstance(search, dict) else None
    listed = objective if isinstance(objective, list) else [objective] if objective is not None else []
    try:
        return tuple(Objective.model_validate(one) for one in listed)
    except ValidationError as error:
        raise InputError(f"{source}: search.objective is none: {error.errors()[0]['msg']}") from error


def _of_hpogrid(document: Mapping[str, Any]) -> tuple[tuple[Objective, ...], list[EarlierTrial]]:
    metric = str(document.get("metric") or "loss")
    names = document.get("hyperparameters")
    rows = [row for row in document["result"].values() if isinstance(row, dict)]
    objective = Objective(metric=metric, goal="maximize" if document.get("mode") == "max" else "minimize")
    return (objective,), [
        EarlierTrial(
            {name: row[name] for name in names if row.get(name) is not None} if isinstance(names, list) else {},
            _values(row.get(metric)),
        )
        for row in rows
    ]


def _trial(item: Any) -> Iterator[EarlierTrial]:
    """The result of one entry of a list, where it has one."""
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict):  # phpo's: [point, loss]
        if item[1] is not None:
            yield EarlierTrial(item[0], _values(item[1]))
        return
    if not isinstance(item, dict) or not isinstance(item.get("point"), dict) or item.get("confirms") is not None:
        return
    if item.get("state", "finished") == "failed":
        yield EarlierTrial(item["point"], None)
    elif item.get("state", "finished") == "finished":
        folds = item.get("folds")
        good = (
            sum(1 for fold in folds if isinstance(fold, dict) and fold.get("value") is not None)
            if isinstance(folds, list)
            else 0
        )
        yield EarlierTrial(item["point"], _values(item.get("value")), _errors(item.get("std"), good))
    elif item["state"] == "stopped" and isinstance(item.get("stopped"), dict):
        yield EarlierTrial(item["point"], _values(item["stopped"].get("projected")), stopped=True)


def _values(value: Any) -> tuple[float, ...] | None:
    numbers = value if isinstance(value, list) else [value]
    return tuple(float(number) for number in numbers) if numbers and all(map(is_number, numbers)) else None


def _errors(std: Any, good: int) -> tuple[float | None, ...]:
    """Standard errors of means over `good` folds, from their standard deviations."""
    spread = std if isinstance(std, list) else [std]
    return tuple(float(one) / good**0.5 if good > 1 and is_number(one) else None for one in spread)


def _of_table(text: str, source: str, space: SearchSpace, objectives: Sequence[Objective]) -> list[EarlierTrial]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        head = list(rows.fieldnames or [])
    except csv.Error as error:
        raise InputError(f"{source}: is no CSV: {error}") from error
    ends = _ends(head, source, objectives)
    folds = [name for name in head if re.fullmatch(rf"fold_\d+{re.escape(ends[0])}", name)]
    figures = [f"{kind}{end}" for kind in ("value", "std", "projected") for end in ends]
    others = {"state", "stopped_step", *folds, *figures}
    if "confirms" not in space.names or "point.confirms" in head:  # exports once had no such column
        others.add("confirms")
    columns = {name: column for name in space.names if (column := column_of(name, head, others)) is not None}
    if twice := [column for column in (*columns.values(), *others) if head.count(column) > 1]:
        raise InputError(f"{source}: has two columns {twice[0]!r}: rename one; a parameter's may be 'point.{twice[0]}'")
    trials = []
    try:
        for row in rows:
            if "confirms" in others and row.get("confirms"):
                continue
            state = row.get("state") or "finished"
            stopped = state == "stopped" and bool(row.get("stopped_step"))
            if stopped or state in ("finished", "failed"):
                point = {name: _cell(space, name, row[column]) for name, column in columns.items()}
                known = {name: value[0] for name, value in point.items() if value}
                numbers = [_number(row.get(f"{'projected' if stopped else 'value'}{end}")) for end in ends]
                values = None if state == "failed" else _values(numbers)
                spreads = [_number(row.get(f"std{end}")) for end in ends]
                good = sum(1 for name in folds if row[name])
                trials.append(EarlierTrial(known, values, () if stopped else _errors(spreads, good), stopped))
    except csv.Error as error:
        raise InputError(f"{source}: line {rows.line_num} is no CSV: {error}") from error
    if not trials:
        raise InputError(f"{source}: has no results: {_FORMS}")
    return trials


def _ends(head: Sequence[str], source: str, objectives: Sequence[Objective]) -> list[str]:
    """What the names of a table's columns end with, for each of `objectives`: nothing where it has one figure."""
    if "value" in head:
        return [""]
    there = [name for name in head if name.startswith("value_")]
    if not there:
        raise InputError(f"{source}: has no column 'value': {_FORMS}")
    ends = [f"_{objective.metric}" for objective in objectives]
    for end in ends:
        if f"value{end}" not in there:
            raise InputError(f"{source}: has no column 'value{end}': it has {listing(there)}")
    return ends


def _cell(space: SearchSpace, name: str, cell: str | None) -> tuple[Any, ...]:
    """The value of a cell, as a tuple of one; none where it is empty, for the parameter was not active."""
    dimension = space.dimensions[name]
    if isinstance(dimension, Real | Integer):
        number = _number(cell)
        if number is None:
            return (cell,) if cell else ()
        return (int(number) if isinstance(dimension, Integer) and number == int(number) else number,)
    for choice in dimension.choices:
        if choice is not None and cell in _texts(choice):
            return (choice,)
    return (cell,) if cell else ()


def _texts(choice: Any) -> Sequence[str]:
    """How a choice may stand in a cell: `export` quotes texts that a spreadsheet would run."""
    if isinstance(choice, bool):
        return json.dumps(choice), str(choice)
    return str(choice), f"'{choice}"


def _number(cell: str | None) -> float | None:
    try:
        number = float(cell or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
