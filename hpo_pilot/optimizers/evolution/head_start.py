"""Where CMA-ES starts if earlier searches are known (Nomura et al. 2021, warm starting CMA-ES)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.evolution.distribution import Distribution
from hpo_pilot.optimizers.evolution.earlier_best import best_of_earlier
from hpo_pilot.optimizers.evolution.genotype import Genotype
from hpo_pilot.search import SearchSpace

#: The least spread around each of the best points, as a share of the range.
_LEAST_SPREAD = 0.1

#: Fewer good points than this say too little.
_FEWEST = 3


def head_start(
    space: SearchSpace, genotype: Genotype, earlier: Mapping[str, Sequence[Observation]], sigma: float, population: int
) -> Distribution | None:
    """The distribution of the best earlier points: as narrow as they agree, never wider than `sigma`.

    Returns:
        None where too little is known.
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
