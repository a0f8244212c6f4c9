"""Points by seed of every optimizer: asked and told generation by generation, with some still out."""

from __future__ import annotations

import itertools
import math
from typing import Any

from tests.recorded.inside import InputError, SearchSpace, create_optimizer
from tests.recorded.stage import Stage, part

SPACES: dict[str, dict[str, Any]] = {
    "real": {name: {"type": "real", "low": -1.0, "high": 2.0} for name in ("x", "y")},
    "mixed": {
        "rate": {"type": "real", "low": 1e-4, "high": 1e-1, "scale": "log"},
        "drop": {"type": "real", "low": 0.0, "high": 0.5, "step": 0.05},
        "layers": {"type": "integer", "low": 1, "high": 8},
        "batch": {"type": "ordinal", "choices": [32, 64, 128]},
        "solver": {"type": "categorical", "choices": ["adam", "sgd", None]},
        "momentum": {"type": "real", "low": 0.5, "high": 0.99, "when": {"solver": "sgd"}},
    },
}
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("auto", {}),
    ("bayesian", {}),
    ("evolutionary", {"population": 4}),
    ("cma", {}),
    ("random", {}),
    ("grid", {}),
    ("optuna", {}),
]
_TRIALS, _WIDTH, _ROUNDS = 18, 3, 6


def _value(point: dict[str, Any]) -> float:
    """A figure that any point has: exact in its digits, so that it is the same on any machine."""
    known = {None: 0.5, "adam": 0.25, "sgd": 0.125}
    figures = [known[one] if one in known else float(one) for one in point.values()]
    return round(sum((figure - 0.3) ** 2 for figure in figures if math.isfinite(figure)), 6)


def _asked(name: str, settings: dict[str, Any], space: str, objectives: int) -> list[Any]:
    definition = {**SPACES[space]}
    made = SearchSpace.from_dict(definition)
    optimizer = create_optimizer(name, made, seed=11, settings=settings, trials=_TRIALS, objectives=objectives)
    points: list[dict[str, Any]] = []
    out: list[dict[str, Any]] = []
    count = itertools.count(1)
    for _ in range(_ROUNDS):
        new = optimizer.ask(_WIDTH, out)
        points += new
        told, out = [*out, *new[:-1]], new[-1:]
        results = []
        for point in told:
            value = _value(point)
            values = value if objectives == 1 else (value, 1.0 - value / 2)
            results.append((point, None if next(count) == 4 else values))
        optimizer.tell(results)
    return points


@part
def points(stage: Stage) -> dict[str, Any]:
    """Points of every optimizer on two spaces, and of those that can with two objectives."""
    found: dict[str, Any] = {}
    for name, settings in OPTIMIZERS:
        for space in SPACES:
            for objectives in (1, 2):
                try:
                    found[f"{name} {space} {objectives}"] = _asked(name, settings, space, objectives)
                except InputError as error:
                    found[f"{name} {space} {objectives}"] = type(error).__name__
    return found
