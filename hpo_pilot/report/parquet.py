"""Writes a search as a Parquet file: one row per trial, typed columns, and the definition in the file's schema."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpo_pilot import __version__
from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import COSTS, ExportedSearch, mean_metrics, panda_ids, time_of, trial_costs, utf8
from hpo_pilot.search.earlier_results import parameter_column

#: The key of the search in the metadata of the schema.
METADATA_KEY = b"hpo_pilot"

_TIME = pa.timestamp("ms", tz="UTC")


def write(subject: ExportedSearch, path: Path) -> str:
    """Writes the file completely, or leaves the old one unchanged.

    Raises:
        InputError: the path is another file.
        OSError: the file cannot be written.
    """
    _refuse_others(subject, path)
    table = table_of(subject)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        pq.write_table(table, part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return f"wrote {table.num_rows} trials to {path}; read it with: pandas.read_parquet({str(path)!r})"


def _refuse_others(subject: ExportedSearch, path: Path) -> None:
    if not path.exists():
        return
    try:
        there = json.loads((pq.read_schema(path).metadata or {}).get(METADATA_KEY, b"{}"))
    except (pa.ArrowException, OSError, ValueError):
        there = {}
    if there.get("mark") != subject.mark:
        raise InputError(f"{path} exists and is not an export of search {subject.search['name']!r}; give another path")


def table_of(subject: ExportedSearch) -> pa.Table:
    """Returns the table: the columns of the CSV export and some more, with types."""
    columns = [*_fixed(subject)]
    names = [name for name, _, _ in columns]
    places = names.index("seed")
    points = [
        (parameter_column(name, names), _type_of(dimension), _values(subject, name, dimension))
        for name, dimension in subject.space.items()
    ]
    columns[places:places] = points
    taken = {name for name, _, _ in columns}
    means = [mean_metrics(trial) for trial in subject.trials]
    for name in dict.fromkeys(name for trial in means for name in trial):
        if (column := f"metrics.{name}") not in taken:
            columns.append((column, pa.float64(), [trial.get(name) for trial in means]))
    metadata = {
        "mark": subject.mark,
        "version": __version__,
        "search": {key: subject.search[key] for key in ("name", "owner", "state", "objective", "created")},
        "definition": subject.search["definition"],
    }
    schema = pa.schema(
        [pa.field(name, kind) for name, kind, _ in columns], {METADATA_KEY: json.dumps(metadata, ensure_ascii=True)}
    )
    return pa.table([pa.array(values, kind) for _, kind, values in columns], schema=schema)


def _fixed(subject: ExportedSearch) -> Iterable[tuple[str, pa.DataType, list[Any]]]:
    """Yields name, type and values of all columns, except those of the point and of the payload's metrics."""
    trials, ends = subject.trials, subject.suffixes
    yield "number", pa.int64(), [trial["number"] for trial in trials]
    yield "generation", pa.int64(), [trial["generation"] for trial in trials]
    yield "state", pa.string(), [trial["state"] for trial in trials]
    for place, end in enumerate(ends):
        yield f"value{end}", pa.float64(), [subject.values_of(trial, "value")[place] for trial in trials]
        yield f"std{end}", pa.float64(), [subject.values_of(trial, "std")[place] for trial in trials]
    yield "seed", pa.int64(), [trial["seed"] for trial in trials]
    of_folds = [{fold["fold"]: subject.values_of(fold, "value") for fold in trial["folds"]} for trial in trials]
    for fold in range(subject.folds):
        for place, end in enumerate(ends):
            values = [found[fold][place] if fold in found else None for found in of_folds]
            yield f"fold_{fold}{end}", pa.float64(), values
    yield "error", pa.string(), [None if trial["error"] is None else utf8(trial["error"]) for trial in trials]
    for time in ("submitted", "started", "ended"):
        yield time, _TIME, [time_of(trial[time]) for trial in trials]
    for number in ("confirms", "told"):
        yield number, pa.int64(), [trial[number] for trial in trials]
    stops = [trial["stopped"] for trial in trials]
    if any(stops):
        yield "stopped_step", pa.int64(), [stop and stop["step"] for stop in stops]
        yield "stopped_value", pa.float64(), [stop and stop["value"] for stop in stops]
        for place, end in enumerate(ends):
            guesses = [subject.values_of(stop, "projected")[place] if stop else None for stop in stops]
            yield f"projected{end}", pa.float64(), guesses
    costs = [trial_costs(trial) for trial in trials]
    for name in COSTS:
        yield name, pa.float64(), [cost[name] for cost in costs]
    yield "panda_ids", pa.list_(pa.int64()), [panda_ids(trial) for trial in trials]


def _type_of(dimension: dict[str, Any]) -> pa.DataType:
    """Returns the narrowest type for all values of a parameter."""
    if dimension["type"] in ("real", "integer"):
        return pa.float64() if dimension["type"] == "real" else pa.int64()
    kinds = {type(choice) for choice in dimension["choices"] if choice is not None}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(abs(choice) < 2**63 for choice in dimension["choices"] if choice is not None):
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def _values(subject: ExportedSearch, name: str, dimension: dict[str, Any]) -> list[Any]:
    """Returns a parameter's values; choices of several types become JSON texts, so that 1, "1" and true differ."""
    values = [trial["point"].get(name) for trial in subject.trials]
    if _type_of(dimension) != pa.string():
        return values
    if all(isinstance(choice, str | None) for choice in dimension["choices"]):
        return [None if value is None else utf8(value) for value in values]
    return [json.dumps(trial["point"][name]) if name in trial["point"] else None for trial in subject.trials]
