"""Results of earlier searches for `warm_start`, and the files that have them.

Results of earlier searches guide the optimizer and do not count as results: the earlier search had another data set,
another machine or a smaller model. Results of the very same problem are given as `known` and taken as exact.

A JSON file names its figures of merit, if its form has a place for that. A CSV file has only the names of its columns;
its cells are read as values of the new search's space.
"""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from hpo_pilot.errors import InputError
from hpo_pilot.files import result_mistake
from hpo_pilot.search.mistakes import listing
from hpo_pilot.search.parameters import Dimension, Integer, Real
from hpo_pilot.search.sections import Objective
from hpo_pilot.search.space import SearchSpace
from hpo_pilot.search.trials import Trial, TrialState
from hpo_pilot.search.values import Point, is_number, show

#: Only this number of the last results of an earlier search is used: more would cost time and space and gain little.
MOST_RESULTS = 10_000


#: A stored result: point, values, standard errors, whether it was stopped early.
ResultRow: TypeAlias = tuple[Point, tuple[float, ...] | None, tuple[float, ...] | None, bool]


@dataclass(frozen=True)
class EarlierTrial:
    """One result in the terms of its own search.

    Attributes:
        point: the point in that search.
        values: one for each figure of that search, not sign-flipped; None: the trial failed.
        errors: standard errors of the values, if known.
        stopped: the trial was stopped early, and the values are estimates of its final values; or it was infeasible.
            The values are learned, and are never the best.
    """

    point: Mapping[str, Any]
    values: tuple[float, ...] | None
    errors: tuple[float | None, ...] = ()
    stopped: bool = False


@dataclass(frozen=True)
class EarlierSearch:
    """Results of an earlier search in its own terms.

    Attributes:
        source: name of the search, or the file with its results.
        objectives: objectives of the values; empty: not known, so the objectives of the new search are assumed.
        trials: results in their order.
    """

    source: str
    objectives: tuple[Objective, ...]
    trials: tuple[EarlierTrial, ...]


