"""Evolution on DEAP: the fittest fifth stays, the rest is bred by tournament, crossover and a cooling mutation."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from typing import Annotated, Any

from pydantic import Field, model_validator

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer
from hpo_pilot.optimizers.evolution.crowded_fitness import CrowdedPopulation, crowded_fitness
from hpo_pilot.optimizers.evolution.deap_toolbox import RECIPE, Operator, deap_randomness, make_toolbox
from hpo_pilot.optimizers.evolution.earlier_best import best_of_earlier
from hpo_pilot.optimizers.evolution.population import default_population
from hpo_pilot.optimizers.evolution.recipe import Individual
from hpo_pilot.optimizers.proposals import Proposals, reflected
from hpo_pilot.optimizers.streams import stream
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.limits import MOST_POPULATION

#: Where standard errors are told, an individual older than this many populations is elite only if it is this many
#: standard errors ahead of all newer ones: a lucky value would otherwise lead for ever, for no point is tried again.
#: On 10 problems (8 seeds, batches of 8) the mean regret was 23% lower in 320 trials with noise of 0.5 (20% with 5
#: populations, 15% with 12), 9% higher with noise of 0.02, and 2% higher in 160 trials with noise of 2. The number was
#: chosen on five of these seeds.
_ELITE_GENERATIONS, _LUCK = 8, 2.0

#: Of the founders at most one in this many is taken from the best of earlier searches.
_FOUNDERS_PER_EARLIER = 4

#: Where the budget is unknown, g/G is g / (g + this): the mutation cools, and never ends.
_HALF_COOLED = 10

#: A child that was told before, is pending or breaks a constraint is bred again, this often at most.
_RETRIES = 30


class EvolutionarySettings(BaseSettings):
    """What a search file may set.

    Attributes:
        population: how many individuals may be parents, and how many trials make a generation. None: 8; with several
            objectives a sixth of the budget, between 8 and 100.
        elite: the share of the population that is kept for its fitness; the rest is the newest. 1: the best of all
            that is known.
        mutation: probability that a gene of a child is mutated (recipe operator).
        select: how parents are chosen.
        mate: how two parents make a child.
        mutate: how a child is changed.
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
    """The recipe of `recipe`, asynchronous: each `ask` breeds from what is known, and waits for nobody.

    The first `population` points are random. Then parents come from a population of that size: the `elite` share of it
    are the fittest of all told, the rest the newest told. Told in whole generations this is the textbook's loop
    (the fittest fifth survives, children replace the others); told one by one it is its steady state. The generation
    number that cools the mutation is told // population, out of budget / population.

    Failed trials have no fitness: they count as told and never become parents. Neither do points beyond the bounds.
    Stopped trials are never elite; among the newest they are parents, with the value that they would have come to.

    With several objectives the population is what NSGA-II's selection keeps of all told (`crowded_fitness`); parents
    are compared as it compares them, and cross uniformly unless the settings name another way.
    """

    Settings = EvolutionarySettings
    settings: EvolutionarySettings
    several_objectives = True

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Settles the population; see `Optimizer`."""
        super().__init__(space, **options)
        self.population = self.settings.population or default_population(self.trials, self.objectives)
        self._individuals: dict[str, Individual] = {}  # by key, in the order in which they were first told
        self._ranking: list[tuple[float, int, str]] = []  # (value, order told, key), sorted
        self._ranked: dict[str, tuple[float, int, str]] = {}  # the entry in the ranking, by key
        self._counts: dict[str, int] = {}
        self._stds: dict[str, float] = {}  # standard errors, where they are told and not 0
        self._crowd = CrowdedPopulation(self.population)  # of several objectives

    def progress(self) -> float:
        """g/G: 0 at the start, 1 when the budget is spent."""
        generation = len(self.history) // self.population
        if self.trials is None:
            return generation / (generation + _HALF_COOLED)
        return min(1.0, generation / max(1, math.ceil(self.trials / self.population)))

    def parents(self) -> list[Individual]:
        """The present population, the fittest first, then the newest."""
        if self.objectives > 1:
            return self._crowd.parents()
        chosen = dict.fromkeys(self._elite())
        for key in reversed(self._individuals):
            if len(chosen) >= self.population:
                break
            chosen.setdefault(key)
        return [self._individuals[key] for key in chosen]

    def _elite(self) -> list[str]:
        """The keys of the fittest. One whose lead over the newer ones may be luck is elite for some time only."""
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
        if observation.value is None or observation.unit is None:
            return
        if not all(0.0 <= gene <= 1.0 for gene in observation.unit):
            return
        if self.objectives > 1:
            self._learn_several(observation)
            return
        key, value = observation.key, observation.value
        if observation.stopped:
            if key not in self._ranked:  # a guess, that may not beat the best that is known
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
        """The same with several objectives; a stopped trial has only a guess of one of them."""
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
        feasible = [*(observation.point for observation in self.history[-64:]), *pending]
        parents = self.parents()
        founders = min(n, max(0, self.population - proposals.known)) if len(parents) >= 2 else n
        if founders:
            if proposals.known < self.population:
                self._offer_earlier(proposals)
            if len(proposals.points) < founders:
                proposals.complete(rng, feasible, limit=founders)
        if len(parents) >= 2:
            with deap_randomness(rng):
                self._breed(proposals, parents, rng)
        return proposals.complete(rng, feasible)

    def _offer_earlier(self, proposals: Proposals) -> None:
        """The best points of earlier searches that are points of this space; their values there are not this one's."""
        best = (told.point for told in best_of_earlier(self.earlier) if not self.space.misfits(told.point))
        for point in itertools.islice(best, max(1, self.population // _FOUNDERS_PER_EARLIER)):
            proposals.offer_point(point)

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
        """How two parents make a child: the recipe's way, unless that means nothing.

        It moves away from the less fit parent. Of two on one front neither is; there, uniform crossover found more.
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
        return [reflected(float(gene)) for gene in child]  # DEAP's own operators know no bounds


def _mean(before: float, value: float, count: int) -> float:
    """The mean of `count` values, of which `before` is the mean of all but the last; finite where they are."""
    return before * ((count - 1) / count) + value / count  # no difference, which may overflow
