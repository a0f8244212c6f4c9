"""Fitness with several costs, and the population that non-dominated sorting keeps: NSGA-II's part of the evolution.

Deb, Pratap, Agarwal, Meyarivan 2002, "A fast and elitist multiobjective genetic algorithm: NSGA-II", by DEAP.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Self

import numpy as np
from deap import base

from hpo_pilot.optimizers.evolution.recipe import Individual
from hpo_pilot.optimizers.nondominated import costs_of, crowding, ranks


class CrowdedFitness(base.Fitness):  # type: ignore[misc]  # DEAP ships no types
    """Lower is better in each cost. Greater is what is on a front further ahead, or less crowded on the same.

    So the operators that ask which of two parents is the fitter go by NSGA-II's crowded comparison, and DEAP's
    tournament of two is its. (selTournamentDCD, which draws without replacement, found a little less.)

    Attributes:
        rank: how many fronts are ahead of its own, in the population that it was last selected into.
        crowding_dist: how far its neighbours on that front are; DEAP's name.
    """

    weights = (-1.0, -1.0)
    rank = 0
    crowding_dist = 0.0

    @property
    def _place(self) -> tuple[int, float]:
        return (-self.rank, self.crowding_dist)

    def __gt__(self, other: Self) -> bool:
        return self._place > other._place

    def __ge__(self, other: Self) -> bool:
        return self._place >= other._place

    def __lt__(self, other: Self) -> bool:
        return self._place < other._place

    def __le__(self, other: Self) -> bool:
        return self._place <= other._place

    def __deepcopy__(self, memo: Any) -> Self:
        copied = copy.copy(self)  # DEAP's own forgets rank and crowding
        memo[id(self)] = copied
        return copied


@cache
def crowded_fitness(objectives: int) -> type[CrowdedFitness]:
    """The class of fitness with so many costs; DEAP has the weights in the class."""
    return type(f"CrowdedFitness{objectives}", (CrowdedFitness,), {"weights": (-1.0,) * objectives})


class CrowdedPopulation:
    """What survives of all that was told.

    After each `size` individuals, the best `size` of them and of those that survived before survive. In between, those
    told since count too. So it depends on the order of what was told, and not on how many were told at a time.
    """

    def __init__(self, size: int) -> None:
        """Empty.

        Args:
            size: how many survive.
        """
        self._size = size
        self._survivors: list[Individual] = []
        self._new: list[Individual] = []

    def add(self, individual: Individual) -> None:
        """Takes an individual with a `CrowdedFitness`."""
        self._new.append(individual)
        if len(self._new) == self._size:
            self._survivors, self._new = self._selected(), []

    def parents(self) -> list[Individual]:
        """The present population, front by front, the least crowded first; their ranks and crowding are set."""
        return self._selected()

    def _selected(self) -> list[Individual]:
        """NSGA-II's selection. DEAP's own, `selNSGA2`, overflows where costs are more than 1.8e308 apart."""
        everyone = self._survivors + self._new
        costs = costs_of([individual.fitness.values for individual in everyone])
        fronts = np.array(ranks(costs), dtype=int)
        for rank in range(fronts.max(initial=-1) + 1):
            rows = np.flatnonzero(fronts == rank)
            for row, distance in zip(rows.tolist(), crowding(costs[rows]), strict=True):
                everyone[row].fitness.rank, everyone[row].fitness.crowding_dist = rank, distance
        return sorted(everyone, key=lambda individual: individual.fitness, reverse=True)[: self._size]