@dataclass(frozen=True)
class EarlierResults:
    """Results of an earlier search in the terms of the new search. They are stored with it and told to its optimizer.

    Attributes:
        source: the earlier search.
        results: lower values are better. Values are None if the trial failed, standard errors if one is not known.
        notes: messages about what did not fit.
    """

    source: str
    results: tuple[ResultRow, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"starts from {len(self.results)} result{'s' * (len(self.results) != 1)} of {self.source}"
        return f"{text} ({'; '.join(self.notes)})" if self.notes else text


def earlier_search(source: str, objectives: Sequence[Objective], trials: Sequence[Trial]) -> EarlierSearch:
    """Returns the results of a stored search in order, without confirmation runs and trials stopped with the search."""
    level = learnt_level(t.level for t in trials if t.values and t.confirms is None)
    over = [t for t in trials if t.confirms is None and t.is_result and t.level == level]
    over.sort(key=lambda trial: trial.told or trial.number)
    return EarlierSearch(source, tuple(objectives), tuple(_earlier_trial(trial) for trial in over))


#: Results of a level that are enough to learn from it alone.
_ENOUGH = 10


def learnt_level(levels: Iterable[float | None]) -> float | None:
    """Returns the level whose results are used: the highest with enough of them, else the one with most."""
    counts = Counter(level for level in levels if level is not None)
    enough = [level for level, count in counts.items() if count >= _ENOUGH]
    return max(enough) if enough else max(counts, key=lambda level: (counts[level], level), default=None)


def _earlier_trial(trial: Trial) -> EarlierTrial:
    if trial.stopped_early and trial.stop is not None:
        return EarlierTrial(trial.point, trial.stop.projected, stopped=True)
    if trial.state is TrialState.FAILED or not trial.values:
        return EarlierTrial(trial.point, None)
    return EarlierTrial(trial.point, trial.values, trial.standard_errors, stopped=trial.state is TrialState.INFEASIBLE)


def fit_earlier_results(earlier: EarlierSearch, space: SearchSpace, objectives: Sequence[Objective]) -> EarlierResults:
    """Returns the results of an earlier search in the terms of a new search over `space`.

    - Figures are matched by name. A single figure with another name is used as ours, with a note. The sign follows the
      earlier search's goal, so that lower is better.
    - Parameters that `space` does not have are dropped.
    - Parameters that only `space` has get a random value from their domain for each result, so that the results carry
      no information about them, but still about the others.
    - Numbers outside the bounds are kept; the optimizer takes their distance into account. Results with an unknown
      choice, or with text for a number, are dropped.

    Args:
        earlier: the earlier search.
        space: space of the new search.
        objectives: objectives of the new search.

    Raises:
        InputError: nothing can be used: no results, no common figure or parameter, or opposite goals.
    """
    source = earlier.source
    columns, notes = _columns(earlier, objectives)
    trials = earlier.trials
    if not any(trial.values for trial in trials):
        raise InputError(f"{source!r} has no results yet")
    if len(trials) > MOST_RESULTS:
        notes.append(f"only the last {MOST_RESULTS} of its {len(trials)} results are used")
        trials = trials[-MOST_RESULTS:]
    theirs = list(dict.fromkeys(name for trial in trials for name in trial.point))
    if not space.dimensions.keys() & set(theirs):
        has = f": it has {listing(theirs)}, this one {listing(space.names)}" if theirs else f" ({listing(space.names)})"
        raise InputError(f"{source!r} has no parameter of this space{has}")
    if extra := [name for name in theirs if name not in space.dimensions]:
        notes.append(f"its {listing(extra)} is not used, because this space does not have it")
    # The same values each time: stored results must not depend on chance.
    numbers = random.Random(source)  # noqa: S311  nothing secret here
    results: list[ResultRow] = []
    filled: set[str] = set()
    reasons: list[str] = []
    for trial in trials:
        point = _in_space(trial.point, space, numbers, filled, reasons)
        if point is not None:
            results.append((point, *_signed(trial, columns), trial.stopped))
    if not any(values for _, values, _, _ in results):
        why = f": {reasons[0]}" if reasons else ""
        raise InputError(f"none of the {len(trials)} results of {source!r} fits this space{why}")
    if filled:
        lacking = listing([name for name in space.names if name in filled])
        notes.append(f"results without {lacking} get random values for it")
    if reasons:
        notes.append(f"{len(reasons)} of its {len(trials)} results do not fit this space ({reasons[0]})")
    return EarlierResults(source, tuple(results), tuple(notes))


def _columns(earlier: EarlierSearch, objectives: Sequence[Objective]) -> tuple[list[tuple[int, int]], list[str]]:
    """Returns for each of our objectives its index in the earlier values and the sign for them; and notes."""
    if not earlier.objectives:
        figures = max((len(trial.values) for trial in earlier.trials if trial.values), default=len(objectives))
        if figures != len(objectives):
            ours = listing([repr(objective.metric) for objective in objectives])
            raise InputError(
                f"{earlier.source!r} has {figures} figure{'s' * (figures > 1)} of merit per result without names, "
                f"and this search has {ours}: use a file that `hpo-pilot export` wrote, which names them"
            )
        ours = listing([f"{objective.metric!r} (to {objective.goal})" for objective in objectives])
        note = f"it does not name its figures of merit or their goals: they are used as {ours}"
        return [(index, objective.sign) for index, objective in enumerate(objectives)], [note]
    places = {objective.metric: index for index, objective in enumerate(earlier.objectives)}
    columns, notes = [], []
    for objective in objectives:
        place = places.get(objective.metric)
        if place is not None and earlier.objectives[place].goal != objective.goal:
            raise InputError(
                f"{earlier.source!r} has the goal to {earlier.objectives[place].goal} {objective.metric!r}, and this "
                f"search to {objective.goal} it: correct one of the two"
            )
        if place is None and len(earlier.objectives) == len(objectives) == 1:
            place = 0
            other = earlier.objectives[0]
            notes.append(f"its figure of merit is {other.metric!r} (to {other.goal}), used as {objective.metric!r}")
        if place is None:
            there = listing([repr(other.metric) for other in earlier.objectives])
            raise InputError(f"{earlier.source!r} has no figure of merit {objective.metric!r}: it has {there}")
        columns.append((place, earlier.objectives[place].sign))
    return columns, notes


def _signed(
    trial: EarlierTrial, columns: Sequence[tuple[int, int]]
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Returns values and standard errors of a result in the order of our objectives; lower is better."""
    if trial.values is None or any(place >= len(trial.values) for place, _ in columns):
        return None, None
    values = tuple(sign * trial.values[place] for place, sign in columns)
    errors = [trial.errors[place] if place < len(trial.errors) else None for place, _ in columns]
    known = tuple(error for error in errors if error is not None)
    return values, known if len(known) == len(columns) else None


def _in_space(
    point: Mapping[str, Any], space: SearchSpace, numbers: random.Random, filled: set[str], reasons: list[str]
) -> Point | None:
    """Returns the point with the parameters of `space`; None if a value does not fit.

    Args:
        point: the point of the earlier search.
        space: space of the new search.
        numbers: source of values for missing parameters.
        filled: the names of missing parameters are added here.
        reasons: the reason is added here if a value does not fit.
    """
    values: Point = {}
    for name in space.parents_first:
        dimension = space.dimensions[name]
        place = numbers.random()  # drawn for each parameter, so that a further parameter does not change the others
        if not space.is_active(name, values):
            continue
        if name not in point:
            values[name] = dimension.from_unit(place)
            filled.add(name)
            continue
        try:
            values[name] = _taken(dimension, point[name])
        except ValueError as error:
            reasons.append(f"{name} {error}")
            return None
    return {name: values[name] for name in space.names if name in values}


def _taken(dimension: Dimension, value: Any) -> Any:
    """Returns a value as the dimension's type; numbers outside the bounds or between the steps are kept.

    Raises:
        ValueError: the value does not fit the dimension.
    """
    if not isinstance(dimension, Real | Integer):
        return dimension.canonical(value)
    if not is_number(value):
        raise ValueError(f"must be a number, not {show(value)}")
    if dimension.scale == "log" and value <= 0:
        raise ValueError(f"must be above 0 on a logarithmic scale, not {show(value)}")
    try:
        return dimension.canonical(value)
    except ValueError:
        return value


_FORMS = (
    "it is read as `hpo-pilot export --format json` or csv, `hpo-pilot trials --json`, hpogrid's results, or phpo's "
    "points with their losses"
)


def read_results(path: Path, source: str, space: SearchSpace, objectives: Sequence[Objective]) -> EarlierSearch:
    """Reads the results in a file.

    Running trials, trials stopped with their search, and confirmation runs are skipped. The values of a trial stopped
    early are estimates of its final values.

    Args:
        path: the file.
        source: name of the file in messages, as in the search file.
        space: space of the new search.
        objectives: objectives of the new search; their names select the columns of a table with several figures.

    Raises:
        InputError: the file cannot be read, has no results in a known form, or lacks one of the figures.
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
    items = items if isinstance(items, list) else []
    levels = [_values(item.get("level")) if isinstance(item, dict) else None for item in items]
    learnt = learnt_level(None if level is None else level[0] for level in levels)
    at = [item for item, level in zip(items, levels, strict=True) if learnt is None or level == (learnt,)]
    trials = [trial for item in at for trial in _trial(item)]
    if not trials:
        raise InputError(f"{source}: has no results: {_FORMS}")
    return objectives, trials


def _objectives(search: Any, source: str) -> tuple[Objective, ...]:
    """Returns the objectives of an exported search; empty if it has none."""
    objective = search.get("objective") if isinstance(search, dict) else None
    listed = objective if isinstance(objective, list) else [objective] if objective is not None else []
    try:
        return tuple(Objective.model_validate(one) for one in listed)
    except ValidationError as error:
        raise InputError(f"{source}: search.objective is wrong: {error.errors()[0]['msg']}") from error


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
    """Yields the result in one entry of a list, if there is one."""
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict):  # phpo's: [point, loss]
        if item[1] is not None:
            yield EarlierTrial(item[0], _values(item[1]))
        return
    if not isinstance(item, dict) or not isinstance(item.get("point"), dict) or item.get("confirms") is not None:
        return
    if item.get("state", "finished") == "failed":
        yield EarlierTrial(item["point"], None)
    elif item.get("state", "finished") in ("finished", "infeasible", "paused"):
        folds = item.get("folds")
        listed = folds if isinstance(folds, list) else []
        good = sum(isinstance(fold, dict) and fold.get("value") is not None for fold in listed)
        errors, beyond = _errors(item.get("std"), good), item.get("state") == "infeasible"
        yield EarlierTrial(item["point"], _values(item.get("value")), errors, beyond)
    elif item["state"] == "stopped" and isinstance(item.get("stopped"), dict):
        yield EarlierTrial(item["point"], _values(item["stopped"].get("projected")), stopped=True)


def _values(value: Any) -> tuple[float, ...] | None:
    numbers = value if isinstance(value, list) else [value]
    return tuple(float(number) for number in numbers) if numbers and all(map(is_number, numbers)) else None


def _errors(std: Any, good: int) -> tuple[float | None, ...]:
    """Returns standard errors of means over `good` folds from the standard deviations."""
    spread = std if isinstance(std, list) else [std]
    return tuple(float(one) / good**0.5 if good > 1 and is_number(one) else None for one in spread)


def _of_table(text: str, source: str, space: SearchSpace, objectives: Sequence[Objective]) -> list[EarlierTrial]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        head = list(rows.fieldnames or [])
    except csv.Error as error:
        raise InputError(f"{source}: is not CSV: {error}") from error
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
        listed = list(rows)
        levels = [_number(row["level"]) if "continues" in head and row.get("level") else None for row in listed]
        learnt = learnt_level(levels)
        for row, level in zip(listed, levels, strict=True):
            if ("confirms" in others and row.get("confirms")) or level != learnt:
                continue
            state = row.get("state") or "finished"
            stopped = state == "stopped" and bool(row.get("stopped_step"))
            if stopped or state in ("finished", "infeasible", "paused", "failed"):
                point = {name: _cell(space, name, row[column]) for name, column in columns.items()}
                known = {name: value[0] for name, value in point.items() if value}
                numbers = [_number(row.get(f"{'projected' if stopped else 'value'}{end}")) for end in ends]
                values = None if state == "failed" else _values(numbers)
                spreads = [_number(row.get(f"std{end}")) for end in ends]
                good = sum(1 for name in folds if row[name])
                errors = () if stopped else _errors(spreads, good)
                trials.append(EarlierTrial(known, values, errors, stopped or state == "infeasible"))
    except csv.Error as error:
        raise InputError(f"{source}: line {rows.line_num} is not CSV: {error}") from error
    if not trials:
        raise InputError(f"{source}: has no results: {_FORMS}")
    return trials


def _ends(head: Sequence[str], source: str, objectives: Sequence[Objective]) -> list[str]:
    """Returns the ending of the column names for each of `objectives`; empty in a table with one figure."""
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
    """Returns a tuple with the value of a cell; empty for an empty cell that is no null: it was not active."""
    dimension = space.dimensions[name]
    if isinstance(dimension, Real | Integer):
        number = _number(cell)
        if number is None:
            return (cell,) if cell else ()
        return (int(number) if isinstance(dimension, Integer) and number == int(number) else number,)
    for choice in dimension.choices:
        if choice is not None and cell in _texts(choice):
            return (choice,)
    if not cell and None in dimension.choices:
        return (None,)
    return (cell,) if cell else ()


def _texts(choice: Any) -> Sequence[str]:
    """Returns the possible texts of a choice in a cell; `export` quotes text that a spreadsheet would run."""
    if isinstance(choice, bool):
        return json.dumps(choice), str(choice)
    return str(choice), f"'{choice}"


def _number(cell: str | None) -> float | None:
    try:
        number = float(cell or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


#: Prefix of a parameter's column if its name is also that of another column.
_PREFIX = "point."


def parameter_column(name: str, others: Collection[str]) -> str:
    """Returns the column of a parameter in a table with the columns `others`: `value` becomes `point.value`."""
    return _PREFIX + name if name in others or name.startswith(_PREFIX) else name


def column_of(name: str, head: Collection[str], others: Collection[str]) -> str | None:
    """Returns the column with a parameter's values; None if there is none.

    Args:
        name: name of the parameter.
        head: all columns of the table.
        others: columns with another meaning.
    """
    if _PREFIX + name in head:
        return _PREFIX + name
    return name if name in head and name not in others else None
