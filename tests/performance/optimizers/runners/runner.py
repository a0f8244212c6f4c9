"""What the benchmark asks of every optimizer, ours or a peer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hpo_pilot.search import Point
from tests.performance.optimizers.problem import Evaluation, Problem
from tests.performance.optimizers.setting import Setting


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
