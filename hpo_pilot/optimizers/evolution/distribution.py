"""The distribution that CMA-ES learns: a normal one over ordered dimensions, shares over the choices of the others.

The normal one is DEAP's `cma.Strategy`. What DEAP's does not know is here:

- A discrete value is a cell of its coordinate. A told point's coordinate is drawn from the part of the normal
  distribution that lies in its cell: what the sample was, as far as it can be known. With `margin` (below) the
  distribution cannot get stuck in one cell, as it does by rounding alone (Hamano et al. 2022, CMA-ES with Margin).
- A categorical dimension has a share for each choice, moved towards the choices of the better half (Hamano et al. 2024,
  CatCMA, with a fixed rate), and never below a margin.
- Where a dimension is inactive, its coordinate is drawn from the distribution as it stands, and the centroid does not
  follow it: it neither drifts nor shrinks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from deap import cma
from scipy.special import ndtr, ndtri

from hpo_pilot.optimizers.evolution.genotype import Array, Genotype
from hpo_pilot.optimizers.evolution.recipe import Individual

#: A step that leads out of the bounds is made shorter by this, once; what is still outside is set on the bound. On the
#: development problems (96 trials) that did as well as steps made shorter until they fit, and better than drawing them
#: again, which breaks up the pairs of even draws; where the best point lies on bounds, it was ahead of both.
_SHORTENED = 0.5

#: How far the shares of the choices move towards those of the better half in one update. On 30 mixed development
#: problems (96 trials, 4 seeds) 0.5 did better than 0.3; 0.8 did as well.
_SHARE_RATE = 0.5

#: It is spent when it became narrower than this (as a share of the range), or this ill-conditioned.
_NARROWEST, _WORST_CONDITION = 1e-7, 1e14

#: Cells that hold less of the distribution than this are filled evenly.
_LEAST_MASS = 1e-6


class Distribution:
    """A normal distribution and shares, updated by ranked points.

    Attributes:
        population: how many results make an update.
        parents: how many of them it moves towards.
        updates: how many there were.
    """

    def __init__(
        self, genotype: Genotype, centroid: Array, sigma: float, population: int, covariance: Array | None = None
    ) -> None:
        """A fresh one, with even shares.

        Args:
            genotype: the coordinates.
            centroid: shape (n_coordinates,).
            sigma: the standard deviation, as a share of each range.
            population: results an update.
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
        """How often it was updated."""
        return len(self._bests)

    @property
    def centroid(self) -> Array:
        """Its middle, shape (n_coordinates,)."""
        middle: Array = self._strategy.centroid
        return middle

    @property
    def spread(self) -> Array:
        """The standard deviation of each coordinate, shape (n_coordinates,)."""
        deviation: Array = self._strategy.sigma * np.sqrt(np.diag(self._strategy.C))
        return deviation

    def update(self, units: Array, active: Array, values: Sequence[float], rng: np.random.Generator) -> None:
        """Moves towards the better half.

        Args:
            units: the points, shape (n, n_dims), all within [0, 1].
            active: which dimensions each point has, shape (n, n_dims).
            values: lower is better; inf for failed ones.
            rng: the random stream of this update.
        """
        strategy, genotype = self._strategy, self._genotype
        before, spread = strategy.centroid.copy(), self.spread
        vectors, has = self._vectors(units[:, genotype.ordered], active[:, genotype.ordered], rng)
        order = np.argsort(np.asarray(values), kind="stable")
        best = order[: self.parents]
        with np.errstate(all="ignore"):
            strategy.update([Individual(vectors[i].tolist(), (), rank) for rank, i in enumerate(order.tolist())])
            moved = np.where(has[best], 0.0, vectors[best] - before)
            strategy.centroid = strategy.centroid - strategy.weights @ moved
        # Results of an older, wider generation may push the step beyond the space itself.
        strategy.sigma = min(float(strategy.sigma), 1.0)
        self._keep_spread(spread, strategy.weights @ np.where(has[best], 0.0, 1.0))
        for place, (index, size) in enumerate(zip(genotype.categorical, genotype.choices, strict=True)):
            weights = strategy.weights * active[best, index]
            chosen = np.minimum(size - 1, (units[best, index] * size).astype(int))
            target = np.bincount(chosen, weights=weights, minlength=size)
            shares = self.shares[place] + _SHARE_RATE * (target - weights.sum() * self.shares[place])
            shares = np.maximum(shares, min(self._margin, 0.5 / size))
            self.shares[place] = shares / shares.sum()
        self._bests.append(float(min(values)))

    def _keep_spread(self, spread: Array, inactive: Array) -> None:
        """Gives coordinates their former spread back, by the weight of the parents that do not have them.

        Args:
            spread: the standard deviations before the update, shape (n_coordinates,).
            inactive: that weight, in [0, 1], shape (n_coordinates,).
        """
        strategy = self._strategy
        if not inactive.any() or not self._genotype.ordered or not np.all(np.isfinite(strategy.C)):
            return
        variance = np.diag(strategy.C)
        wanted = (1.0 - inactive) * variance + inactive * (spread / strategy.sigma) ** 2
        scale = np.sqrt(wanted / variance)
        strategy.C = strategy.C * np.outer(scale, scale)  # stays positive definite, correlations as they are
        squares, strategy.B = np.linalg.eigh(strategy.C)
        strategy.diagD = np.sqrt(np.maximum(squares, 0.0))
        strategy.BD = strategy.B * strategy.diagD
        strategy.cond = squares[-1] / squares[0] if squares[0] > 0 else math.inf

    def _vectors(self, units: Array, active: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """The points' coordinates, and which of them the points have; both of shape (n, n_coordinates)."""
        strategy, genotype = self._strategy, self._genotype
        centroid, spread = strategy.centroid, self.spread
        count, size = len(units), len(centroid)
        if not genotype.ordered:  # one coordinate that stands for nothing keeps DEAP going
            return np.tile(centroid, (count, 1)), np.zeros((count, size), dtype=bool)
        vectors = units.copy()
        shares = rng.random((count, size))
        for column in genotype.discrete:
            low, high = genotype.cells(column, units[:, column])
            # What was set on a bound lay beyond it.
            below = np.where(low <= 1e-9, 0.0, ndtr((low - centroid[column]) / spread[column]))
            above = np.where(high >= 1.0 - 1e-9, 1.0, ndtr((high - centroid[column]) / spread[column]))
            inside = centroid[column] + spread[column] * ndtri(below + shares[:, column] * (above - below))
            evenly = low + shares[:, column] * (high - low)
            drawn = np.where(above - below < _LEAST_MASS, evenly, np.clip(inside, 0.0, 1.0))
            vectors[:, column] = np.where(np.isfinite(drawn), drawn, evenly)
        has = active.astype(bool)
        if not has.all():
            drawn = centroid + strategy.sigma * (rng.standard_normal((count, size)) @ strategy.BD.T)
            vectors = np.where(has, vectors, drawn)
        return vectors, has

    def sample(self, normal: Array, numbers: Array, rng: random.Random) -> list[float]:
        """A unit vector, shape (n_dims,).

        Discrete ordered dimensions leave the value that was drawn for a neighbour with probability
        1 / (population × dimensions), so that no value dies out.

        Args:
            normal: the step, standard normal numbers, shape (n_coordinates,).
            numbers: what choices and neighbours are drawn by, in [0, 1), shape (n_dims,).
            rng: the random stream that says which neighbour.
        """
        strategy = self._strategy
        step = strategy.sigma * (strategy.BD @ normal)
        vector: Array = strategy.centroid + step
        if vector.min() < 0.0 or vector.max() > 1.0:
            vector = strategy.centroid + _SHORTENED * step
        return self._unit(vector, numbers, rng)

    def sample_near(
        self, unit: Sequence[float], share: float, normal: np.random.Generator, rng: random.Random
    ) -> list[float]:
        """A unit vector near another, by a step of the distribution made shorter; for what constraints leave little.

        Args:
            unit: shape (n_dims,).
            share: how much of the step is left.
            normal: the random stream of the step.
            rng: the random stream of the choices.
        """
        strategy, genotype = self._strategy, self._genotype
        middle = np.array([unit[index] for index in genotype.ordered] or [0.5])
        step = strategy.BD @ normal.standard_normal(len(middle))
        near = self._unit(middle + share * strategy.sigma * step, normal.random(genotype.size), rng)
        for index in genotype.categorical:
            if rng.random() < 0.5:
                near[index] = unit[index]
        return near

    def _unit(self, vector: Array, numbers: Array, rng: random.Random) -> list[float]:
        genotype = self._genotype
        unit = [0.5] * genotype.size
        for column, index in enumerate(genotype.ordered):
            place = float(vector[column])
            if column in genotype.discrete and numbers[index] < self._margin:
                place += rng.choice((-1, 1)) * genotype.width(column, place)
            unit[index] = min(1.0, max(0.0, place))
        for shares, index, size in zip(self.shares, genotype.categorical, genotype.choices, strict=True):
            choice = int(np.searchsorted(np.cumsum(shares), numbers[index], side="right"))
            unit[index] = (min(size - 1, choice) + 0.5) / size
        return unit

    def is_spent(self) -> bool:
        """Whether it has collapsed, or its updates' bests have become one value (Hansen's TolHistFun)."""
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
