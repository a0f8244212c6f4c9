"""The hyper-parameter point of a training: what it may hold, and whether it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from problem import TrainingError
from showers import LOWEST_ENERGY, MAXIMUM_OFFSETS

BASE_BATCH = 32  #: the batch that the learning rates are for
SCALINGS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  #: the power of batch / BASE_BATCH in the learning rates
CHOICES = {"optimizer": ("adam", "rmsprop"), "scaling": tuple(SCALINGS), "particle": tuple(MAXIMUM_OFFSETS)}
REQUIRED = ("generator_rate", "discriminator_rate", "batch", "latent", "channels")
DEFAULTS: dict[str, Any] = {
    "auxiliary_weight": 0.1,
    "total_weight": 1.0,
    "profile_weight": 10.0,
    "optimizer": "adam",
    "discriminator_steps": 1,
    "smoothing": 0.0,
    "scaling": "sqrt",
    "warmup": 0,
    "epochs": 20,
    # Of the showers that are made where no file is given.
    "events": 2000,
    "cells": 25,
    "particle": "photon",
    "low": 10.0,
    "high": 500.0,
}
#: The smallest and the largest value of each number, both allowed; whole numbers have whole limits.
LIMITS: dict[str, tuple[float, float]] = {
    "generator_rate": (0.0, 1e30),
    "discriminator_rate": (0.0, 1e30),
    "batch": (1, 65536),
    "latent": (1, 4096),
    "channels": (1, 256),
    "auxiliary_weight": (0.0, 1e6),
    "total_weight": (0.0, 1e6),
    "profile_weight": (0.0, 1e6),
    "discriminator_steps": (1, 100),
    "smoothing": (0.0, 0.5),
    "warmup": (0, 10_000),
    "epochs": (1, 100_000),
    "events": (50, 10_000_000),
    "cells": (4, 101),
    "low": (LOWEST_ENERGY, 1e6),
    "high": (LOWEST_ENERGY, 1e6),
}


def read_point(path: Path, said: dict[str, Any] | None = None) -> dict[str, Any]:
    """The point in `path`, with what it leaves out from `said`, then from the defaults.

    Raises:
        TrainingError: the file is missing or is no point of this training.
    """
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read the point from {path.name}: {error}") from error
    if not isinstance(given, dict):
        raise TrainingError(f"{path.name} must hold an object of parameters, not {type(given).__name__}")
    missing = sorted(set(REQUIRED) - given.keys())
    unknown = sorted(given.keys() - set(REQUIRED) - DEFAULTS.keys())
    if missing or unknown:
        raise TrainingError(f"{path.name}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    point = {**DEFAULTS, **(said or {}), **given}
    for name, choices in CHOICES.items():
        if point[name] not in choices:
            raise TrainingError(f"{path.name}: {name} must be one of {', '.join(choices)}, not {point[name]!r}")
    for name, (low, high) in LIMITS.items():
        value = point[name]
        kinds = int if isinstance(low, int) else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
            kind = "a whole number" if kinds is int else "a number"
            raise TrainingError(f"{path.name}: {name} must be {kind} from {low:g} to {high:g}, not {value!r}")
    if not point["low"] < point["high"]:
        raise TrainingError(f"{path.name}: low must be below high, not {point['low']:g} and {point['high']:g} GeV")
    return point


def rate_factor(point: dict[str, Any], epochs_done: float) -> float:
    """What both learning rates are multiplied with at a moment.

    They grow with the batch of all ranks, and get there in `warmup` epochs (Goyal et al., arXiv:1706.02677); for a
    batch below `BASE_BATCH` they are smaller from the beginning.
    """
    factor = (point["batch"] / BASE_BATCH) ** SCALINGS[point["scaling"]]
    reached = min(1.0, epochs_done / point["warmup"]) if point["warmup"] else 1.0
    first = min(1.0, factor)
    return float(first + (factor - first) * reached)
