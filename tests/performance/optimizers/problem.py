"""A benchmark problem, and how its points are asked for."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.nondominated import costs_of, hypervolume

# A benchmark problem: a space, a function to minimise over it, and the value of its minimum.

#: One value, or a tuple of them where a problem has two objectives.
Value: TypeAlias = float | tuple[float, ...]


@dataclass(frozen=True)
class Evaluation:
    """What an optimizer is told of one point.

    Attributes:
        value: what was measured, lower is better; None where the evaluation failed.
        violations: one number for each constraint, above 0 where it is broken; empty without constraints.
        true: the value without noise, which the regret is computed from.
    """

    value: Any  # Value | None
    violations: tuple[float, ...] = ()
    true: Any = None

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
        measure: draws what is measured at a point of this true value; where noise is not normal.
        ideal, nadir: of two objectives, the best value of each, and the worst of each on the front. Regret is then
            one less the hypervolume between front and nadir in units of ideal and nadir; one more the distance to that
            box while no point is in it (the indicator of Brockhoff et al. 2016, https://arxiv.org/abs/1605.01746).
    """

    name: str
    space: SearchSpace
    function: Callable[[Mapping[str, Any]], Value | None]
    minimum: float
    best: Point
    violations: Callable[[Mapping[str, Any]], tuple[float, ...]] = unconstrained
    noise: float = 0.0
    measure: Callable[[Mapping[str, Any], float, random.Random], float] | None = None
    ideal: tuple[float, ...] = ()
    nadir: tuple[float, ...] = ()

    @property
    def objectives(self) -> int:
        """How many values a point has."""
        return len(self.nadir) or 1

    @property
    def is_noisy(self) -> bool:
        """Whether the same point is measured differently each time."""
        return self.noise > 0.0 or self.measure is not None

    def front_regret(self, values: Sequence[tuple[float, ...]]) -> float:
        """The regret of points with these values, of two objectives."""
        low, high = np.array(self.ideal), np.array(self.nadir)
        costs = (costs_of(values) - low) / (high - low)
        volume = hypervolume(costs, (1.0, 1.0))
        if volume > 0.0:
            return 1.0 - volume
        return 1.0 + float(np.linalg.norm(np.maximum(costs - 1.0, 0.0), axis=1).min())

    def evaluate(self, point: Mapping[str, Any], dice: random.Random) -> Evaluation:
        """Measures a point; `dice` makes the noise."""
        true = self.function(point)
        measured = true
        if self.measure and true is not None:
            measured = self.measure(point, true, dice)
        if self.noise:
            disturbance = dice.gauss(0.0, self.noise)  # drawn also for failures: the stream then stays in step
            measured = None if true is None else true + disturbance
        if measured is None or not np.all(np.isfinite(measured)):
            return Evaluation(None, self.violations(point))
        return Evaluation(measured, self.violations(point), true)

    @cached_property
    def digest(self) -> str:
        """Changes when the problem does, so that stored results of another version are not mixed in."""
        dice = random.Random(self.name)
        probes = [self.space.decode([dice.random() for _ in self.space.names]) for _ in range(8)]
        values = [self.function(probe) for probe in [*probes, self.best]]
        shown = [None if value is None else _shown(value) for value in values]
        text = json.dumps(
            [self.space.model_dump(mode="json", exclude={"prior"}), shown, f"{self.minimum:.6g}", self.noise]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def _shown(value: Value) -> str:
    return " ".join(f"{each:.6g}" for each in value) if isinstance(value, tuple) else f"{value:.6g}"


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
