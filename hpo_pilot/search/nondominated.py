"""Compares points with several costs: fronts, ranks, crowding distance and hypervolume.

Point A dominates point B if it is not worse in any cost and better in at least one. Ranks are those of non-dominated
sorting, and the crowding distance is the distance to the neighbours on the same front; both as in NSGA-II (Deb, Pratap,
Agarwal, Meyarivan 2002). moocore (which DEAP requires) sorts, in milliseconds where DEAP takes seconds, and computes
exact hypervolumes; DEAP computes the crowding distance.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace

import moocore
import numpy as np
import numpy.typing as npt
from deap import tools

#: Shape (n, n_objectives); lower is better in each column.
Costs = npt.NDArray[np.float64]


def costs_of(rows: Sequence[Sequence[float]]) -> Costs:
    """Returns rows of costs as an array."""
    return np.array(rows, dtype=float) if len(rows) else np.empty((0, 1))


def front(costs: Costs) -> list[int]:
    """Returns the rows that no other row dominates, in ascending order; equal rows are all included."""
    if not len(costs):
        return []
    return [int(row) for row in np.flatnonzero(moocore.is_nondominated(costs, keep_weakly=True))]


def ranks(costs: Costs) -> list[int]:
    """Returns the rank of each row, shape (n,): 0 where no row dominates it, 1 where only rank 0 does, and so on."""
    return [int(rank) for rank in moocore.pareto_rank(costs)] if len(costs) else []


def crowding(costs: Costs) -> list[float]:
    """Returns the crowding distance of the rows of one front, shape (n,); infinite at the ends of the front."""
    largest = np.abs(costs).max(axis=0, initial=1e-300)
    rows = [SimpleNamespace(fitness=SimpleNamespace(values=tuple(row))) for row in (costs / largest).tolist()]
    tools.emo.assignCrowdingDist(rows)
    return [float(row.fitness.crowding_dist) for row in rows]


def ranked(costs: Costs) -> list[int]:
    """Returns all rows, best first: by rank, then the least crowded first, then in the given order."""
    rank = np.array(ranks(costs), dtype=int)
    distance = np.zeros(len(costs))
    for each in set(rank.tolist()):
        rows = np.flatnonzero(rank == each)
        distance[rows] = crowding(costs[rows])
    return [int(row) for row in np.lexsort((np.arange(len(costs)), -distance, rank))]


def hypervolume(costs: Costs, reference: Sequence[float]) -> float:
    """Returns the exact volume between the front of `costs` and a reference point; rows beyond it add nothing."""
    if not len(costs):
        return 0.0
    return min(float(moocore.hypervolume(costs, ref=np.array(reference, dtype=float))), sys.float_info.max)
