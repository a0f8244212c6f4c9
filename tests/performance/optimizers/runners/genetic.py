"""Two evolutions that peers stand for: DEAP's (μ + λ) with the operators of its examples, and the seeds' recipe.

Both live in the unit cube, a gene for each dimension (logarithmic ones on their scale); a category is the share of
[0, 1] that its gene falls in, rounded down; inactive genes are carried along. Neither knows constraints: what is broken
comes first when two are compared, then the value (Deb's rule). A generation is as many points as there are slots; when
points are asked one by one, more children are bred from the same parents until a generation's results are there.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deap import base, tools
from deap.algorithms import varOr

from tests.performance.optimizers.problem import Evaluation, Problem, Setting
from tests.performance.optimizers.runners.runner import Proposal, Runner

#: Up to here survivors are chosen by `selBest`.
_SMALL_GENERATION = 16


class _Fitness(base.Fitness):  # type: ignore[misc]  # DEAP ships no types
    """How much is broken, then the value; both lower is better."""

    weights = (-1.0, -1.0)


class _Individual(list[float]):
    def __init__(self, genes: Sequence[float]) -> None:
        super().__init__(genes)
        self.fitness = _Fitness()


class _Genetic(Runner):
    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        self._dice = random.Random(f"{type(self).__name__} {seed}")
        self._population: list[_Individual] = []
        self._children: list[_Individual] = []
        self._generation = 0

    def ask(self, n: int) -> list[Proposal]:
        """Random ones first, then children of the present population."""
        if not self._population:
            genes = len(self.space.names)
            fresh = [_Individual([self._dice.random() for _ in range(genes)]) for _ in range(n)]
        else:
            fresh = self._breed(n)
        return [Proposal(self.space.decode(individual), individual) for individual in fresh]

    def tell(self, results: Sequence[tuple[Proposal, Evaluation]]) -> None:
        """A generation is complete when as many results as slots have come."""
        for proposal, evaluation in results:
            broken = sum(max(0.0, violation) for violation in evaluation.violations)
            failed = evaluation.value is None
            proposal.handle.fitness.values = (1e300, 0.0) if failed else (broken, evaluation.value)
            self._children.append(proposal.handle)
            if len(self._children) == self.setting.slots:
                self._generation += 1
                self._select(self._children)
                self._children = []

    @abstractmethod
    def _breed(self, n: int) -> list[_Individual]:
        """That many children of the population."""

    @abstractmethod
    def _select(self, children: list[_Individual]) -> None:
        """The next population."""


class DeapMuPlusLambda(_Genetic):
    """`eaMuPlusLambda`'s loop: children by crossover or by mutation, survivors from parents and children together.

    Of the variants that DEAP's examples have, the best on the development problems: blend crossover (α 0.5) with
    probability 0.6, Gaussian mutation of every gene (σ 0.1 of the range) with 0.3, μ = λ = slots; the survivors are
    the best (`selBest`) where a generation is small and won by tournaments of three where it is wide; genes are clipped
    at the bounds, as the tutorial's decorator does it. A parent that is passed on unchanged keeps its fitness and
    costs no evaluation, so another child is bred in its place.
    """

    libraries = ("deap",)

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        self._toolbox = base.Toolbox()
        self._toolbox.register("mate", tools.cxBlend, alpha=0.5)
        self._toolbox.register("mutate", tools.mutGaussian, mu=0.0, sigma=0.1, indpb=1.0)
        if setting.slots <= _SMALL_GENERATION:
            self._toolbox.register("select", tools.selBest)
        else:
            self._toolbox.register("select", tools.selTournament, tournsize=3)

    def _breed(self, n: int) -> list[_Individual]:
        children: list[_Individual] = []
        with self._randomness():
            while len(children) < n:
                bred = varOr(self._population, self._toolbox, n - len(children), cxpb=0.6, mutpb=0.3)
                children += [child for child in bred if not child.fitness.valid]
        for child in children:
            child[:] = [min(1.0, max(0.0, gene)) for gene in child]
        return children

    def _select(self, children: list[_Individual]) -> None:
        with self._randomness():
            self._population = self._toolbox.select(self._population + children, self.setting.slots)

    @contextmanager
    def _randomness(self) -> Iterator[None]:
        """DEAP draws from Python's own generator: seeded here, and put back as it was."""
        state = random.getstate()
        random.seed(self._dice.random())
        try:
            yield
        finally:
            random.setstate(state)


class SeedsEvolution(_Genetic):
    """The recipe as the talk states it, taken literally.

    The fittest 20% stay, parents by binary tournament, ``r (p_A - p_B) + p_A`` and the non-uniform mutation on every
    gene; what leaves the range is set on its bound. A population is 20% old and one batch of children.
    """

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        super().__init__(problem, setting, seed)
        self._kept = max(1, round(setting.slots / 0.8 * 0.2))

    def _breed(self, n: int) -> list[_Individual]:
        return [self._child() for _ in range(n)]

    def _tournament(self) -> _Individual:
        first, second = (self._dice.choice(self._population) for _ in range(2))
        return first if first.fitness >= second.fitness else second

    def _child(self) -> _Individual:
        a, b = self._tournament(), self._tournament()
        if b.fitness > a.fitness:
            a, b = b, a
        cooling = (1.0 - min(1.0, self._generation / self.setting.rounds)) ** 3
        genes: list[float] = []
        for gene_a, gene_b in zip(a, b, strict=True):
            gene = min(1.0, max(0.0, self._dice.random() * (gene_a - gene_b) + gene_a))
            r1, r2 = self._dice.random(), self._dice.random()
            gene += (1.0 - r1**cooling) * ((1.0 if r2 > 0.5 else 0.0) - gene)
            genes.append(min(1.0, max(0.0, gene)))
        return _Individual(genes)

    def _select(self, children: list[_Individual]) -> None:
        kept = sorted(self._population, key=_order, reverse=True)[: self._kept]
        self._population = kept + children


def _order(individual: _Individual) -> Any:
    return individual.fitness
