"""The optimizers that there are here, spaces to try them on, and what their points always are."""

from __future__ import annotations

import importlib.util
import json
import zlib
from typing import Any

from hpo_pilot.optimizers import create_optimizer, optimizer_names
from hpo_pilot.optimizers.base import Optimizer
from hpo_pilot.search import SearchSpace, point_key

MIXED = {
    "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log"},
    "momentum": {"type": "real", "low": 0.0, "high": 1.0, "when": {"solver": "sgd"}},
    "dropout": {"type": "real", "low": 0, "high": 0.5, "step": 0.05},
    "layers": {"type": "integer", "low": 1, "high": 5},
    "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
    "even": {"type": "integer", "low": 0, "high": 10, "step": 2},
    "solver": {"type": "categorical", "choices": ["adam", "sgd", "lbfgs"]},
    "odd": {"type": "categorical", "choices": [1, True, "1"]},
    "batch": {"type": "ordinal", "choices": [32, 64, 128]},
}
SIX_CELLS = {"a": {"type": "integer", "low": 1, "high": 3}, "b": {"type": "categorical", "choices": ["x", "y"]}}

#: Those that take their time.
SLOW = ("bayesian", "auto", "optuna")


def names_here() -> list[str]:
    """All of them; optuna where it is installed."""
    return [name for name in optimizer_names() if name != "optuna" or importlib.util.find_spec("optuna")]


def space_of(dimensions: dict[str, Any], *constraints: str) -> SearchSpace:
    return SearchSpace.from_dict(dimensions, constraints)


def make(name: str, space: SearchSpace, seed: int = 3, trials: int | None = 60, objectives: int = 1) -> Optimizer:
    # The grid of a finite space is made to hold every point of it, so that it can keep the promises of the others.
    grown = {"points_per_dimension": 1000} if name == "grid" and space.size < 1e5 else {}
    return create_optimizer(name, space, seed=seed, settings=grown, trials=trials, objectives=objectives)


def value_of(point: dict[str, Any]) -> float:
    """Some value that depends on every name of the point, the same in every process."""
    return zlib.crc32(point_key(point).encode()) / 2**32 + sum(v for v in point.values() if isinstance(v, float))


def check_points(space: SearchSpace, points: list[dict[str, Any]], taken: list[dict[str, Any]]) -> None:
    keys = [point_key(point) for point in points]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & {point_key(point) for point in taken}
    for point in points:
        assert point_key(space.canonical(point)) == point_key(point)
        assert json.loads(json.dumps(point)) == point
        assert all(value is None or type(value) in (int, float, str, bool) for value in point.values())
