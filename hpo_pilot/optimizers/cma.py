"""CMA-ES on DEAP, for spaces with ordered and categorical dimensions."""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from deap import cma
from pydantic import Field

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, Told, array_stream, one_thread, stream
from hpo_pilot.optimizers.evolutionary import Individual, best_of_earlier
from hpo_pilot.optimizers.proposals import Proposals, feasible_units
from hpo_pilot.search import Point, SearchSpace
from hpo_pilot.search.limits import MOST_POPULATION

Array = npt.NDArray[np.float64]


class Genotype:
    """The space as CMA-ES uses it: a coordinate for each ordered dimension, a choice for each of the others.

    Dimensions with only one value are left out.

    Attributes:
        size: number of dimensions of the space.
        ordered: the dimensions that are coordinates; coordinate i is dimension `ordered[i]`.
        categorical: the dimensions with choices.
        choices: the number of choices of each categorical dimension.
    """

    def __init__(self, space: SearchSpace) -> None:
        """Lays the coordinates out in the order of the dimensions."""
        dimensions = list(space.dimensions.values())
        self.size = len(dimensions)
        self.ordered = [i for i, d in enumerate(dimensions) if d.is_ordered and d.size > 1]
        self.categorical = [i for i, d in enumerate(dimensions) if not d.is_ordered and d.size > 1]
        self.choices = [int(dimensions[i].size) for i in self.categorical]


class EvenDraws:
    """An endless sequence of random draws whose steps are evenly distributed within each population.

    Steps come in mirrored pairs along orthogonal directions (mirrored orthogonal sampling: Wang, Emmerich, Bäck 2014);
    each step alone is normal. The draw at a position is always the same, so points that are asked for one by one are
    distributed like those of a batch. With independent steps the final regret was higher in 55 and lower in 22 of 80
    runs (10 problems of several kinds, 96 trials in batches of 8, 8 seeds).
    """

    def __init__(self, seed: int, population: int, coordinates: int, dimensions: int) -> None:
        """Draws nothing yet.

        Args:
            seed: selects the sequence.
            population: the number of draws in a block.
            coordinates: the length of a step.
            dimensions: the number of uniform numbers with each step.
        """
        self._seed, self._population = seed, population
        self._coordinates, self._dimensions = coordinates, dimensions
        self._blocks: dict[int, tuple[Array, Array]] = {}

    def at(self, position: int) -> tuple[Array, Array]:
        """Returns a normal step, shape (coordinates,), and numbers in [0, 1), shape (dimensions,)."""
        number, row = divmod(position, self._population)
        if number not in self._blocks:
            rng = array_stream(self._seed, "draws", self._population, number)
            self._blocks[number] = (
                mirrored_steps(rng, self._population, self._coordinates),
                rng.random((self._population, self._dimensions)),
            )
        steps, numbers = self._blocks[number]
        return steps[row], numbers[row]


def mirrored_steps(rng: np.random.Generator, count: int, coordinates: int) -> Array:
    """Returns normal steps z1, -z1, z2, -z2, …; `coordinates` consecutive pairs are orthogonal.

    Returns:
        Shape (count, coordinates).
    """
    sets = math.ceil(count / (2 * coordinates))
    turns, upper = np.linalg.qr(rng.standard_normal((sets, coordinates, coordinates)))
    signs = np.where(np.diagonal(upper, axis1=1, axis2=2) < 0.0, -1.0, 1.0)  # else rotations are not equally likely
    lengths = np.sqrt(rng.chisquare(coordinates, (sets, coordinates)))
    steps = np.swapaxes(turns * (signs * lengths)[:, None, :], 1, 2)
    mirrored: Array = np.stack([steps, -steps], axis=2).reshape(-1, coordinates)[:count]
    return mirrored


