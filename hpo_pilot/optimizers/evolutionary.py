"""The evolutionary optimizer on DEAP: selection, crossover and mutation; NSGA-II for several objectives.

The recipe (the default operators) is heuristic crossover and non-uniform mutation, gene by gene, in the unit cube.
Crossover moves a child from the fitter parent A away from the other parent B: ``r (p_A - p_B) + p_A`` with r ~ U(0, 1)
for each gene (Wright 1991, heuristic crossover). Mutation moves a gene towards one of its bounds, by a share that
shrinks from generation to generation (Michalewicz 1992, non-uniform mutation).

The papers leave some details open. Our choices are:

- Genes are in [0, 1] on the scale of the dimension, so logarithmic dimensions are bred by their order of magnitude.
- A child beyond a bound is reflected at the bound. On quadratic, multimodal and mixed problems (96 trials, 20 seeds)
  this was better than setting it to the bound, which gathers children in the corners; drawing r again or shortening it
  was not better.
- Every gene of every child is mutated, as in the formulas; rarer mutation is a setting. On 19 problems in 2 to 20
  dimensions (96 trials, 6 seeds) the mean regret was 6% higher with half of the genes, and 20% higher with 1 or 2 genes
  per child. With 512 trials in batches of 8 and a population of 12, 2 genes per child had 19% less (15 problems, 5
  seeds); in batches of 64 and a population of 10, 3% more.
- The founders are random: a scrambled Sobol sequence had from 5% less to 30% more regret, in five settings.
- g is told // population, and G is budget / population; counting single trials changed the regret by 2% at most. A
  faster schedule, (1 - g/G)^4.5 or ^6, had 16% and 49% more regret with 96 trials; with 512 trials in batches of 64 and
  a population of 43, 14% and 10% less.
- Integers with few values are genes like others: each value is a cell of [0, 1].
- A categorical gene is that of the fitter parent with probability `FROM_FITTER`, else that of the other. Mutation draws
  it again with probability ``1 - r1^((1 - g/G)^3)``, the share by which a number would move.
- A gene that is inactive in one parent is taken from the other. A gene that is inactive in both is drawn at random, so
  that it has a new value if it becomes active in the child.
"""

from __future__ import annotations

import bisect
import copy
import inspect
import itertools
import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Self

import numpy as np
from deap import base, tools
from pydantic import BaseModel, ConfigDict, Field, model_validator

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, global_randomness, stream
from hpo_pilot.optimizers.phase import default_population
from hpo_pilot.optimizers.proposals import Proposals
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.limits import MOST_POPULATION
from hpo_pilot.search.nondominated import costs_of, crowding, ranks

#: Probability that a child has the category of the fitter parent; the crossover of numbers prefers this parent, too.
FROM_FITTER = 0.75

#: The exponent of the schedule of the mutation.
SCHEDULE_EXPONENT = 3


class Fitness(base.Fitness):  # type: ignore[misc]  # DEAP ships no types
    """Fitness for one objective; lower is better. Values are only compared, so zero and negative ones are fine."""

    weights = (-1.0,)


class Individual(list[float]):
    """The genes of a point, shape (n_dims,), with their fitness as DEAP's operators expect it.

    Attributes:
        fitness: the told value; not valid for a child.
        active: which genes the point has, shape (n_dims,).
    """

    def __init__(self, genes: Sequence[float], active: Sequence[bool], value: float | None = None) -> None:
        """Makes an individual; without a value, it is a child."""
        super().__init__(genes)
        self.active = tuple(active)
        self.fitness = Fitness()
        if value is not None:
            self.fitness.values = (value,)


def crossed(fitter: float, other: float, r: float) -> float:
    """Returns the gene of the child, beyond the fitter parent as seen from the other; may be outside the bounds."""
    return r * (fitter - other) + fitter


