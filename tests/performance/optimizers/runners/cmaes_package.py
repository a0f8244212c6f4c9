"""CMA-ES by the package `cmaes`, restarted as its documentation shows.

Settings: continuous spaces by `CMA` in the unit cube (on the dimension's scale), from the centre, with a first step of
a fifth of the range, and restarts from a random place with twice the population (its IPOP example). Every other space
by `CatCMAwM`, which the documentation recommends for mixed ones, with a first step of twice its default, that is a
sixth of the range, as Optuna starts CMA-ES: better on the development problems than the default, and than `CMAwM`.
A generation is as many points as there are slots; `CmaesQuarter`'s is a quarter of that, for where slots are many: on
the development problems the better choice for batches of 64. (The package's own default, 4 + 3 ln d, was worse in
batches of 8 and of 64.) When points are asked one by one, or more than a generation, generations are formed in the
order in which results come.

Constraints are not known to the package: an infeasible point ranks behind every feasible one, by how much is broken
(Deb's rule), and so does a failed one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from cmaes import CMA, CatCMAwM

from hpo_pilot.search import Categorical, Integer, Point, Real
from tests.performance.optimizers.problem import Evaluation, Problem, Setting
from tests.performance.optimizers.runners.runner import Proposal, Runner, active_point

_FIRST_STEP = 0.2  # of the range
_MIXED_FIRST_STEP = 2.0  # in units of CatCMAwM's default


class Cmaes(Runner):
    """CMA or CatCMAwM, a generation at a time."""

    libraries = ("cmaes",)
    generations_per_batch = 1

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        self._rng = np.random.default_rng(seed)
        self._population = max(min(8, setting.slots), setting.slots // self.generations_per_batch)
        self._worst = 0.0  # of the feasible values
        names = problem.space.names
        kinds = {name: _kind(problem.space.dimensions[name]) for name in names}
        self._x = [name for name in names if kinds[name] == "continuous"]
        self._z = [name for name in names if kinds[name] == "discrete"]
        self._c = [name for name in names if kinds[name] == "category"]
        self._start(np.full(len(names), 0.5))

    def _start(self, mean: Any) -> None:
        self._results: list[tuple[Any, Evaluation]] = []
        seed = int(self._rng.integers(2**31))
        if len(self._x) == len(self.space.names):
            bounds = np.tile([0.0, 1.0], (len(mean), 1))
            self._optimizer = CMA(mean, _FIRST_STEP, bounds=bounds, population_size=self._population, seed=seed)
            return
        dimensions = self.space.dimensions
        self._optimizer = CatCMAwM(
            x_space=[[0.0, 1.0]] * len(self._x) or None,
            z_space=[_places(dimensions[name]) for name in self._z] or None,
            c_space=[int(dimensions[name].size) for name in self._c] or None,
            population_size=self._population,
            sigma=_MIXED_FIRST_STEP,
            seed=seed,
        )

    def ask(self, n: int) -> list[Proposal]:
        """From the present distribution, however many are out."""
        proposals = []
        for _ in range(n):
            solution = self._optimizer.ask()
            proposals.append(Proposal(self._point(solution), (self._optimizer, solution)))
        return proposals

    def _point(self, solution: Any) -> Point:
        dimensions = self.space.dimensions
        if isinstance(solution, np.ndarray):
            return self.space.decode(np.clip(solution, 0.0, 1.0).tolist())
        values: Point = {}
        for index, name in enumerate(self._x):
            values[name] = dimensions[name].from_unit(float(solution.x[index]))
        for index, name in enumerate(self._z):
            places = np.array(_places(dimensions[name]))
            values[name] = dimensions[name].grid(10**6)[int(np.argmin(np.abs(places - solution.z[index])))]
        for index, name in enumerate(self._c):
            values[name] = dimensions[name].grid(10**6)[int(np.argmax(solution.c[index]))]
        return active_point(self.space, values)

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        for proposal, evaluation in results:
            optimizer, solution = proposal.handle
            if optimizer is not self._optimizer:
                continue  # from before a restart
            self._results.append((solution, evaluation))
            if len(self._results) == self._population:
                self._update()

    def recommended(self) -> Point | None:
        """The mean of the normal distribution, as pycma's `xfavorite`; choices have no mean."""
        return self._point(self._optimizer.mean) if isinstance(self._optimizer, CMA) else None

    def _update(self) -> None:
        generation, self._results = self._results, []
        values = [e.value for _, e in generation if e.feasible and e.value is not None]
        self._worst = max([self._worst, *values])
        told = [(solution, self._ranked(evaluation)) for solution, evaluation in generation]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # equal values in a generation
            warnings.simplefilter("ignore", UserWarning)  # a space of categories only has no condition to stop
            self._optimizer.tell(told)
            is_over = self._optimizer.should_stop()
        if is_over:
            self._population *= 2
            self._start(self._rng.random(len(self.space.names)))

    def _ranked(self, evaluation: Evaluation) -> float:
        if evaluation.feasible and evaluation.value is not None:
            return evaluation.value
        return self._worst + max(1e-6, sum(max(0.0, v) for v in evaluation.violations))


class CmaesQuarter(Cmaes):
    """The same with four generations to a batch, where a batch is wide enough for that."""

    generations_per_batch = 4
    least_slots = 32


def _kind(dimension: Any) -> str:
    if isinstance(dimension, Categorical) or dimension.size == 2:
        return "category"  # also for two values: as the package's documentation recommends
    return "continuous" if math.isinf(dimension.size) else "discrete"


def _places(dimension: Any) -> list[float]:
    """The values of an ordered, discrete dimension, as numbers from 0 to 1 on its scale."""
    values = dimension.grid(10**6)
    if isinstance(dimension, Integer | Real) and dimension.scale == "log":
        low, high = math.log(values[0]), math.log(values[-1])
        return [(math.log(value) - low) / (high - low) for value in values]
    return [index / (len(values) - 1) for index in range(len(values))]
