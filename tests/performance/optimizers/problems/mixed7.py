"""Seven hyper-parameters of a network as people scan them: log scales, whole numbers, choices that interact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpo_pilot.search import SearchSpace
from tests.performance.optimizers.problem import Problem

#: log10 of the best learning rate of each solver at width 256, and what the solver costs at its best. The best point is
#: away from the middle of the space, where some optimizers start.
_SOLVERS = {"adam": (-3.4, 0.0), "sgd": (-1.6, 0.06), "rmsprop": (-4.2, 0.03)}
_ACTIVATIONS = {"gelu": 0.0, "relu": 0.02, "tanh": 0.08, "logistic": 0.25}


def _value(point: Mapping[str, Any]) -> float:
    best_lr, cost = _SOLVERS[point["solver"]]
    octaves = math.log2(point["width"] / 256)
    off = math.log10(point["lr"]) - best_lr + 0.12 * octaves  # wider networks want smaller steps
    best_dropout = 0.15 + 0.03 * octaves + 0.02 * (point["layers"] - 6)
    value: float = (
        0.30 * off * off / (1 + 0.2 * abs(off))
        + 0.02 * (math.log10(point["weight_decay"]) + 5) ** 2
        + 2.0 * (point["dropout"] - best_dropout) ** 2
        + 0.015 * (point["layers"] - 6) ** 2
        + 0.03 * octaves * octaves
        + cost
        + _ACTIVATIONS[point["activation"]] * (1 + 0.2 * abs(point["layers"] - 6))
    )
    return value


def mixed7() -> Problem:
    space = SearchSpace.from_dict(
        {
            "lr": {"type": "real", "low": 1e-5, "high": 1e-1, "scale": "log"},
            "weight_decay": {"type": "real", "low": 1e-6, "high": 1e-2, "scale": "log"},
            "dropout": {"type": "real", "low": 0.0, "high": 0.6},
            "layers": {"type": "integer", "low": 1, "high": 8},
            "width": {"type": "integer", "low": 16, "high": 512, "scale": "log"},
            "activation": {"type": "categorical", "choices": ["relu", "tanh", "logistic", "gelu"]},
            "solver": {"type": "categorical", "choices": ["sgd", "adam", "rmsprop"]},
        }
    )
    # Every term is 0 or more, and all are 0 here.
    best = {
        "lr": 10**-3.4,
        "weight_decay": 1e-5,
        "dropout": 0.15,
        "layers": 6,
        "width": 256,
        "activation": "gelu",
        "solver": "adam",
    }
    return Problem("mixed7", space, _value, 0.0, best)
