"""The hyper-parameter point of a training, and the learning rate that it means at each moment. Needs no torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

BASE_BATCH = 256  #: images; the batch that `learning_rate` is for (Goyal et al., arXiv:1706.02677)
SCALINGS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  #: the power of batch / BASE_BATCH in the learning rate
#: What a point may hold: the values that may be chosen, or the lowest and the highest one.
CHOICES = {
    "optimizer": ("sgd", "lars", "larc"),
    "scaling": tuple(SCALINGS),
    "schedule": ("cosine", "polynomial", "steps", "stable"),
    "compression": ("none", "fp16"),
}
RANGES: dict[str, tuple[type, float, float]] = {
    "learning_rate": (float, 0.0, math.inf),
    "batch": (int, 1, math.inf),
    "accumulation": (int, 1, math.inf),
    "warmup": (float, 0, math.inf),
    "momentum": (float, 0, 1),
    "weight_decay": (float, 0, math.inf),
    "trust": (float, 0, math.inf),
    "label_smoothing": (float, 0, 1),
    "epochs": (int, 1, math.inf),
}
OPTIONAL = {"epochs"}  #: else the command line says it
COOLDOWN = 0.1  #: of the epochs: the length of the fall after a `stable` training (Hägele et al., arXiv:2405.18392)
REQUIRED = {"learning_rate", "batch"}
DEFAULTS = {
    "accumulation": 1,
    "scaling": "linear",
    "warmup": 5,
    "schedule": "cosine",
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "trust": 1e-3,
    "label_smoothing": 0.0,
    "compression": "none",
}


class TrainingError(Exception):
    """The training gives no figure of merit; the message says why and goes to output.json."""


class ImageError(TrainingError):
    """An image cannot be read: one rank alone knows of it."""


def read_point(path: Path) -> dict[str, Any]:
    """The hyper-parameter point in `path`, with the defaults of what it leaves out.

    Raises:
        TrainingError: the file is missing or is no point of this training.
    """
    try:
        point = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot read the point from {path.name}: {error}") from error
    if not isinstance(point, dict):
        raise TrainingError(f"{path.name} must hold an object of parameters, not {type(point).__name__}")
    missing = sorted(REQUIRED - point.keys())
    unknown = sorted(point.keys() - REQUIRED - OPTIONAL - DEFAULTS.keys())
    if missing or unknown:
        # An unknown name is refused, not ignored: a misspelt parameter would be scanned without any effect.
        raise TrainingError(f"{path.name}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    for name, value in point.items():
        trouble = _trouble(name, value)
        if trouble:
            raise TrainingError(f"{path.name}: {name} must be {trouble}, not {value!r}")
    return {**DEFAULTS, **point}


def _trouble(name: str, value: Any) -> str:
    """What `value` would have to be; empty where it is that."""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])}"
    kind, low, high = RANGES[name]
    wanted = "a whole number" if kind is int else "a number"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or (kind is int and value % 1 != 0):
        return wanted
    # A learning rate of 0 trains nothing, a momentum of 1 forgets nothing: open where these would be.
    above = value > low if name in ("learning_rate", "trust") else value >= low
    if not (above and value < high):  # so said that NaN is outside
        return f"{wanted} from {low:g}" + (f" to below {high:g}" if high < math.inf else "")
    return ""


def learning_rate(point: dict[str, Any], done: float, epochs: int) -> float:
    """The learning rate at a moment: grown with the batch, reached gradually from 0, then falling.

    Args:
        point: from read_point.
        done: epochs done, with the fraction of the one under way.
        epochs: of the whole training.
    """
    factor = (point["batch"] * point["accumulation"] / BASE_BATCH) ** SCALINGS[point["scaling"]]
    if point["schedule"] == "stable":  # it falls in further epochs; the form is that of arXiv:2405.18392, section 3
        grown = min(1.0, min(done, epochs) / point["warmup"]) if point["warmup"] else 1.0
        fall = 1.0 - math.sqrt(min(1.0, max(0.0, done / epochs - 1.0) / COOLDOWN))
        return float(point["learning_rate"] * factor * grown * fall)
    warmup = min(point["warmup"], epochs)
    if done < warmup:
        return float(point["learning_rate"] * factor * done / warmup)  # arXiv:1812.01187, section 3.1
    left = 1.0 - (done - warmup) / max(epochs - warmup, 1e-12)
    if point["schedule"] == "cosine":
        fall = (1.0 + math.cos(math.pi * (1.0 - left))) / 2.0
    elif point["schedule"] == "polynomial":
        fall = left**2  # as for LARS, arXiv:1708.03888
    else:
        # A tenth after each third, as 30, 60 and 80 of 90 epochs; of the whole training, warm-up included.
        fall = 0.1 ** sum(done >= epochs * part for part in (1 / 3, 2 / 3, 8 / 9))
    return float(point["learning_rate"] * factor * fall)
