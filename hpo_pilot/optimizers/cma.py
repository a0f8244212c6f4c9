"""CMA-ES on DEAP: a normal distribution that learns the shape of the valley. Strong for wide, cheap generations."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from deap import cma
from pydantic import Field

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer
from hpo_pilot.optimizers.genotype import Array, Genotype
from hpo_pilot.optimizers.recipe import Individual
from hpo_pilot.optimizers.streams import array_stream, stream
from hpo_pilot.optimizers.threads import one_thread
from hpo_pilot.search import Point, SearchSpace

#: A sample outside the bounds is drawn again, this often at most; then it is set on the bounds.
_RESAMPLES = 20

#: How many samples per point wanted may be duplicates or infeasible before random points fill the batch.
_TRIES_PER_POINT = 20

#: The distribution starts over when it became narrower than this (as a share of the range), or this ill-conditioned.
_NARROWEST, _WORST_CONDITION = 1e-9, 1e14

#: Each fresh start has twice the population, up to this many times the first.
_LARGEST_GROWTH = 16


class CmaSettings(BaseSettings):
    """What a search file may set.

    Attributes:
        population: results per update of the distribution. None: 4 + 3 ln(n_coordinates).
        sigma: the first standard deviation, as a share of each range.
    """

    population: Annotated[int, Field(ge=4, strict=True)] | None = None
    sigma: Annotated[float, Field(gt=0, le=1)] = 0.25


class CmaOptimizer(Optimizer):
    """DEAP's CMA-ES, rebuilt by replaying what was told.

    Results are taken in the order in which they were told, a population at a time, whichever generation they were
    proposed in: nobody waits for the slowest. An update needs as many good values as it has parents; failed trials
    rank last. When the distribution has collapsed, or its generations stopped improving, it starts over elsewhere
    with twice the population.
    """

    Settings = CmaSettings
    settings: CmaSettings

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Starts in the middle of the space; see `Optimizer`."""
        super().__init__(space, **options)
        self._genotype = Genotype(space)
        self._population = self.settings.population or 4 + int(3 * math.log(self._genotype.size))
        self._restarts = 0
        self._strategy = self._fresh_strategy(np.full(self._genotype.size, 0.5))

    def _fresh_strategy(self, centroid: Array) -> Any:
        self._chunk: list[Individual] = []
        self._bests: list[float] = []
        population = self._population * min(2**self._restarts, _LARGEST_GROWTH)
        with one_thread():
            return cma.Strategy(centroid, self.settings.sigma, lambda_=population)

    def _learn(self, observation: Observation) -> None:
        if observation.unit is None or not all(0.0 <= place <= 1.0 for place in observation.unit):
            return
        value = math.inf if observation.value is None else observation.value
        rng = stream(self.seed, "cell", observation.key)
        spread = self._strategy.sigma * np.sqrt(np.diag(self._strategy.C))
        filling = self._strategy.centroid + spread * array_stream(self.seed, "fill", observation.key).standard_normal(
            self._genotype.size
        )
        vector = self._genotype.vector(observation.point, observation.unit, rng, filling)
        self._chunk.append(Individual(vector.tolist(), (), value))
        good = sum(math.isfinite(individual.fitness.values[0]) for individual in self._chunk)
        if len(self._chunk) >= self._strategy.lambda_ and good >= self._strategy.mu:
            self._update()

    def _update(self) -> None:
        chunk, self._chunk = self._chunk, []
        self._bests.append(min(individual.fitness.values[0] for individual in chunk))
        strategy = self._strategy
        with one_thread(), np.errstate(all="ignore"):
            strategy.update(chunk)
        # Results of an older, wider generation may push the step beyond the space itself.
        strategy.sigma = min(float(strategy.sigma), 1.0)
        if self._is_spent():
            self._restarts += 1
            rng = array_stream(self.seed, "restart", self._restarts)
            self._strategy = self._fresh_strategy(rng.random(self._genotype.size))

    def _is_spent(self) -> bool:
        strategy = self._strategy
        numbers = np.concatenate([strategy.centroid, strategy.diagD, [strategy.sigma]])
        if not np.all(np.isfinite(numbers)) or strategy.diagD.min() <= 0:
            return True
        if strategy.sigma * strategy.diagD.max() < _NARROWEST or strategy.cond > _WORST_CONDITION:
            return True
        # Hansen's TolHistFun: the generations' bests have become one value.
        window = self._bests[-(10 + math.ceil(30 * self._genotype.size / strategy.lambda_)) :]
        flat = max(window) - min(window) <= 1e-12 * max(map(abs, window))
        return len(window) >= 10 + 30 * self._genotype.size / strategy.lambda_ and flat

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        rng = stream(self.seed, proposals.known)
        normal = array_stream(self.seed, "normal", proposals.known)
        margin = 1.0 / (self._strategy.lambda_ * self._genotype.size)
        with one_thread():
            for _ in range(_TRIES_PER_POINT * n):
                if proposals.missing == 0:
                    break
                proposals.offer(self._genotype.unit(self._sample(normal), rng, margin))
        return proposals.complete(rng, [*(o.point for o in self.history[-64:]), *pending])

    def _sample(self, normal: np.random.Generator) -> Array:
        strategy, bounded = self._strategy, self._genotype.bounded
        vector: Array = strategy.centroid
        for _ in range(_RESAMPLES):
            vector = strategy.centroid + strategy.sigma * (strategy.BD @ normal.standard_normal(self._genotype.size))
            if np.all((vector[bounded] >= 0.0) & (vector[bounded] <= 1.0)):
                break
        return np.where(bounded, np.clip(vector, 0.0, 1.0), vector)
