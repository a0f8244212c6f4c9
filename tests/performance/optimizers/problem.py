"""A benchmark problem, and how its points are asked for."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpo_pilot.search import Point, SearchSpace

# A benchmark problem: a space, a function to minimise over it, and the value of its minimum.


@dataclass(frozen=True)
class Evaluation:
    """What an optimizer is told of one point.

    Attributes:
        value: what was measured, lower is better; None where the evaluation failed.
        violations: one number for each constraint, above 0 where it is broken; empty without constraints.
        true: the value without noise, which the regret is computed from.
    """

    value: float | None
    violations: tuple[float, ...] = ()
    true: float | None = None

    @property
    def feasible(self) -> bool:
        """Whether no constraint is broken."""
        return all(violation <= 0.0 for violation in self.violations)


def unconstrained(point: Mapping[str, Any]) -> tuple[float, ...]:
    """No constraint, so nothing is broken."""
    return ()


@dataclass(frozen=True)
class Problem:
    """A function over a search space.

    Attributes:
        name: as in tables and files.
        space: what is searched; its constraints are those that `violations` measures.
        function: a canonical point's value, lower is better; None where the evaluation fails. Deterministic.
        minimum: the value at the best feasible point.
        best: a point that attains `minimum`.
        violations: for each constraint a number that is above 0 where it is broken. Peers that take constraints as
            measured numbers are told these; ours read the expressions of `space`.
        noise: standard deviation of the normal noise on what is measured.
    """

    name: str
    space: SearchSpace
    function: Callable[[Mapping[str, Any]], float | None]
    minimum: float
    best: Point
    violations: Callable[[Mapping[str, Any]], tuple[float, ...]] = unconstrained
    noise: float = 0.0

    def evaluate(self, point: Mapping[str, Any], dice: random.Random) -> Evaluation:
        """Measures a point; `dice` makes the noise."""
        true = self.function(point)
        measured = true
        if self.noise:
            disturbance = dice.gauss(0.0, self.noise)  # drawn also for failures: the stream then stays in step
            measured = None if true is None else true + disturbance
        if measured is None or not math.isfinite(measured):
            return Evaluation(None, self.violations(point))
        return Evaluation(measured, self.violations(point), true)

    @cached_property
    def digest(self) -> str:
        """Changes when the problem does, so that stored results of another version are not mixed in."""
        dice = random.Random(self.name)
        probes = [self.space.decode([dice.random() for _ in self.space.names]) for _ in range(8)]
        values = [self.function(probe) for probe in [*probes, self.best]]
        shown = [None if value is None else f"{value:.6g}" for value in values]
        text = json.dumps(
            [self.space.model_dump(mode="json", exclude={"prior"}), shown, f"{self.minimum:.6g}", self.noise]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:10]


# How the points of a run are asked for: in batches, or one by one as slots come free.


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
