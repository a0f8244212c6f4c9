"""What the benchmark asks of every optimizer, and this product's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers import create_optimizer
from hpo_pilot.search import Integer, Point, Real, SearchSpace
from tests.performance.optimizers.problem import Evaluation, Problem, Setting

# What the benchmark asks of every optimizer, ours or a peer.


@dataclass(frozen=True, eq=False)
class Proposal:
    """A point to evaluate, and what its runner wants back with the result."""

    point: Point
    handle: Any = None


class Runner(ABC):
    """One optimizer at work on one problem.

    `ask` returns n proposals, fewer only where the space has no more. What was asked and not told is pending, and the
    runner knows it. `tell` gives results in the order in which they came: a whole batch, or one by one. A proposal may
    be infeasible or a repeat: it is evaluated and paid for all the same.

    Args of every constructor: the problem (its space and what its constraints are called; runners never call its
    function), the setting (slots and budget), the seed.
    """

    #: What identifies the code that runs; results of other versions are not mixed in.
    libraries: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[int] = 1
    asynchronous: ClassVar[bool] = True
    """Whether it can propose a point while others are out."""
    least_slots: ClassVar[int] = 1
    """Below this it is another runner under a second name, and the suite leaves it out."""

    @classmethod
    def takes(cls, problem: Problem) -> bool:
        """Whether it can search this problem at all."""
        return problem.objectives == 1

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        self.problem = problem
        self.space = problem.space
        self.setting = setting
        self.seed = seed

    @abstractmethod
    def ask(self, n: int) -> list[Proposal]:
        """Proposes."""

    @abstractmethod
    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        """Learns."""

    def recommended(self) -> Point | None:
        """The point that its user would take in the end; None: the one that looked best."""
        return None


# The unit cube for peers that know only vectors: a coordinate for each dimension, inactive ones ignored.


def active_point(space: SearchSpace, values: Mapping[str, Any]) -> Point:
    """The point with these values, without those of inactive dimensions."""
    point: Point = {}
    missing = dict(space.dimensions)
    while missing:
        ready = [name for name, dimension in missing.items() if not dimension.when.keys() & missing.keys()]
        for name in ready:
            del missing[name]
            if space.is_active(name, point):
                point[name] = space.dimensions[name].canonical(values[name])
    return {name: point[name] for name in space.names if name in point}


def has_steps(space: SearchSpace) -> bool:
    """Whether a number has only values that are a step apart, for which some peers have no parameter."""
    return any(
        (isinstance(dimension, Integer) and dimension.step > 1)
        or (isinstance(dimension, Real) and dimension.step is not None)
        for dimension in space.dimensions.values()
    )


# This product's own optimizers, by name.


class Ours(Runner):
    """`create_optimizer(name, …)`, told the budget as a search file tells it."""

    @classmethod
    def takes(cls, problem: Problem) -> bool:
        """Everything."""
        return True

    def __init__(self, name: str, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        several = {"objectives": problem.objectives} if problem.objectives > 1 else {}
        self._optimizer = create_optimizer(name, problem.space, seed=seed, trials=setting.evaluations, **several)
        self._pending: dict[int, Proposal] = {}

    def ask(self, n: int) -> list[Proposal]:
        """Everything that is out is handed in as pending."""
        try:
            points = self._optimizer.ask(n, [proposal.point for proposal in self._pending.values()])
        except ExhaustedError:
            return []
        proposals = [Proposal(point) for point in points]
        self._pending.update((id(proposal), proposal) for proposal in proposals)
        return proposals

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        """An infeasible point would be told as failed; there should be none."""
        for proposal, _ in results:
            del self._pending[id(proposal)]
        self._optimizer.tell([(p.point, e.value if e.feasible else None) for p, e in results])

    def recommended(self) -> Point | None:
        """As `hpo-pilot best`."""
        return next((found.point for found in self._optimizer.recommend()), None)
