"""Trials as a matrix, for models and statistics of figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hpo_pilot.search import Search, Trial
from hpo_pilot.search.dimension import Dimension, value_key

Matrix: TypeAlias = NDArray[np.float64]

#: A categorical parameter with no more choices gets a column for each: their order means nothing.
_MOST_COLUMNS = 12


@dataclass(frozen=True)
class Encoded:
    """Points of trials.

    Attributes:
        names: of the parameters, in the order of the search file.
        columns: shape (n_trials, n_columns), each in [0, 1].
        groups: for each parameter the indices of its columns.
        active: shape (n_trials, n_params); False where a trial has no value of the parameter, or one that the space
            does not have. Its columns stand at the middle there.
    """

    names: tuple[str, ...]
    columns: Matrix
    groups: tuple[NDArray[np.intp], ...]
    active: NDArray[np.bool_]


def encoded(search: Search, trials: Sequence[Trial]) -> Encoded:
    """The points of `trials`: one column a parameter on its own scale, several for one whose choices have no order."""
    blocks, groups, active = [], [], []
    first = 0
    for name, dimension in search.space_dimensions.items():
        block, is_active = _columns(dimension, name, trials)
        blocks.append(block)
        active.append(is_active)
        groups.append(np.arange(first, first + block.shape[1]))
        first += block.shape[1]
    return Encoded(search.space.names, np.hstack(blocks), tuple(groups), np.column_stack(active))


def _columns(dimension: Dimension, name: str, trials: Sequence[Trial]) -> tuple[Matrix, NDArray[np.bool_]]:
    choices: Sequence[Any] = getattr(dimension, "choices", ())
    if dimension.type == "categorical" and 2 < len(choices) <= _MOST_COLUMNS:
        places = {value_key(choice): place for place, choice in enumerate(choices)}
        found = np.array([places.get(value_key(t.point[name]), -1) if name in t.point else -1 for t in trials])
        block = np.where(found[:, None] < 0, 0.5, found[:, None] == np.arange(len(choices))[None, :])
        return block.astype(float), found >= 0
    units = np.array([_unit(dimension, trial.point[name]) if name in trial.point else np.nan for trial in trials])
    known = np.isfinite(units)
    return np.where(known, np.clip(units, 0, 1), 0.5)[:, None], known


def _unit(dimension: Dimension, value: Any) -> float:
    try:
        return float(dimension.to_unit(value))
    except (ValueError, TypeError, OverflowError):
        return float("nan")  # a trial of an older form of the space has what this one has not


def ranks(values: Sequence[float]) -> Matrix:
    """The ranks of `values` in [0, 1], equal ones alike: far outliers then weigh no more than others."""
    found: Matrix = (rankdata(values) - 0.5) / max(1, len(values))
    return found
