"""How the points of a run are asked for: in batches, or one by one as slots come free."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """How many points are out at a time, and how many there are.

    Attributes:
        name: as in tables and files.
        slots: points asked together, or out at the same time.
        rounds: how often each slot is used; slots × rounds evaluations are spent.
        asynchronous: a new point is asked for as soon as a slot is free, with the others pending; else in batches.
    """

    name: str
    slots: int
    rounds: int
    asynchronous: bool = False

    @property
    def evaluations(self) -> int:
        """The budget of a run."""
        return self.slots * self.rounds


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("8x12", 8, 12),
        Setting("64x8", 64, 8),
        Setting("async8", 8, 12, asynchronous=True),
        Setting("async64", 64, 8, asynchronous=True),
    )
}

#: The spread of run times: the standard deviation of their logarithm. One in forty takes seven times the median.
DURATION_SIGMA = 1.0


def durations(problem: str, setting: Setting, seed: int) -> list[float]:
    """How long each evaluation takes, in the order of starts: the same for every runner. In medians."""
    dice = random.Random(f"durations of {problem} {setting.name} {seed}")
    return [dice.lognormvariate(0.0, DURATION_SIGMA) for _ in range(setting.evaluations)]
