"""Which of several points, each with several costs, are better than which: fronts, ranks, crowding, hypervolume.

A point dominates another that it is no worse than in any cost and better than in one. Ranks are those of
non-dominated sorting, crowding is the distance to the neighbours on the same front: both as in NSGA-II (Deb, Pratap,
Agarwal, Meyarivan 2002). moocore (which DEAP brings) sorts, for it takes milliseconds where DEAP takes seconds, and
computes hypervolumes, exactly; DEAP measures the crowding.
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
    """Rows of costs as an array."""
    return np.array(rows, dtype=float) if len(rows) else np.empty((0, 1))


def front(costs: Costs) -> list[int]:
    """The rows that no other dominates, ascending; of equal ones all."""
    if not len(costs):
        return []
    return [int(row) for row in np.flatnonzero(moocore.is_nondominated(costs, keep_weakly=True))]


def ranks(costs: Costs) -> list[int]:
    """The front that each row is on, shape (n,): 0 where none dominates it, 1 where only rank 0 does, and so on."""
    return [int(rank) for rank in moocore.pareto_rank(costs)] if len(costs) else []


def crowding(costs: Costs) -> list[float]:
    """How far each row, all of one front, is from its neighbours, shape (n,): infinite at the ends of the front."""
    largest = np.abs(costs).max(axis=0, initial=1e-300)
    rows = [SimpleNamespace(fitness=SimpleNamespace(values=tuple(row))) for row in (costs / largest).tolist()]
    tools.emo.assignCrowdingDist(rows)
    return [float(row.fitness.crowding_dist) for row in rows]


def ranked(costs: Costs) -> list[int]:
    """All rows, the best first: by rank, then the least crowded first, then as they stand."""
    rank = np.array(ranks(costs), dtype=int)
    distance = np.zeros(len(costs))
    for each in set(rank.tolist()):
        rows = np.flatnonzero(rank == each)
        distance[rows] = crowding(costs[rows])
    return [int(row) for row in np.lexsort((np.arange(len(costs)), -distance, rank))]


def hypervolume(costs: Costs, reference: Sequence[float]) -> float:
    """The volume between the front of `costs` and a reference point, exactly; rows beyond it add nothing."""
    if not len(costs):
        return 0.0
    return min(float(moocore.hypervolume(costs, ref=np.array(reference, dtype=float))), sys.float_info.max)
