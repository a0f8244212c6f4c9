"""The hyper-parameter point of a training, and the text that it reads. Needs no torch."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

#: What a point may hold: the values that may be chosen, or type, lowest and highest value.
CHOICES: dict[str, tuple[Any, ...]] = {"reshard": (True, False)}
RANGES: dict[str, tuple[type, float, float]] = {
    "learning_rate": (float, 0.0, 10.0),
    "batch": (int, 1, 1 << 20),
    "layers": (int, 1, 1000),
    "heads": (int, 1, 1000),
    "head_width": (int, 1, 1024),
    "weight_decay": (float, 0.0, 10.0),
    "warmup": (int, 0, 1 << 30),
    "steps": (int, 1, 1 << 30),
}
DEFAULTS = {
    "layers": 2,
    "heads": 4,
    "head_width": 16,
    "weight_decay": 0.01,
    "warmup": 20,
    "steps": 300,
    "reshard": True,
}
REQUIRED = {"learning_rate", "batch"}
ALPHABET = "0123456789+=\n"
CONTEXT = 32  #: characters that the network sees at once
LINES, TEXT_SEED = 4000, 20_240_229  #: of the made text: every trial, on any number of ranks, reads the same
PARTS_WITHOUT_FOLDS = 5


class TrainingError(Exception):
    """The training gives no figure of merit; the message says why and goes to output.json."""


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
    unknown = sorted(point.keys() - RANGES.keys() - CHOICES.keys())
    if missing or unknown:
        raise TrainingError(f"{path.name}: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}")
    for name, value in point.items():
        if name in CHOICES:
            if not isinstance(value, bool):
                raise TrainingError(f"{path.name}: {name} must be true or false, not {value!r}")
            continue
        kind, low, high = RANGES[name]
        accepted = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, accepted) or not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            raise TrainingError(f"{path.name}: {name} must be {what} from {low:g} to {high:g}, not {value!r}")
    return {**DEFAULTS, **point}


def cooldown(point: dict[str, Any]) -> int:
    """The number of steps after the last one in which the learning rate falls, for a training to a level."""
    return -(-point["steps"] // 10)  # a tenth is enough: Hägele et al., arXiv:2405.18392


def learning_rate(point: dict[str, Any], step: int, *, has_level: bool = False) -> float:
    """The learning rate of a step, counted from 0: it grows during the warm-up, then falls as a cosine.

    With a level it is constant until the last step, which later jobs go on from, and falls after it (same source).
    """
    grown = min(1.0, min(step + 1, point["steps"]) / max(1, point["warmup"]))
    if has_level:
        fall = 1 - math.sqrt(max(0, step + 1 - point["steps"]) / cooldown(point))
        return float(point["learning_rate"] * grown * fall)
    if step < point["warmup"]:
        return float(point["learning_rate"] * grown)
    done = (step - point["warmup"]) / max(1, point["steps"] - point["warmup"])
    return float(point["learning_rate"] * (1 + math.cos(math.pi * done)) / 2)


def made_text(fold: int, folds: int) -> tuple[str, str]:
    """The text to learn from, and the text held out: sums such as `48+87=135`, one a line.

    Raises:
        TrainingError: there is no such fold.
    """
    if not 0 <= fold < folds:
        raise TrainingError(f"there is no fold {fold} of {folds}: HPO_PILOT_FOLD counts from 0")
    generator = random.Random(TEXT_SEED)  # noqa: S311  no secret
    pairs = [(generator.randrange(100), generator.randrange(100)) for _ in range(LINES)]
    lines = [f"{a}+{b}={a + b}\n" for a, b in pairs]
    parts = folds if folds > 1 else PARTS_WITHOUT_FOLDS
    learnt = [line for number, line in enumerate(lines) if number % parts != fold]
    return "".join(learnt), "".join(lines[fold::parts])
