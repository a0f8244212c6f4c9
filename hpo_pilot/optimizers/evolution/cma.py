"""CMA-ES on DEAP: a distribution that learns the shape of the valley. Strong for wide, cheap generations."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, Result
from hpo_pilot.optimizers.evolution.distribution import Distribution
from hpo_pilot.optimizers.evolution.even_draws import EvenDraws
from hpo_pilot.optimizers.evolution.genotype import Genotype
from hpo_pilot.optimizers.evolution.head_start import head_start
from hpo_pilot.optimizers.proposals import Proposals, feasible_units
from hpo_pilot.optimizers.streams import array_stream, stream
from hpo_pilot.optimizers.threads import one_thread
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.limits import MOST_POPULATION

#: How many samples per point wanted may be duplicates or infeasible before they are drawn near the best points, with
#: steps made shorter and shorter, and at last at random.
_TRIES_PER_POINT = 20
_SHORTER = (0.5, 0.2, 0.05)

#: Each fresh start has twice the population, up to this many times the first.
_LARGEST_GROWTH = 16

#: How many updates one width of results gives at most. Many small updates from results of one distribution mislead it,
#: one large update wastes the width. Batches of 64 (19 problems, 8 seeds): updates of 16 had 0.5 times the regret of
#: updates of 64, those of 24 and 32 0.6 times, those of 8 1.3 times. Batches of 128 (14 problems, 5 seeds): 32 was best
#: of 16 to 64. Batches of 16 and 32: updates of the whole were worst. Asynchronous ones were measured with 8 at once.
_UPDATES_PER_WIDTH = 4

#: Populations that follow the width, so that a shrinking last batch does not replay the history for each size.
_WIDE_POPULATIONS = [12, 16, 24, 32, 48, 64, 96, 128, 192, 256]

#: With constraints, a distribution starts as wide as so many feasible points lie; as without, if not even the second
#: number of them is found.
_FEASIBLE_SAMPLE, _LEAST_FEASIBLE = 64, 8

#: Runs kept, one for each population that was needed.
_KEPT_RUNS = 3

#: The best points that are remembered, to look for feasible ones near them.
_BEST = 5


class CmaSettings(BaseSettings):
    """What a search file may set.

    Attributes:
        population: results per update of the distribution. None: by the number of dimensions and the width asked for.
        sigma: the first standard deviation, as a share of each range.
    """

    population: Annotated[int, Field(ge=4, le=MOST_POPULATION, strict=True)] | None = None
    sigma: Annotated[float, Field(gt=0, le=1)] = 0.2


class CmaOptimizer(Optimizer):
    """DEAP's CMA-ES, rebuilt by replaying what was told.

    Results are taken in the order in which they were told, a population at a time, whichever generation they were
    proposed in: nobody waits for the slowest. An update needs as many good values as it has parents; failed trials
    rank last, stopped ones by what they would have come to, but never ahead of the best finished one. When the
    distribution has collapsed, or its updates stopped improving, it starts over elsewhere with twice the population.

    The population follows the width (points asked for and pending), so `ask` replays, for the population that it
    needs, what was told since its last call.
    """

    Settings = CmaSettings
    settings: CmaSettings

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Starts in the middle of the space; see `Optimizer`."""
        super().__init__(space, **options)
        self._genotype = Genotype(space)
        self._runs: dict[int, Run] = {}

    def tell_earlier(self, source: str, trials: Iterable[Result]) -> None:
        """See `Optimizer.tell_earlier`; the first distribution starts where the best of them lie."""
        super().tell_earlier(source, trials)
        self._runs.clear()

    def population(self, n: int, pending: int) -> int:
        """Results per update, for a width of n points asked for and `pending` out."""
        if self.settings.population is not None:
            return self.settings.population
        least = 4 + int(2 * math.log(self._genotype.free))
        share = math.ceil((n + pending) / _UPDATES_PER_WIDTH)
        if share > least:
            wide = bisect.bisect_left(_WIDE_POPULATIONS, share)
            return _WIDE_POPULATIONS[min(wide, len(_WIDE_POPULATIONS) - 1)]
        # Whole batches: as many updates as fit, all of one size.
        return least if pending or n < least else math.ceil(n / (n // least))

    def run(self, population: int) -> Run:
        """What the history makes of a population; up to date."""
        run = self._runs.pop(population, None) or Run(
            self.space, self._genotype, self.seed, population, self.settings.sigma, self.earlier
        )
        self._runs[population] = run  # the last used is the last
        for old in list(self._runs)[:-_KEPT_RUNS]:
            del self._runs[old]
        run.replay(self.history)
        return run

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        rng = stream(self.seed, proposals.known)
        normal = array_stream(self.seed, "normal", proposals.known)
        run = self.run(self.population(n, len(pending)))
        with one_thread():
            self._offer_samples(proposals, run.distribution, normal, rng)
            self._offer_near(proposals, run, normal, rng)
        return proposals.complete(rng, [*(o.point for o in self.history[-64:]), *pending])

    def _offer_samples(
        self, proposals: Proposals, distribution: Distribution, normal: np.random.Generator, rng: random.Random
    ) -> None:
        """Each point by the even draw of its place in the search; by others where that one may not be proposed."""
        coordinates, dimensions = len(distribution.centroid), self._genotype.size
        even = EvenDraws(self.seed, distribution.population, coordinates, dimensions)
        taken = True
        for _ in range(_TRIES_PER_POINT * proposals.missing):
            if proposals.missing == 0:
                return
            if taken:
                step, numbers = even.at(proposals.known + len(proposals.points))
            else:
                step, numbers = normal.standard_normal(coordinates), normal.random(dimensions)
            taken = proposals.offer(distribution.sample(step, numbers, rng))

    def _offer_near(self, proposals: Proposals, run: Run, normal: np.random.Generator, rng: random.Random) -> None:
        if not run.best:
            return
        for share in _SHORTER:
            for _ in range(_TRIES_PER_POINT * proposals.missing):
                if proposals.missing == 0:
                    return
                unit = rng.choice(run.best)[2]
                proposals.offer(run.distribution.sample_near(unit, share, normal, rng))


class Run:
    """One way through the history, with one population.

    Attributes:
        distribution: as it is after what was replayed.
        restarts: how often it started over.
        best: (value, order, unit vector) of the best finished trials.
    """

    def __init__(
        self,
        space: SearchSpace,
        genotype: Genotype,
        seed: int,
        population: int,
        sigma: float,
        earlier: dict[str, list[Observation]],
    ) -> None:
        """Knows nothing of the history yet."""
        self._space, self._names, self._genotype = space, space.names, genotype
        self._seed, self._sigma = seed, sigma
        self._population = population
        self.restarts = 0
        self.best: list[tuple[float, int, tuple[float, ...]]] = []
        self._chunk: list[tuple[Observation, float]] = []
        self._good = 0
        self._replayed = 0
        self.distribution = head_start(space, genotype, earlier, sigma, population) or self._fresh()

    def _fresh(self) -> Distribution:
        coordinates = max(1, len(self._genotype.ordered))
        centroid = np.full(coordinates, 0.5)
        if self.restarts:
            centroid = array_stream(self._seed, "restart", self.restarts).random(coordinates)
        population = self._population * min(2**self.restarts, _LARGEST_GROWTH)
        if self._space.constraints and self._genotype.ordered:
            rng = stream(self._seed, "feasible", self.restarts)
            units = feasible_units(self._space, _FEASIBLE_SAMPLE, rng, [unit for _, _, unit in self.best])
            if len(units) >= _LEAST_FEASIBLE:
                places = np.array(units)[:, self._genotype.ordered]
                # As the given sigma is to the evenly filled cube, so are these to the part of it that is feasible.
                spread = np.maximum(places.std(axis=0) * math.sqrt(12.0), 1e-3)
                middle = places[0] if self.restarts else places.mean(axis=0)
                return Distribution(self._genotype, middle, self._sigma, population, np.diag(spread**2))
        return Distribution(self._genotype, centroid, self._sigma, population)

    def replay(self, history: Sequence[Observation]) -> None:
        """Takes what is new in the history."""
        if self._replayed == len(history):
            return
        with one_thread():
            for order in range(self._replayed, len(history)):
                self._take(history[order], order)
        self._replayed = len(history)

    def _take(self, told: Observation, order: int) -> None:
        if told.unit is None or not all(0.0 <= place <= 1.0 for place in told.unit):
            return
        value = math.inf if told.value is None else told.value
        if told.stopped and self.best:
            value = max(value, self.best[0][0])
        elif math.isfinite(value) and not told.stopped:
            bisect.insort(self.best, (value, order, told.unit))
            del self.best[_BEST:]
        self._chunk.append((told, value))
        self._good += math.isfinite(value)
        if len(self._chunk) >= self.distribution.population and self._good >= self.distribution.parents:
            self._update()

    def _update(self) -> None:
        chunk, self._chunk, self._good = self._chunk, [], 0
        units = np.array([told.unit for told, _ in chunk])
        active = np.array([[name in told.point for name in self._names] for told, _ in chunk])
        rng = array_stream(self._seed, "update", self.restarts, self.distribution.updates)
        self.distribution.update(units, active, [value for _, value in chunk], rng)
        if self.distribution.is_spent():
            self.restarts += 1
            self.distribution = self._fresh()