def mutation_share(r1: float, progress: float) -> float:
    """Returns the share of the distance to a bound by which a gene moves: ``1 - r1^((1 - progress)^3)``.

    Args:
        r1: uniform in [0, 1).
        progress: g/G, the generation over the number of generations, in [0, 1].
    """
    return float(1.0 - r1 ** ((1.0 - progress) ** SCHEDULE_EXPONENT))


def mutated(gene: float, r1: float, r2: float, progress: float) -> float:
    """Returns the gene, moved towards 1 if r2 > 0.5, else towards 0."""
    return gene + mutation_share(r1, progress) * ((1.0 if r2 > 0.5 else 0.0) - gene)


def reflected(gene: float) -> float:
    """Returns a gene reflected into [0, 1] at the bounds."""
    gene = math.fmod(abs(gene), 2.0)
    return 2.0 - gene if gene > 1.0 else gene


def heuristic_crossover(
    first: Individual, second: Individual, *, space: SearchSpace, rng: random.Random
) -> tuple[Individual, Individual]:
    """Applies `crossed` in DEAP's form: changes `first` to the child and leaves `second` unchanged."""
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
    """Applies `mutated` in DEAP's form: changes each gene in place with the given probability."""
    for index, dimension in enumerate(space.dimensions.values()):
        if rng.random() >= probability:
            continue
        r1, r2 = rng.random(), rng.random()
        if dimension.is_ordered:
            individual[index] = mutated(individual[index], r1, r2, progress)
        elif rng.random() < mutation_share(r1, progress):
            individual[index] = rng.random()
    return (individual,)


#: The name of the recipe's operators.
RECIPE = "recipe"

#: DEAP's operators that are suitable for genes in [0, 1], with default arguments; the search file may give others.
#: Operators on permutations, bits, trees and evolution strategies are left out.
DEAP_OPERATORS: dict[str, dict[str, dict[str, Any]]] = {
    "select": {
        "selTournament": {"tournsize": 2},
        "selDoubleTournament": {"fitness_size": 2, "parsimony_size": 1.0, "fitness_first": True},
        "selBest": {},
        "selRandom": {},
    },
    "mate": {
        "cxOnePoint": {},
        "cxTwoPoint": {},
        "cxUniform": {"indpb": 0.5},
        "cxBlend": {"alpha": 0.5},
        "cxSimulatedBinary": {"eta": 15.0},
        "cxSimulatedBinaryBounded": {"eta": 15.0, "low": 0.0, "up": 1.0},
    },
    "mutate": {
        "mutGaussian": {"mu": 0.0, "sigma": 0.1, "indpb": 0.2},
        "mutPolynomialBounded": {"eta": 20.0, "low": 0.0, "up": 1.0, "indpb": 0.2},
    },
}


#: These operators cut a chromosome, and fail with only one gene.
_CUTTING = {"cxOnePoint", "cxTwoPoint"}


def _uncut(first: Any, second: Any) -> tuple[Any, Any]:
    return first, second


