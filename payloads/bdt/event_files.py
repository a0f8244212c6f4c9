"""Reads a user's own events: ROOT files (uproot), Parquet and CSV files (pyarrow), imported only then."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
from boosting import TrainingError
from collisions import Events

Array = np.ndarray

ENDINGS = (".root", ".parquet", ".csv", ".csv.gz")


@dataclass(frozen=True)
class Columns:
    """What the columns of a user's files are.

    Attributes:
        label: the column that tells signal from background.
        signal: its value for signal, as text.
        weight: the column of the events' weights; empty: each event counts once.
        left_out: columns that are no features, such as event numbers.
        missing: the number that stands for a missing value, beside NaN; None: there is none.
        tree: of ROOT files; empty: the only one.
    """

    label: str = "label"
    signal: str = "1"
    weight: str = ""
    left_out: tuple[str, ...] = ()
    missing: float | None = None
    tree: str = ""


def read_events(paths: Sequence[Path], columns: Columns) -> Events:
    """The events of one or more files that have the same columns.

    Raises:
        TrainingError: a file cannot be read, or its columns are not what is said of them.
    """
    tables = [_table(path, columns) for path in paths]
    for path, table in zip(paths, tables):
        if table.keys() != tables[0].keys():
            odd = ", ".join(sorted(table.keys() ^ tables[0].keys()))
            raise TrainingError(f"{path} and {paths[0]} have different columns: {odd}")
    table = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    for name in filter(None, (columns.label, columns.weight, *columns.left_out)):
        if name not in table:
            raise TrainingError(f"{paths[0]} has no column {name!r}; it has {', '.join(sorted(table))}")
    others = {columns.label, columns.weight, *columns.left_out}
    names = tuple(name for name in table if name not in others)
    if not names:
        raise TrainingError(f"{paths[0]} has no feature: every column is a label, a weight or left out")
    features = np.stack([_numbers(table[name], name) for name in names], axis=-1)
    if columns.missing is not None:
        features[features == columns.missing] = np.nan
    weights = _numbers(table[columns.weight], columns.weight) if columns.weight else np.ones(len(features))
    return Events(features, names, _labels(table[columns.label], columns), weights)


def _reader(name: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise TrainingError(
            f"reading {path} needs the package {package}, which cannot be imported here ({error}): "
            f"`pip install {package}`"
        ) from error


def _table(path: Path, columns: Columns) -> dict[str, Array]:
    """Column name -> values (n,)."""
    name = path.name.lower()
    if not name.endswith(ENDINGS):
        raise TrainingError(f"{path} is none of {', '.join(ENDINGS)}")
    if not path.is_file():
        raise TrainingError(f"there is no file {path}")
    if name.endswith(".root"):
        return _root_table(path, columns.tree)
    reader = _reader("pyarrow.parquet" if name.endswith(".parquet") else "pyarrow.csv", path)
    try:
        table = reader.read_table(path) if name.endswith(".parquet") else reader.read_csv(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are one of the two
        raise TrainingError(f"{path} cannot be read: {error}") from error
    return {name: table[name].to_numpy() for name in table.column_names}


def _root_table(path: Path, tree: str) -> dict[str, Array]:
    uproot = _reader("uproot", path)
    try:
        with uproot.open(path) as file:
            trees = sorted({key.partition(";")[0] for key in file.keys(filter_classname=("TTree", "*RNTuple*"))})
            chosen = tree or (trees[0] if len(trees) == 1 else "")
            if chosen not in trees:
                wanted = f"no tree {tree!r}" if tree else "not exactly one tree: name it with --tree"
                raise TrainingError(f"{path} has {wanted}; it has {', '.join(trees) or 'none'}")
            return dict(file[chosen].arrays(library="np"))
    except (OSError, ValueError, KeyError, uproot.exceptions.KeyInFileError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error


def _numbers(values: Array, name: str) -> Array:
    if values.dtype.kind not in "biuf" or values.ndim != 1:
        raise TrainingError(
            f"column {name!r} is no column of numbers: leave it out with --drop, or write one number per event"
        )
    return values.astype(float)


def _labels(values: Array, columns: Columns) -> Array:
    """1 where a label is the signal's: equal as a number where it is one, else as text."""
    if values.dtype.kind in "biuf":
        try:
            return (values == float(columns.signal)).astype(int)
        except ValueError as error:
            raise TrainingError(f"column {columns.label!r} has numbers, --signal is {columns.signal!r}") from error
    return np.array([str(value) == columns.signal for value in values], dtype=int)
