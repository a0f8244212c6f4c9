"""Choosing a batch: one point after the other, each as if those before it had returned what was predicted for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.bayesian.climb import Climber, starts_apart
from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.bayesian.spacing import Spacing
from hpo_pilot.optimizers.bayesian.success import Caution
from hpo_pilot.optimizers.bayesian.surrogate import Surrogate
from hpo_pilot.optimizers.proposals import Proposals

Array = npt.NDArray[np.float64]

#: More than any logarithm of an expected improvement that matters; less than what a probable failure costs.
_CROWDED = 5e3

#: How many points of a batch are climbed to; the rest are the pool's best. The cost of a climb grows with the square
#: of the points known, so it is the first few that get one.
_MOST_CLIMBS, _LEAST_CLIMBS, _CLIMB_BUDGET = 16, 2, 4_000_000


class BatchChooser:
    """Greedy choice by expected improvement times the probability of success (kriging believer).

    Where there are several models they take turns, and each believes what the others chose: when one is sure of
    something wrong, the others' points tell.
    """

    def __init__(
        self,
        features: FeatureMap,
        surrogates: Sequence[Surrogate],
        known: Array,
        out: Array,
        turn: int,
        caution: Caution,
        feasible: Callable[[Array], Array],
    ) -> None:
        """Knows what is told and pending.

        Args:
            features: the map from unit vectors.
            surrogates: the models; used up.
            known: the features of points that are told, failures too, shape (n, n_features).
            out: the features of those that are not yet, shape (m, n_features).
            turn: whose turn is first.
            caution: keeps away from where trials fail.
            feasible: those of some unit vectors that satisfy the constraints.
        """
        self._map = features
        self._surrogates = list(surrogates)
        self._turn = turn
        self._caution = caution
        self._spacings = [Spacing(surrogate.scales, known, out) for surrogate in surrogates]
        self._climber = Climber(features, feasible)

    def fill(self, proposals: Proposals, units: Array) -> None:
        """Offers the best candidates until none is missing, or none is left.

        Args:
            proposals: where accepted points go.
            units: the candidates, snapped, shape (m, n_dims); m above 0.
        """
        features = self._map.features(units)
        for surrogate, spacing in zip(self._surrogates, self._spacings, strict=True):
            surrogate.look_at(features, proposals.missing)
            spacing.look_at(features)
        bonus = self._caution.look_at(features)
        climbs = int(np.clip(_CLIMB_BUDGET / max(1.0, self._surrogates[0].cost), _LEAST_CLIMBS, _MOST_CLIMBS))
        while proposals.missing > 0:
            turn = self._turn % len(self._surrogates)
            chooses, spacing = self._surrogates[turn], self._spacings[turn]
            scores = chooses.scores(bonus - _CROWDED * spacing.crowded_candidates())
            index = int(np.argmax(scores))
            if scores[index] == -np.inf:
                return
            if climbs > 0:
                climbs -= 1
                starts = units[starts_apart(features, scores, chooses.scales)]
                chosen = self._climber.climb(chooses, proposals, starts, partial(self._penalty, spacing))
                if chosen is not None:
                    self._take(chosen)
                    for surrogate in self._surrogates:
                        surrogate.believe(chosen)
                    continue
                climbs = 0  # from here on only candidates are believed
            bonus[index] = -np.inf
            if proposals.offer(units[index].tolist()):
                self._take(features[index])
                for surrogate in self._surrogates:
                    surrogate.believe_candidate(index)

    def _penalty(self, spacing: Spacing, features: Array) -> Array:
        return self._caution.penalty(features) - _CROWDED * spacing.crowded(features)

    def _take(self, features: Array) -> None:
        self._turn += 1
        for spacing in self._spacings:
            spacing.add(features)