class Operator(BaseModel):
    """The name of an operator and its arguments: ``{name: cxBlend, alpha: 0.3}``, or only the name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments."""
        return dict(self.__pydantic_extra__ or {})

    def check(self, kind: str) -> None:
        """Checks name and arguments.

        Args:
            kind: select, mate or mutate.

        Raises:
            ValueError: the operator or an argument is unknown, or the operator fails with these arguments.
        """
        known = DEAP_OPERATORS[kind]
        if self.name not in known and (self.name != RECIPE or kind == "select"):
            names = [*([] if kind == "select" else [RECIPE]), *known]
            raise ValueError(f"unknown operator {self.name!r} for {kind}; there are {', '.join(names)}")
        takes = set() if self.name == RECIPE else set(inspect.signature(getattr(tools, self.name)).parameters)
        for argument in self.arguments.keys() - (takes - {"individual", "individuals", "ind1", "ind2", "k"}):
            raise ValueError(f"{self.name} takes no argument {argument!r}")
        if self.name != RECIPE:
            self._try(kind)

    def _try(self, kind: str) -> None:
        """Runs the operator once, so that a wrong argument is refused before the search starts."""
        arguments = {**DEAP_OPERATORS[kind][self.name], **self.arguments}
        some = [Individual((0.25, 0.75), (True, True), value) for value in (0.0, 1.0)]
        given = {"select": (some, 2), "mate": (some[0], some[1]), "mutate": (some[0],)}[kind]
        try:
            with global_randomness(random.Random(0)):  # noqa: S311 - no secret
                getattr(tools, self.name)(*given, **arguments)
            fine = kind == "select" or all(isinstance(gene, float) and math.isfinite(gene) for gene in some[0])
        except (TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ValueError(f"{self.name} does not work with {arguments}: {error}") from error
        if not fine:
            raise ValueError(f"{self.name} with {arguments} makes genes that are not numbers")


def make_toolbox(
    space: SearchSpace,
    *,
    select: Operator,
    mate: Operator,
    mutate: Operator,
    rng: random.Random,
    progress: float,
    probability: float,
) -> base.Toolbox:
    """Returns a toolbox with `select(individuals, k)`, `mate(first, second)` and `mutate(individual)`.

    Args:
        space: the space.
        select: the selection.
        mate: the crossover.
        mutate: the mutation.
        rng: the random stream of the recipe's operators.
        progress: g/G for the recipe's mutation.
        probability: mutation probability per gene, for the recipe.
    """
    toolbox = base.Toolbox()
    recipes: dict[str, tuple[Any, dict[str, Any]]] = {
        "mate": (heuristic_crossover, {"space": space, "rng": rng}),
        "mutate": (
            non_uniform_mutation,
            {"space": space, "rng": rng, "progress": progress, "probability": probability},
        ),
    }
    for kind, operator in (("select", select), ("mate", mate), ("mutate", mutate)):
        if operator.name == RECIPE:
            function, arguments = recipes[kind]
        elif operator.name in _CUTTING and len(space.names) < 2:
            function, arguments = _uncut, {}
        else:
            function = getattr(tools, operator.name)
            arguments = {**DEAP_OPERATORS[kind][operator.name], **operator.arguments}
        toolbox.register(kind, function, **arguments)
    return toolbox


# Several objectives: Deb, Pratap, Agarwal, Meyarivan 2002, "A fast and elitist multiobjective genetic algorithm:
# NSGA-II".


class CrowdedFitness(base.Fitness):  # type: ignore[misc]  # DEAP ships no types
    """Fitness with several costs, compared as in NSGA-II: by rank, then by crowding distance.

    So all operators that compare two parents use NSGA-II's crowded comparison, and DEAP's tournament of two is the
    tournament of NSGA-II. (selTournamentDCD, which draws without replacement, was slightly worse.)

    Attributes:
        rank: rank of its front, from 0, in the last population into which it was selected.
        crowding_dist: the crowding distance on that front; DEAP's name.
    """

    weights = (-1.0, -1.0)
    rank = 0
    crowding_dist = 0.0

    @property
    def _place(self) -> tuple[int, float]:
        return (-self.rank, self.crowding_dist)

    # DEAP derives > and >= from these.

    def __lt__(self, other: Self) -> bool:
        return self._place < other._place

    def __le__(self, other: Self) -> bool:
        return self._place <= other._place

    def __deepcopy__(self, memo: Any) -> Self:
        copied = copy.copy(self)  # DEAP's own copy drops rank and crowding distance
        memo[id(self)] = copied
        return copied


@cache
def crowded_fitness(objectives: int) -> type[CrowdedFitness]:
    """Returns the fitness class for a number of objectives; DEAP keeps the weights in the class."""
    return type(f"CrowdedFitness{objectives}", (CrowdedFitness,), {"weights": (-1.0,) * objectives})


class CrowdedPopulation:
    """The population of NSGA-II.

    After each `size` new individuals, the best `size` of the new ones and the former survivors survive. Between these
    steps, new individuals belong to the population, too. So the population depends on the order of the told results,
    and not on the number of results per call.
    """

    def __init__(self, size: int) -> None:
        """Makes an empty population.

        Args:
            size: the number of survivors.
        """
        self._size = size
        self._survivors: list[Individual] = []
        self._new: list[Individual] = []

    def add(self, individual: Individual) -> None:
        """Adds an individual with a `CrowdedFitness`."""
        self._new.append(individual)
        if len(self._new) == self._size:
            self._survivors, self._new = self.parents(), []

    def parents(self) -> list[Individual]:
        """Returns the population, front by front, the least crowded first; ranks and crowding distances are set.

        DEAP's own selection, `selNSGA2`, overflows where costs differ by more than 1.8e308.
        """
        everyone = self._survivors + self._new
        costs = costs_of([individual.fitness.values for individual in everyone])
        fronts = np.array(ranks(costs), dtype=int)
        for rank in range(fronts.max(initial=-1) + 1):
            rows = np.flatnonzero(fronts == rank)
            for row, distance in zip(rows.tolist(), crowding(costs[rows]), strict=True):
                everyone[row].fitness.rank, everyone[row].fitness.crowding_dist = rank, distance
        return sorted(everyone, key=lambda individual: individual.fitness, reverse=True)[: self._size]


#: The share of best points that is used of each earlier search, and the least number, at most half of the search.
_BEST_SHARE, _LEAST = 0.1, 3


def best_of_earlier(earlier: Mapping[str, Sequence[Observation]]) -> list[Observation]:
    """Returns the best tenth of each earlier search (more of small ones), sorted by the rank in its own search.

    Values of different searches are not compared. Failed and stopped trials, points outside the space, and searches
    whose values are all equal are left out.
    """
    ranked: list[tuple[int, str, Observation]] = []
    for source, told in sorted(earlier.items()):
        good = [o for o in told if o.value is not None and not o.stopped and o.is_within_bounds]
        good.sort(key=lambda o: o.value if o.value is not None else math.inf)
        if not good or good[0].value == good[-1].value:
            continue  # all values are equal
        count = max(math.ceil(_BEST_SHARE * len(good)), min(_LEAST, math.ceil(len(good) / 2)))
        ranked += [(rank, source, o) for rank, o in enumerate(good[:count])]
    ranked.sort(key=lambda entry: entry[:2])
    return [o for _, _, o in ranked]


#: Where standard errors are told, an individual older than this many populations is elite only if it is better than all
#: newer ones by this many standard errors. Otherwise a lucky value would lead for ever, because no point is tried
#: again. On 10 problems (8 seeds, batches of 8) the mean regret was 23% lower in 320 trials with noise of 0.5 (20% with
#: 5 populations, 15% with 12), 9% higher with noise of 0.02, and 2% higher in 160 trials with noise of 2. The number
#: was chosen on five of these seeds.
_ELITE_GENERATIONS, _LUCK = 8, 2.0

#: At most one founder of this many is one of the best points of earlier searches.
_FOUNDERS_PER_EARLIER = 4

#: Where the budget is unknown, g/G is g / (g + this): the mutation shrinks, but never to zero.
_HALF_COOLED = 10

#: A child that is told, pending or infeasible is bred again, at most this often.
_RETRIES = 30


class EvolutionarySettings(BaseSettings):
    """Settings in the search file.

    Attributes:
        population: number of individuals that may be parents, and of trials in a generation. None: 8; with several
            objectives a sixth of the budget, between 8 and 100.
        elite: share of the population that is the fittest of all told; the rest is the newest. 1: only the fittest.
        mutation: probability that a gene of a child is mutated (recipe operator).
        select: the selection of parents.
        mate: the crossover of two parents.
        mutate: the mutation of a child.
    """

    population: Annotated[int, Field(ge=2, le=MOST_POPULATION, strict=True)] | None = None
    elite: Annotated[float, Field(ge=0, le=1)] = 0.2
    mutation: Annotated[float, Field(ge=0, le=1)] = 1.0
    select: Operator = Operator(name="selTournament")
    mate: Operator = Operator(name=RECIPE)
    mutate: Operator = Operator(name=RECIPE)

    @model_validator(mode="after")
    def _check(self) -> EvolutionarySettings:
        self.select.check("select")
        self.mate.check("mate")
        self.mutate.check("mutate")
        return self


class EvolutionaryOptimizer(Optimizer):
    """An asynchronous evolution: each `ask` breeds from the results known so far, and waits for none.

    The first `population` points are random. Then parents come from a population of this size: the `elite` share of it
    are the fittest of all told, the rest are the newest. With whole generations this is the textbook's loop (the
    fittest fifth survives, children replace the others); with single results it is a steady-state evolution. The
    generation number of the mutation's schedule is told // population, out of budget / population.

    Failed trials have no fitness: they count as told and never become parents, and neither do points beyond the bounds.
    Stopped trials are never elite; while they are among the newest they can be parents, with their projected values.

    With several objectives, NSGA-II's selection keeps the population (`CrowdedPopulation`) and compares parents. The
    crossover is uniform unless the settings name another.
    """

    Settings = EvolutionarySettings
    settings: EvolutionarySettings
    several_objectives = True

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Sets the population; see `Optimizer`."""
        super().__init__(space, **options)
        self.population = self.settings.population or default_population(self.trials, self.objectives)
        self._start_over()

    def _start_over(self) -> None:
        self._individuals: dict[str, Individual] = {}  # by key, in the order in which they were first told
        self._ranking: list[tuple[float, int, str]] = []  # (value, order told, key), sorted
        self._ranked: dict[str, tuple[float, int, str]] = {}  # the entry in the ranking, by key
        self._counts: dict[str, int] = {}
        self._stds: dict[str, float] = {}  # standard errors, where they are told and not 0
        self._crowd = CrowdedPopulation(self.population)  # of several objectives

    def progress(self) -> float:
        """Returns g/G: 0 at the start, 1 when the budget is spent."""
        generation = (self.forgotten + len(self.history)) // self.population
        if self.trials is None:
            return generation / (generation + _HALF_COOLED)
        return min(1.0, generation / max(1, math.ceil(self.trials / self.population)))

    def parents(self) -> list[Individual]:
        """Returns the present population, the fittest first, then the newest."""
        self._catch_up()
        if self.objectives > 1:
            return self._crowd.parents()
        chosen = dict.fromkeys(self._elite())
        for key in reversed(self._individuals):
            if len(chosen) >= self.population:
                break
            chosen.setdefault(key)
        return [self._individuals[key] for key in chosen]

    def _elite(self) -> list[str]:
        """Returns the keys of the fittest. An individual whose advantage may be luck is elite only for some time."""
        count = math.ceil(self.settings.elite * self.population)
        if not self._stds:
            return [key for _, _, key in self._ranking[:count]]
        oldest = len(self._counts) - _ELITE_GENERATIONS * self.population
        newer = next((value for value, order, _ in self._ranking if order >= oldest), math.inf)
        lasting = (
            key
            for value, order, key in self._ranking
            if order >= oldest or value + _LUCK * self._stds.get(key, 0.0) <= newer
        )
        return list(itertools.islice(lasting, count))

    def _learn(self, observation: Observation) -> None:
        observation = observation.ranked
        if observation.value is None or not observation.is_within_bounds:
            return
        if self.objectives > 1:
            self._learn_several(observation)
            return
        key, value = observation.key, observation.value
        if observation.stopped:
            if key not in self._ranked:  # a projected value, never better than the best known value
                guess = max(value, self._ranking[0][0]) if self._ranking else value
                self._individuals[key] = self._individual(observation, guess)
            return
        order = len(self._counts)
        if key in self._ranked:  # told again: its fitness is the mean
            before, order, _ = entry = self._ranked[key]
            del self._ranking[bisect.bisect_left(self._ranking, entry)]
            count = self._counts[key]
            value = _mean(before, value, count + 1)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._ranked[key] = (value, order, key)
        if observation.std:
            self._stds[key] = abs(observation.std) / math.sqrt(self._counts[key])
        bisect.insort(self._ranking, self._ranked[key])
        self._individuals[key] = self._individual(observation, value)

    def _individual(self, observation: Observation, value: float) -> Individual:
        assert observation.unit is not None
        active = [name in observation.point for name in self.space.dimensions]
        return Individual(observation.unit, active, value)

    def _learn_several(self, observation: Observation) -> None:
        """Learns from a result with several objectives; stopped trials have a projected value of only one of them."""
        if observation.values is None or observation.unit is None or observation.stopped:
            return
        key, values = observation.key, observation.values
        self._counts[key] = count = self._counts.get(key, 0) + 1
        if count > 1:  # told again: its fitness is the mean
            fitness = self._individuals[key].fitness
            fitness.values = tuple(_mean(a, b, count) for a, b in zip(fitness.values, values, strict=True))
            return
        individual = Individual(observation.unit, [name in observation.point for name in self.space.dimensions])
        individual.fitness = crowded_fitness(self.objectives)(values)
        self._individuals[key] = individual
        self._crowd.add(individual)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        rng = stream(self.seed, proposals.known)
        feasible = self._known_points(pending)
        parents = self.parents()
        founders = min(n, max(0, self.population - proposals.known)) if len(parents) >= 2 else n
        if founders:
            if proposals.known < self.population:
                self._offer_earlier(proposals)
            if len(proposals.points) < founders:
                proposals.complete(rng, feasible, limit=founders)
        if len(parents) >= 2:
            with global_randomness(rng):
                self._breed(proposals, parents, rng)
        return proposals.complete(rng, feasible)

    def _offer_earlier(self, proposals: Proposals) -> None:
        """Offers the best points of earlier searches that are in this space; their values there are not used."""
        best = (told.point for told in best_of_earlier(self.earlier) if not self.space.mistakes(told.point))
        for point in itertools.islice(best, max(1, self.population // _FOUNDERS_PER_EARLIER)):
            proposals.offer_point(point)

    def _breed(self, proposals: Proposals, parents: list[Individual], rng: random.Random) -> None:
        """Offers children for all missing points, as far as new ones are found."""
        progress, probability = self.progress(), self.settings.mutation
        while proposals.missing > 0:
            # A refused child is bred again with a stronger mutation each time. Otherwise a converged population in a
            # discrete space would hardly find new points.
            for attempt in range(_RETRIES):
                toolbox = make_toolbox(
                    self.space,
                    select=self.settings.select,
                    mate=self._mate(),
                    mutate=self.settings.mutate,
                    rng=rng,
                    progress=progress * (1.0 - attempt / _RETRIES),
                    probability=max(probability, attempt / _RETRIES),
                )
                if proposals.offer(self._child(toolbox, parents)):
                    break
            else:
                return

    def _mate(self) -> Operator:
        """Returns the crossover: that of the settings, or a uniform one by default with several objectives.

        The recipe moves away from the less fit parent, but of two parents on one front neither is less fit; uniform
        crossover was better there.
        """
        if self.objectives > 1 and "mate" not in self.settings.model_fields_set:
            return Operator(name="cxUniform")
        return self.settings.mate

    @staticmethod
    def _child(toolbox: Any, parents: list[Individual]) -> list[float]:
        first, second = toolbox.select(parents, 2)
        child = Individual(first, first.active)
        child.fitness = first.fitness
        child, _ = toolbox.mate(child, toolbox.clone(second))
        (child,) = toolbox.mutate(child)
        return [reflected(float(gene)) for gene in child]  # DEAP's own operators ignore bounds


def _mean(before: float, value: float, count: int) -> float:
    """Returns the mean of `count` values: `before` is the mean of the others, `value` the last one. No overflow."""
    return before * ((count - 1) / count) + value / count  # a difference might overflow
