"""Stock scikit-optimize: `Optimizer(base_estimator="GP")`, `ask(n)` with its default strategy, `tell` of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from skopt import Optimizer
from skopt import space as skopt_space

from hpo_pilot.search import Categorical, Integer, Ordinal, Point, Real
from tests.performance.optimizers.problem import Evaluation, Problem, Setting
from tests.performance.optimizers.runners.runner import Proposal, Runner


def _dimension(dimension: Any) -> Any:
    match dimension:
        case Real():
            return skopt_space.Real(
                dimension.low, dimension.high, prior="log-uniform" if dimension.scale == "log" else "uniform"
            )
        case Integer():
            return skopt_space.Integer(
                dimension.low, dimension.high, prior="log-uniform" if dimension.scale == "log" else "uniform"
            )
        case Ordinal():
            return skopt_space.Integer(0, len(dimension.choices) - 1)
        case Categorical():
            return skopt_space.Categorical(dimension.choices)
    raise TypeError(repr(dimension))


class SkoptStock(Runner):
    """Constraints, conditions, steps and failures it has none of; batches only."""

    libraries = ("scikit-optimize", "scikit-learn", "scipy", "numpy")
    asynchronous = False

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        dimensions = [_dimension(dimension) for dimension in problem.space.dimensions.values()]
        self._optimizer = Optimizer(dimensions, base_estimator="GP", random_state=seed)

    def ask(self, n: int) -> list[Proposal]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a point evaluated before, a bound of the kernel: it goes on
            return [Proposal(self._point(x), x) for x in self._optimizer.ask(n)]

    def _point(self, x: Sequence[Any]) -> Point:
        point: Point = {}
        for (name, dimension), value in zip(self.space.dimensions.items(), x, strict=True):
            native = value.item() if hasattr(value, "item") else value
            point[name] = dimension.choices[native] if isinstance(dimension, Ordinal) else dimension.canonical(native)
        return point

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._optimizer.tell([p.handle for p, _ in results], [e.value for _, e in results])
