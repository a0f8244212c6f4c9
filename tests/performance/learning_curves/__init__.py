"""Learning curves of real trainings, for benchmarks that replay them; `record.py` beside this made them."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.steering.memory_slots import Training

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Problem:
    """The trainings of one payload.

    Attributes:
        name: of the payload.
        goal: `minimize` or `maximize`.
        steps: of a whole training.
        points: of each point the trainings of its folds.
        at: the points themselves.
    """

    name: str
    goal: str
    steps: int
    points: list[list[Training]]
    at: list[dict[str, Any]]


def load(name: str) -> Problem:
    """The trainings of a payload, as they were recorded."""
    with gzip.open(FOLDER / f"{name}.json.gz", "rt") as file:
        read: dict[str, Any] = json.load(file)
    points = [[Training(**fold) for fold in one["folds"]] for one in read["points"]]
    return Problem(name, read["goal"], read["steps"], points, [one["point"] for one in read["points"]])
