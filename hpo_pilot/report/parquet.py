"""Writes a search as a Parquet file: one row per trial, typed columns, and the definition in the file's schema."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hpo_pilot import __version__
from hpo_pilot.errors import InputError
from hpo_pilot.report.exports import ExportedSearch, mean_metrics, panda_ids, trial_columns, utf8, without_stops
from hpo_pilot.report.trial_documents import time_of

#: The key of the search in the metadata of the schema.
METADATA_KEY = b"hpo_pilot"

_TIME = pa.timestamp("ms", tz="UTC")

#: Types of the columns that are not floats.
_KINDS = {
    **dict.fromkeys(("number", "generation", "seed", "confirms", "continues", "told", "stopped_step"), pa.int64()),
    **dict.fromkeys(("state", "error"), pa.string()),
    **dict.fromkeys(("submitted", "started", "ended"), _TIME),
}


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
    levels = any("level" in trial for trial in subject.trials)
    listed, named = trial_columns(subject.trials, subject.metrics, subject.folds, subject.space, levels=levels)
    columns = {name: (_KINDS.get(name, pa.float64()), values) for name, values in listed.items()}
    del columns["retries"]
    if not any(trial["stopped"] for trial in subject.trials):
        columns = without_stops(columns, named)
    for name, (kind, values) in columns.items():
        if kind is _TIME:
            columns[name] = kind, [time_of(value) for value in values]
    columns["error"] = pa.string(), [None if error is None else utf8(error) for error in columns["error"][1]]
    columns["panda_ids"] = pa.list_(pa.int64()), [panda_ids(trial) for trial in subject.trials]
    for name, column in named.items():
        columns[column] = _type_of(subject.space[name]), _values(subject, name, subject.space[name])
    means = [mean_metrics(trial) for trial in subject.trials]
    for name in dict.fromkeys(name for trial in means for name in trial):
        columns.setdefault(f"metrics.{name}", (pa.float64(), [trial.get(name) for trial in means]))
    metadata = {
        "mark": subject.mark,
        "version": __version__,
        "search": {key: subject.search[key] for key in ("name", "owner", "state", "objective", "created")},
        "definition": subject.search["definition"],
    }
    schema = pa.schema(
        [pa.field(name, kind) for name, (kind, _) in columns.items()],
        {METADATA_KEY: json.dumps(metadata, ensure_ascii=True)},
    )
    return pa.table([pa.array(values, kind) for kind, values in columns.values()], schema=schema)


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
