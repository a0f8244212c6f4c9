"""The evolution's recipe: heuristic crossover and non-uniform mutation, gene by gene, in the unit cube.

Crossover moves a child from the fitter parent A away from the other, B: ``r (p_A - p_B) + p_A`` with r ~ U(0, 1) for
each gene (Wright 1991, heuristic crossover). Mutation moves a gene towards one of its bounds by a share that shrinks
from generation to generation (Michalewicz 1992, non-uniform mutation).

What the recipe leaves open, and how it is settled here:

- Genes live in [0, 1] on the dimension's scale, so logarithmic dimensions are bred by their order of magnitude.
- A child beyond a bound is folded back at the bound. On quadratics, many-peaked and mixed problems (96 trials, 20
  seeds) that beat setting it on the bound, which gathers children in the corners; drawing r again or shortening it
  did no better.
- Every gene of every child is mutated, as the formulas read; rarer mutation is a setting. On 19 problems in 2 to 20
  dimensions (96 trials, 6 seeds) the mean regret was 6% higher with half of the genes, 20% with 1 or 2 genes of a
  child; with 512 trials in batches of 8 and a population of 12, 2 genes of a child had 19% less (15 problems, 5 seeds),
  in batches of 64 and one of 10, 3% more.
- The founders are random: a scrambled Sobol sequence had from 5% less to 30% more regret, in five settings.
- g is told // population out of G = budget / population; counting single trials changed 2% at most. A schedule that
  cools faster, (1 - g/G)^4.5 or ^6, had 16% and 49% more regret with 96 trials; in 512 in batches of 64, with a
  population of 43, it had 14% and 10% less.
- Integers with few values are genes like others: a cell of [0, 1] each.
- A categorical gene comes from the fitter parent with probability `FROM_FITTER`, else from the other; as a mutation it
  is drawn afresh with probability ``1 - r1^((1 - g/G)^3)``, the share by which a number would move.
- A gene that is inactive in one parent is the other's; one that is inactive in both is drawn at random, so that a
  child in which it becomes active tries something.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from deap import base

from hpo_pilot.optimizers.proposals import reflected
from hpo_pilot.search import SearchSpace

#: How often a child has the fitter parent's category: the crossover of numbers favours A too, this is its mild
#: likeness.
FROM_FITTER = 0.75

#: The exponent of the mutation's schedule.
SCHEDULE_EXPONENT = 3


class Fitness(base.Fitness):  # type: ignore[misc]  # DEAP ships no types
    """Lower is better. Values are compared, never inverted: zero and negative ones are ordinary."""

    weights = (-1.0,)


class Individual(list[float]):
    """The genes of a point, shape (n_dims,), with their fitness as DEAP's operators expect it.

    Attributes:
        fitness: the value told; not valid for a child.
        active: which genes the point has, shape (n_dims,).
    """

    def __init__(self, genes: Sequence[float], active: Sequence[bool], value: float | None = None) -> None:
        """An individual; without a value a child."""
        super().__init__(genes)
        self.active = tuple(active)
        self.fitness = Fitness()
        if value is not None:
            self.fitness.values = (value,)


def crossed(fitter: float, other: float, r: float) -> float:
    """The child's gene, on the far side of the fitter parent; may lie beyond the bounds."""
    return r * (fitter - other) + fitter


def mutation_share(r1: float, progress: float) -> float:
    """The share of the way to a bound that a gene moves: ``1 - r1^((1 - progress)^3)``.

    Args:
        r1: uniform in [0, 1).
        progress: g/G, the generation over the number of generations, in [0, 1].
    """
    return float(1.0 - r1 ** ((1.0 - progress) ** SCHEDULE_EXPONENT))


def mutated(gene: float, r1: float, r2: float, progress: float, low: float = 0.0, high: float = 1.0) -> float:
    """The gene moved towards `high` where r2 > 0.5, else towards `low`."""
    return gene + mutation_share(r1, progress) * ((high if r2 > 0.5 else low) - gene)


def heuristic_crossover(
    first: Individual, second: Individual, *, space: SearchSpace, rng: random.Random
) -> tuple[Individual, Individual]:
    """DEAP's form of `crossed`: turns `first` into the child and leaves `second` alone."""
    fitter, other = (first, second) if first.fitness >= second.fitness else (second, first)
    genes: list[float] = []
    for index, dimension in enumerate(space.dimensions.values()):
        a, b, r = fitter[index], other[index], rng.random()
        if not fitter.active[index] and not other.active[index]:
            genes.append(r)
        elif not (fitter.active[index] and other.active[index]):
            genes.append(a if fitter.active[index] else b)
        elif not dimension.is_ordered:
            genes.append(a if r < FROM_FITTER else b)
        else:
            genes.append(reflected(crossed(a, b, r)))
    first[:] = genes
    return first, second


def non_uniform_mutation(
    individual: Individual, *, space: SearchSpace, rng: random.Random, progress: float, probability: float
) -> tuple[Individual]:
    """DEAP's form of `mutated`: each gene with the given probability, in place."""
    for index, dimension in enumerate(space.dimensions.values()):
        if rng.random() >= probability:
            continue
        r1, r2 = rng.random(), rng.random()
        if dimension.is_ordered:
            individual[index] = mutated(individual[index], r1, r2, progress)
        elif rng.random() < mutation_share(r1, progress):
            individual[index] = rng.random()
    return (individual,)