#: A step beyond the bounds is multiplied by this once; coordinates that are still outside are set to the bound. On the
#: development problems (96 trials) this was as good as shortening steps until they fit, and better than drawing them
#: again, which breaks the mirrored pairs; where the best point is on bounds, it was better than both.
_SHORTENED = 0.5

#: Rate at which the shares of the choices move towards the better half's shares per update. On 30 mixed development
#: problems (96 trials, 4 seeds) 0.5 was better than 0.3; 0.8 was as good.
_SHARE_RATE = 0.5

#: The distribution has collapsed when it is narrower than this (as a share of the range), or this ill-conditioned.
_NARROWEST, _WORST_CONDITION = 1e-7, 1e14


class Distribution:
    """The distribution that CMA-ES learns: normal over ordered dimensions, with shares for the choices of the others.

    DEAP's `cma.Strategy` is the normal distribution. We add:

    - A categorical dimension has a share for each choice. Shares move towards the choices of the better half (Hamano et
      al. 2024, CatCMA, with a fixed rate), and never fall below a margin.
    - The coordinate of an inactive dimension is drawn from the present distribution, and the centroid does not follow
      it: the coordinate does not drift.

    A discrete value is the middle of its share of the coordinate. To draw it from this share, with a margin (Hamano et
    al. 2022, CMA-ES with Margin), was worse in 66 and better in 36 of 108 runs on seven mixed and integer problems.

    Attributes:
        population: results per update.
        parents: results per update towards which the distribution moves.
        updates: number of updates so far.
    """

    def __init__(
        self, genotype: Genotype, centroid: Array, sigma: float, population: int, covariance: Array | None = None
    ) -> None:
        """Makes a distribution with equal shares.

        Args:
            genotype: the coordinates.
            centroid: shape (n_coordinates,).
            sigma: the standard deviation, as a share of each range.
            population: results per update.
            covariance: shape (n_coordinates, n_coordinates), in units of sigma². None: a sphere.
        """
        self._genotype = genotype
        self.shares = [np.full(size, 1.0 / size) for size in genotype.choices]
        shape = {} if covariance is None else {"cmatrix": covariance}
        self._strategy: Any = cma.Strategy(centroid, sigma, lambda_=population, **shape)
        self.population = population
        self.parents: int = self._strategy.mu
        self._margin = 1.0 / (population * genotype.size)
        self._bests: list[float] = []

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return len(self._bests)

    @property
    def centroid(self) -> Array:
        """The mean, shape (n_coordinates,)."""
        middle: Array = self._strategy.centroid
        return middle

    @property
    def spread(self) -> Array:
        """The standard deviation of each coordinate, shape (n_coordinates,)."""
        deviation: Array = self._strategy.sigma * np.sqrt(np.diag(self._strategy.C))
        return deviation

    def update(self, units: Array, active: Array, values: Sequence[float], rng: np.random.Generator) -> None:
        """Moves the distribution towards the better half of some points.

        Args:
            units: the points, shape (n, n_dims), all within [0, 1].
            active: which dimensions each point has, shape (n, n_dims).
            values: lower is better; inf for failed trials.
            rng: the random stream of this update.
        """
        strategy, genotype = self._strategy, self._genotype
        order = np.argsort(np.asarray(values), kind="stable")
        best = order[: self.parents]
        if genotype.ordered:  # DEAP needs a coordinate in any space; one without a meaning would collapse
            before = strategy.centroid.copy()
            vectors, has = self._vectors(units[:, genotype.ordered], active[:, genotype.ordered], rng)
            with np.errstate(all="ignore"):
                strategy.update([Individual(vectors[i].tolist(), (), rank) for rank, i in enumerate(order.tolist())])
                moved = np.where(has[best], 0.0, vectors[best] - before)
                strategy.centroid = strategy.centroid - strategy.weights @ moved
            # Results of an older, wider generation may make the step larger than the space.
            strategy.sigma = min(float(strategy.sigma), 1.0)
        for place, (index, size) in enumerate(zip(genotype.categorical, genotype.choices, strict=True)):
            weights = strategy.weights * active[best, index]
            chosen = np.minimum(size - 1, (units[best, index] * size).astype(int))
            target = np.bincount(chosen, weights=weights, minlength=size)
            shares = self.shares[place] + _SHARE_RATE * (target - weights.sum() * self.shares[place])
            shares = np.maximum(shares, min(self._margin, 0.5 / size))
            self.shares[place] = shares / shares.sum()
        self._bests.append(float(min(values)))

    def _vectors(self, units: Array, active: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Returns the points' coordinates, and which of them the points have; both of shape (n, n_coordinates)."""
        strategy = self._strategy
        has = active.astype(bool)
        drawn = strategy.centroid + strategy.sigma * (rng.standard_normal(units.shape) @ strategy.BD.T)
        return np.where(has, units, drawn), has

    def sample(self, normal: Array, numbers: Array) -> list[float]:
        """Returns a sample as a unit vector, shape (n_dims,).

        Args:
            normal: the step, standard normal numbers, shape (n_coordinates,).
            numbers: uniform numbers in [0, 1) that select choices, shape (n_dims,).
        """
        strategy = self._strategy
        step = strategy.sigma * (strategy.BD @ normal)
        vector: Array = strategy.centroid + step
        if vector.min() < 0.0 or vector.max() > 1.0:
            vector = strategy.centroid + _SHORTENED * step
        return self._unit(vector, numbers)

    def sample_near(
        self, unit: Sequence[float], share: float, normal: np.random.Generator, rng: random.Random
    ) -> list[float]:
        """Returns a unit vector near another, by a shortened step of the distribution; for small feasible regions.

        Args:
            unit: shape (n_dims,).
            share: the factor by which the step is shortened.
            normal: the random stream of the step.
            rng: the random stream of the choices.
        """
        strategy, genotype = self._strategy, self._genotype
        middle = np.array([unit[index] for index in genotype.ordered] or [0.5])
        step = strategy.BD @ normal.standard_normal(len(middle))
        near = self._unit(middle + share * strategy.sigma * step, normal.random(genotype.size))
        for index in genotype.categorical:
            if rng.random() < 0.5:
                near[index] = unit[index]
        return near

    def _unit(self, vector: Array, numbers: Array) -> list[float]:
        genotype = self._genotype
        unit = [0.5] * genotype.size
        for column, index in enumerate(genotype.ordered):
            unit[index] = min(1.0, max(0.0, float(vector[column])))
        for shares, index, size in zip(self.shares, genotype.categorical, genotype.choices, strict=True):
            choice = int(np.searchsorted(np.cumsum(shares), numbers[index], side="right"))
            unit[index] = (min(size - 1, choice) + 0.5) / size
        return unit

    def is_spent(self) -> bool:
        """Tells whether it has collapsed, or the best values of recent updates are all equal (Hansen's TolHistFun)."""
        strategy = self._strategy
        numbers = np.concatenate([strategy.centroid, strategy.diagD, [strategy.sigma]])
        if not np.all(np.isfinite(numbers)) or strategy.diagD.min() <= 0:
            return True
        if self._genotype.ordered and (
            strategy.sigma * strategy.diagD.max() < _NARROWEST or strategy.cond > _WORST_CONDITION
        ):
            return True
        patience = 10 + math.ceil(30 * self._genotype.size / self.population)
        window = self._bests[-patience:]
        return len(window) == patience and max(window) - min(window) <= 1e-12 * max(map(abs, window))


#: The least spread around each of the best points, as a share of the range.
_LEAST_SPREAD = 0.1

#: The least number of good points.
_FEWEST = 3


def head_start(
    space: SearchSpace, genotype: Genotype, earlier: Mapping[str, Sequence[Observation]], sigma: float, population: int
) -> Distribution | None:
    """Returns a distribution around the best points of earlier searches, never wider than `sigma`.

    Returns:
        None where too few points are known.
    """
    best = best_of_earlier(earlier)
    if len(best) < _FEWEST:
        return None
    units = np.array([o.unit for o in best])
    active = np.array([[name in o.point for name in space.names] for o in best])
    columns = genotype.ordered
    coordinates = units[:, columns] if columns else np.full((len(best), 1), 0.5)
    centroid = coordinates.mean(axis=0)
    offsets = coordinates - centroid
    covariance = _LEAST_SPREAD**2 * np.eye(len(centroid)) + offsets.T @ offsets / len(best)
    unknown = ~active[:, columns].any(axis=0) if columns else np.ones(1, dtype=bool)
    covariance[unknown, unknown] = sigma**2
    scale = math.exp(float(np.linalg.slogdet(covariance)[1]) / (2 * len(centroid)))
    distribution = Distribution(genotype, centroid, min(sigma, scale), population, covariance / scale**2)
    for place, (index, size) in enumerate(zip(genotype.categorical, genotype.choices, strict=True)):
        chosen = np.minimum(size - 1, (units[:, index] * size).astype(int))
        counts = np.bincount(chosen, weights=active[:, index].astype(float), minlength=size)
        distribution.shares[place] = (counts + 1.0) / (counts.sum() + size)
    return distribution


#: Samples per point wanted that may be duplicates or infeasible, before samples are drawn near the best points, with
#: shorter and shorter steps, and last at random.
_TRIES_PER_POINT = 20
_SHORTER = (0.5, 0.2, 0.05)

#: Updates per width (points asked for and pending), at most. Many small updates from results of one distribution
#: mislead it; one large update wastes results. Batches of 64 (19 problems, 8 seeds): updates of 16 had 0.5 times the
#: regret of updates of 64; of 24 and 32, 0.6 times; of 8, 1.3 times. Batches of 128 (14 problems, 5 seeds): 32 was the
#: best of 16 to 64. Batches of 16 and 32: updates of the whole batch were worst. Asynchronous: measured with 8 at once.
_UPDATES_PER_WIDTH = 4

#: Populations for large widths: few, so that a shrinking last batch does not replay the history for each size.
_WIDE_POPULATIONS = [12, 16, 24, 32, 48, 64, 96, 128, 192, 256]

#: With constraints, the first spread is that of a sample of feasible points of this size; if fewer than the second
#: number are found, it is the same as without constraints. With that of the whole cube the regret was higher in 22 and
#: lower in 14 of 36 runs (two problems, 96 trials).
_FEASIBLE_SAMPLE, _LEAST_FEASIBLE = 64, 8

#: Number of runs kept, one per population.
_KEPT_RUNS = 3

#: Number of best points kept, near which feasible points are sought.
_BEST = 5


class CmaSettings(BaseSettings):
    """Settings in the search file.

    Attributes:
        population: results per update of the distribution. None: depends on the number of dimensions and the width.
        sigma: the first standard deviation, as a share of each range.
    """

    population: Annotated[int, Field(ge=4, le=MOST_POPULATION, strict=True)] | None = None
    sigma: Annotated[float, Field(gt=0, le=1)] = 0.2


class CmaOptimizer(Optimizer):
    """DEAP's CMA-ES, rebuilt by replaying the told results.

    Results are used in the order in which they were told, one population at a time, independent of the generation in
    which they were proposed: no update waits for the slowest trial. An update needs as many good values as it has
    parents. Failed trials rank last; stopped trials rank by their projected values, but never before the best finished
    trial. When the distribution has collapsed, or its updates do not improve any more, it restarts elsewhere, with
    the same population: where each restart doubled it (Auger and Hansen 2005), the regret was higher in 5 and lower in
    1 of 36 runs (18 rugged problems, 2,000 trials).

    The population depends on the width (points asked for and pending), so `ask` replays the new results for the
    population that it needs.
    """

    Settings = CmaSettings
    settings: CmaSettings

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Starts in the middle of the space; see `Optimizer`."""
        super().__init__(space, **options)
        self._genotype = Genotype(space)
        self._runs: dict[int, CmaRun] = {}

    def tell_earlier(self, source: str, trials: Iterable[Told]) -> None:
        """See `Optimizer.tell_earlier`; the first distribution starts around the best of them."""
        super().tell_earlier(source, trials)
        self._runs.clear()

    def _start_over(self) -> None:
        self._runs.clear()

    def population(self, n: int, pending: int) -> int:
        """Returns the number of results per update, for `n` points asked for and `pending` ones."""
        if self.settings.population is not None:
            return self.settings.population
        free = len(self._genotype.ordered) + len(self._genotype.categorical)
        least = 4 + int(2 * math.log(max(1, free)))
        share = math.ceil((n + pending) / _UPDATES_PER_WIDTH)
        if share > least:
            wide = bisect.bisect_left(_WIDE_POPULATIONS, share)
            return _WIDE_POPULATIONS[min(wide, len(_WIDE_POPULATIONS) - 1)]
        # Divides a batch into updates of equal size.
        return least if pending or n < least else math.ceil(n / (n // least))

    def run(self, population: int) -> CmaRun:
        """Returns the run with a population, updated with the whole history."""
        run = self._runs.pop(population, None) or CmaRun(
            self.space, self._genotype, self.seed + self.forgotten, population, self.settings.sigma, self.earlier
        )
        self._runs[population] = run  # moves the run to the end: the last used
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
            self._offer_samples(proposals, run.distribution, normal)
            self._offer_near(proposals, run, normal, rng)
        return proposals.complete(rng, self._known_points(pending))

    def _offer_samples(self, proposals: Proposals, distribution: Distribution, normal: np.random.Generator) -> None:
        """Offers samples: for each point the even draw at its position, and other draws where that one is refused."""
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
            taken = proposals.offer(distribution.sample(step, numbers))

    def _offer_near(self, proposals: Proposals, run: CmaRun, normal: np.random.Generator, rng: random.Random) -> None:
        """Offers points near the best ones, where the samples have left some missing.

        In a feasible region of 0.1% of the space, the regret without it was higher in 16 and lower in 8 of 24 runs.
        """
        if not run.best:
            return
        for share in _SHORTER:
            for _ in range(_TRIES_PER_POINT * proposals.missing):
                if proposals.missing == 0:
                    return
                unit = rng.choice(run.best)[2]
                proposals.offer(run.distribution.sample_near(unit, share, normal, rng))


class CmaRun:
    """A replay of the history with one population.

    Attributes:
        distribution: the distribution after the replayed results.
        restarts: the number of restarts.
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
        """Starts before the first result."""
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
        if self._space.constraints and self._genotype.ordered:
            rng = stream(self._seed, "feasible", self.restarts)
            units = feasible_units(self._space, _FEASIBLE_SAMPLE, rng, [unit for _, _, unit in self.best])
            if len(units) >= _LEAST_FEASIBLE:
                places = units[:, self._genotype.ordered]
                # The ratio of sigma to the spread of the whole cube is kept for the feasible part.
                spread = np.maximum(places.std(axis=0) * math.sqrt(12.0), 1e-3)
                middle = places[0] if self.restarts else places.mean(axis=0)
                return Distribution(self._genotype, middle, self._sigma, self._population, np.diag(spread**2))
        return Distribution(self._genotype, centroid, self._sigma, self._population)

    def replay(self, history: Sequence[Observation]) -> None:
        """Replays the new results of the history."""
        if self._replayed == len(history):
            return
        with one_thread():
            for order in range(self._replayed, len(history)):
                self._take(history[order].ranked, order)
        self._replayed = len(history)

    def _take(self, told: Observation, order: int) -> None:
        if told.unit is None or not told.is_within_bounds:
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
