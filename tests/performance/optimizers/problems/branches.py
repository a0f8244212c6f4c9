"""Three kinds of model, each with dimensions of its own, one with dimensions that depend on another: `when`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

_KERNELS = {"rbf": 0.0, "poly": 0.07, "sigmoid": 0.2}


def _network(point: Mapping[str, Any]) -> float:
    layers = int(point["layers"])
    lr = math.log10(point["lr"]) + 3.8 + 0.2 * (layers - 2)
    value = 0.2 * lr * lr + (0.05, 0.0, 0.03)[layers - 1]
    value += 0.03 * math.log2(point["width1"] / 224) ** 2
    if layers >= 2:
        value += 0.03 * math.log2(point["width2"] / 20) ** 2
    if layers >= 3:
        value += 0.03 * math.log2(point["width3"] / 24) ** 2
    return value


def _trees(point: Mapping[str, Any]) -> float:
    depth = int(point["depth"]) - 7 - 2 * (math.log10(point["shrinkage"]) + 1)
    return (
        0.02 * depth * depth
        + 0.1 * (math.log10(point["shrinkage"]) + 1) ** 2
        + 0.2 * (float(point["bagging"]) - 0.7) ** 2
        + 0.04  # the best of this branch stays behind the network's
    )


def _vectors(point: Mapping[str, Any]) -> float:
    ridge = math.log10(point["cost"]) + math.log10(point["gamma"])
    return 0.05 * ridge * ridge + 0.02 * (math.log10(point["cost"]) - 1) ** 2 + _KERNELS[point["kernel"]] + 0.02


_BRANCHES = {"network": _network, "trees": _trees, "vectors": _vectors}


def _value(point: Mapping[str, Any]) -> float:
    cut: float = 0.5 * (point["features"] - 0.85) ** 2
    return _BRANCHES[point["model"]](point) + cut


def branches() -> Problem:
    """A network of two layers is best, away from the middle; the other branches come within 0.02 and 0.04 of it."""
    width = {"type": "integer", "low": 8, "high": 512, "scale": "log"}
    space = SearchSpace.from_dict(
        {
            "model": {"type": "categorical", "choices": ["vectors", "trees", "network"]},
            "features": {"type": "real", "low": 0.1, "high": 1.0},
            "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log", "when": {"model": "network"}},
            "layers": {"type": "integer", "low": 1, "high": 3, "when": {"model": "network"}},
            "width1": {**width, "when": {"model": "network"}},
            "width2": {**width, "when": {"layers": [2, 3]}},
            "width3": {**width, "when": {"layers": 3}},
            "depth": {"type": "integer", "low": 2, "high": 12, "when": {"model": "trees"}},
            "shrinkage": {"type": "real", "low": 1e-3, "high": 1.0, "scale": "log", "when": {"model": "trees"}},
            "bagging": {"type": "real", "low": 0.3, "high": 1.0, "when": {"model": "trees"}},
            "cost": {"type": "real", "low": 1e-2, "high": 1e4, "scale": "log", "when": {"model": "vectors"}},
            "gamma": {"type": "real", "low": 1e-5, "high": 1e1, "scale": "log", "when": {"model": "vectors"}},
            "kernel": {"type": "categorical", "choices": ["poly", "rbf", "sigmoid"], "when": {"model": "vectors"}},
        }
    )
    best = {"model": "network", "features": 0.85, "lr": 10**-3.8, "layers": 2, "width1": 224, "width2": 20}
    return Problem("branches", space, _value, 0.0, best)
