"""Evolution on DEAP: the fittest fifth stays, the rest is bred by tournament, crossover and a cooling mutation."""

from __future__ import annotations

import bisect
import math
import random
from typing import Annotated, Any

from pydantic import Field, model_validator

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer
from hpo_pilot.optimizers.deap_toolbox import RECIPE, Operator, deap_randomness, make_toolbox
from hpo_pilot.optimizers.proposals import Proposals, reflected
from hpo_pilot.optimizers.recipe import Individual
from hpo_pilot.optimizers.streams import stream
from hpo_pilot.search import Point, SearchSpace

#: A budget is spent in about this many generations, unless the population is given.
_GENERATIONS = 12
_LEAST_POPULATION, _MOST_POPULATION = 8, 50
_POPULATION_WITHOUT_BUDGET = 20

#: Where the budget is unknown, g/G is g / (g + this): the mutation cools, and never ends.
_HALF_COOLED = 10

#: A child that was told before, is pending or breaks a constraint is bred again, this often at most.
_RETRIES = 30


class EvolutionarySettings(BaseSettings):
    """What a search file may set.

    Attributes:
        population: how many individuals may be parents, and how many trials make a generation. None: a twelfth of the
            budget, between 8 and 50.
        elite: the share of the population that is kept for its fitness; the rest is the newest. 1: the best of all
            that is known.
        mutation: probability that a gene of a child is mutated (recipe operator).
        select: how parents are chosen.
        mate: how two parents make a child.
        mutate: how a child is changed.
    """

    population: Annotated[int, Field(ge=2, strict=True)] | None = None
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
    """The recipe of `recipe`, asynchronous: each `ask` breeds from what is known, and waits for nobody.

    The first `population` points are random. Then parents come from a population of that size: the `elite` share of it
    are the fittest of all told, the rest the newest told. Told in whole generations this is the textbook's loop
    (the fittest fifth survives, children replace the others); told one by one it is its steady state. The generation
    number that cools the mutation is told // population, out of budget / population.

    Failed trials have no fitness: they count as told and never become parents. Neither do points beyond the bounds.
    """

    Settings = EvolutionarySettings
    settings: EvolutionarySettings

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Settles the population; see `Optimizer`."""
        super().__init__(space, **options)
        self.population = self.settings.population or default_population(self.trials)
        self._individuals: dict[str, Individual] = {}  # by key, in the order in which they were first told
        self._ranking: list[tuple[float, int, str]] = []  # (value, order told, key), sorted
        self._counts: dict[str, int] = {}

    def progress(self) -> float:
        """g/G: 0 at the start, 1 when the budget is spent."""
        generation = len(self.history) // self.population
        if self.trials is None:
            return generation / (generation + _HALF_COOLED)
        return min(1.0, generation / max(1, math.ceil(self.trials / self.population)))

    def parents(self) -> list[Individual]:
        """The present population, the fittest first, then the newest."""
        elite = math.ceil(self.settings.elite * self.population)
        fittest = [key for _, _, key in self._ranking[:elite]]
        chosen = dict.fromkeys(fittest)
        for key in reversed(self._individuals):
            if len(chosen) >= self.population:
                break
            chosen.setdefault(key)
        return [self._individuals[key] for key in chosen]

    def _learn(self, observation: Observation) -> None:
        if observation.value is None or observation.unit is None:
            return
        if not all(0.0 <= gene <= 1.0 for gene in observation.unit):
            return
        key, value = observation.key, observation.value
        order = len(self._counts)
        if key in self._counts:  # told again: its fitness is the mean
            rank = next(i for i, entry in enumerate(self._ranking) if entry[2] == key)
            before, order, _ = self._ranking.pop(rank)
            value = before + (value - before) / (self._counts[key] + 1)
        self._counts[key] = self._counts.get(key, 0) + 1
        bisect.insort(self._ranking, (value, order, key))
        active = [name in observation.point for name in self.space.dimensions]
        self._individuals[key] = Individual(observation.unit, active, value)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        rng = stream(self.seed, proposals.known)
        feasible = [*(observation.point for observation in self.history[-64:]), *pending]
        parents = self.parents()
        founders = min(n, max(0, self.population - proposals.known)) if len(parents) >= 2 else n
        if founders:
            proposals.complete(rng, feasible, limit=founders)
        if len(parents) >= 2:
            with deap_randomness(rng):
                self._breed(proposals, parents, rng)
        return proposals.complete(rng, feasible)

    def _breed(self, proposals: Proposals, parents: list[Individual], rng: random.Random) -> None:
        """Children for all points that are missing, as far as they can be found."""
        progress, probability = self.progress(), self.settings.mutation
        while proposals.missing > 0:
            # A child that may not be proposed is bred again, mutated harder each time: a converged population in a
            # discrete space has few other ways to something new.
            for attempt in range(_RETRIES):
                toolbox = make_toolbox(
                    self.space,
                    select=self.settings.select,
                    mate=self.settings.mate,
                    mutate=self.settings.mutate,
                    rng=rng,
                    progress=progress * (1.0 - attempt / _RETRIES),
                    probability=max(probability, attempt / _RETRIES),
                )
                if proposals.offer(self._child(toolbox, parents)):
                    break
            else:
                return

    @staticmethod
    def _child(toolbox: Any, parents: list[Individual]) -> list[float]:
        first, second = toolbox.select(parents, 2)
        child = Individual(first, first.active)
        child.fitness = first.fitness
        child, _ = toolbox.mate(child, toolbox.clone(second))
        (child,) = toolbox.mutate(child)
        return [reflected(float(gene)) for gene in child]  # DEAP's own operators know no bounds


def default_population(trials: int | None) -> int:
    """The population for a budget of `trials`."""
    if trials is None:
        return _POPULATION_WITHOUT_BUDGET
    return min(_MOST_POPULATION, max(_LEAST_POPULATION, round(trials / _GENERATIONS)))
