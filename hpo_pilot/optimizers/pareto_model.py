"""The Bayesian optimizer's model of several objectives: a Gaussian process for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.base import Observation
from hpo_pilot.optimizers.candidates import Candidates
from hpo_pilot.optimizers.features import FeatureMap
from hpo_pilot.optimizers.gaussian_process import Hyperparameters, fit_hyperparameters
from hpo_pilot.optimizers.nondominated import crowding, front, ranks
from hpo_pilot.optimizers.pareto_batch import ParetoBatch
from hpo_pilot.optimizers.placement import unit_vector
from hpo_pilot.optimizers.posterior import Posterior
from hpo_pilot.optimizers.proposals import Proposals, placed
from hpo_pilot.optimizers.streams import array_stream, stream
from hpo_pilot.optimizers.success import SuccessModel, fit_outcomes
from hpo_pilot.optimizers.told import Told
from hpo_pilot.optimizers.values import normalised
from hpo_pilot.search import Point, SearchSpace

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: As for one objective: hyper-parameters are fitted on this many points at most, the posteriors are conditioned on this
#: many, the probability of success on this many. There are several posteriors, so that they have fewer points each.
_FITTED, _CONDITIONED, _OUTCOMES = 256, 1_500, 500

#: Good values without which there is no model.
_LEAST_VALUES = 3

#: Local candidates surround this many points of the front.
_BEST = 20

#: The more of this many recent trials failed, the likelier to succeed a point must be.
_RECENT, _CAUTION = 16, 0.8

#: The reference point lies beyond the worst of the front and beyond what this share of all trials reached, by this
#: share of the range, and by so much at least (of a deviation of all values).
_SHARE, _BEYOND, _LEAST_BEYOND = 0.75, 0.1, 0.1


class ParetoModel:
    """Proposes by expected hypervolume improvement. Its state is a function of what was told, in its order."""

    def __init__(
        self,
        space: SearchSpace,
        features: FeatureMap,
        candidates: Candidates,
        *,
        seed: int,
        objectives: int,
        refit_cut: Callable[[int], int],
    ) -> None:
        """Knows nothing yet.

        Args:
            space: the space.
            features: its features.
            candidates: where points are sought.
            seed: the optimizer's.
            objectives: how many, 2 or more.
            refit_cut: on how many of so many trials hyper-parameters are fitted.
        """
        self._space = space
        self._features = features
        self._candidates = candidates
        self._seed = seed
        self._refit_cut = refit_cut
        self._told = [Told() for _ in range(objectives)]
        self._whole: set[tuple[float, ...]] = set()  # the places of trials that ran to their end
        self._fits: dict[str, tuple[int, Hyperparameters]] = {}  # the last fit of each kind, and its cut

    def add(self, observation: Observation) -> None:
        """Takes a trial."""
        if observation.unit is not None and not observation.stopped:
            self._whole.add(observation.unit)
        for j, told in enumerate(self._told):
            values = None if observation.values is None else observation.values[j : j + 1]
            stds = None if observation.stds is None else observation.stds[j : j + 1]
            told.add(replace(observation, values=values, stds=stds))

    def fill(self, proposals: Proposals, pending: list[Point], history: Sequence[Observation]) -> None:
        """Fills a batch.

        Args:
            proposals: the batch.
            pending: the points that are out.
            history: what was told.
        """
        rng = array_stream(self._seed, "choose", proposals.known)
        units, costs = self._table(len(self._told[0]))
        good = np.flatnonzero(~np.isnan(costs[:, 0]))
        features = self._features.features(units)
        rows = _most_telling(costs, good, _CONDITIONED, rng)
        places = np.searchsorted(good, rows)
        posteriors = [
            Posterior.of_data(self._fit(j), features[rows], normalised(costs[good, j])[places])
            for j in range(costs.shape[1])
        ]
        fitted = np.stack([posterior.fitted() for posterior in posteriors], axis=1)
        # What was stopped early informs by its guess, and is never on the front.
        whole = np.array([tuple(unit) in self._whole for unit in units[rows].tolist()], dtype=bool)
        rows = rows[whole] if whole.any() else rows
        reached = fitted[whole] if whole.any() else fitted
        members = np.array(front(reached))
        reference = _reference(reached, members)
        best = members[np.argsort(-np.array(crowding(reached[members])), kind="stable")[:_BEST]]
        out = [unit_vector(self._space, point) for point in [*pending, *proposals.points]]
        believed = self._features.features(
            np.array([unit for unit in out if unit is not None]).reshape(-1, units.shape[1])
        )
        if len(believed):
            expected = np.stack([posterior.predict(believed)[0] for posterior in posteriors], axis=1)
            reached = np.concatenate([reached, expected])
            posteriors = [posterior.believing(believed) for posterior in posteriors]
        feasible: list[tuple[float, ...]] = []
        if self._space.constraints:
            recent = [observation.point for observation in history[-64:]]
            feasible = list(placed(self._space, [*proposals.points, *pending, *recent]))
        candidates = self._candidates.draw(
            proposals.missing, units[rows[best]], feasible, rng, stream(self._seed, "feasible", proposals.known)
        )
        if len(candidates):
            batch = ParetoBatch(
                self._features,
                posteriors,
                reached,
                reference,
                log_success=self._success(features, np.isnan(costs[:, 0]), rng),
                caution=_CAUTION * self._told[0].failing(_RECENT),
                feasible=self._candidates.feasible,
            )
            batch.fill(proposals, candidates)

    def _table(self, length: int) -> tuple[Array, Array]:
        """The distinct points of the first `length` trials: units, shape (n, n_dims), costs (n, n_objectives)."""
        tables = [told.table(length) for told in self._told]
        return tables[0][0], np.stack([values for _, values in tables], axis=1)

    def _success(self, features: Array, failed: Mask, rng: np.random.Generator) -> Callable[[Array], Array] | None:
        """The logarithm of the probability of success; None where nothing failed."""
        if not failed.any():
            return None
        seen = _some_of_both(failed, _OUTCOMES, rng)
        return SuccessModel(self._fit("outcomes"), features[seen], failed[seen]).log_probability

    def _fit(self, kind: int | str) -> Hyperparameters:
        """The hyper-parameters of an objective, or of the outcomes (value or failure), at the present cut."""
        cut = self._refit_cut(len(self._told[0]))
        known = self._fits.get(str(kind))
        if known is None or known[0] != cut:
            known = (cut, self._fit_at(kind, cut))
            self._fits[str(kind)] = known
        return known[1]

    def _fit_at(self, kind: int | str, cut: int) -> Hyperparameters:
        units, costs = self._table(cut)
        failed = np.isnan(costs[:, 0])
        rng = array_stream(self._seed, "fit", kind if kind == "outcomes" else "values", cut)
        if kind == "outcomes":
            if failed.all() or not failed.any():  # the first failure came after the cut
                return self._wide()
            rows = _some_of_both(failed, _FITTED, rng)
            return fit_outcomes(self._features.features(units[rows]), failed[rows])
        assert isinstance(kind, int)
        rows = _most_telling(costs, np.flatnonzero(~failed), _FITTED, rng)
        if len(rows) < _LEAST_VALUES:  # the first values came after the cut
            return self._wide()
        return fit_hyperparameters(self._features.features(units[rows]), normalised(costs[rows, kind]))

    def _wide(self) -> Hyperparameters:
        """What is assumed before anything can be fitted: smooth, with a little noise."""
        size = self._features.size
        return Hyperparameters(1.0, np.full(size, 0.5 * math.sqrt(size)), 1e-2)


def _reference(reached: Array, members: npt.NDArray[np.int64]) -> Array:
    """The reference point for normalised costs, shape (n, n_objectives), of which the rows `members` are the front.

    Beyond the worst of the front, and beyond what a good share of all trials reached: the end of the present front is
    not that of the true one, and what extends it must be worth something.
    """
    worst = np.maximum(reached[members].max(axis=0), np.quantile(reached, _SHARE, axis=0))
    return np.asarray(worst + np.maximum(_BEYOND * (worst - reached.min(axis=0)), _LEAST_BEYOND))


def _most_telling(
    costs: Array, good: npt.NDArray[np.int64], limit: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """At most `limit` of the rows `good`, ascending: the better half by their fronts, the others at random."""
    if len(good) <= limit:
        return good
    ranked = good[np.argsort(ranks(costs[good]), kind="stable")]
    others = rng.choice(ranked[limit // 2 :], limit - limit // 2, replace=False)
    return np.sort(np.concatenate([ranked[: limit // 2], others]))


def _some_of_both(failed: Mask, limit: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows, at most `limit`, ascending: failures and successes at random, up to one half each where both abound."""
    if len(failed) <= limit:
        return np.arange(len(failed))
    bad, good = np.flatnonzero(failed), np.flatnonzero(~failed)
    take_bad = min(len(bad), max(limit // 2, limit - len(good)))
    take_good = min(len(good), limit - take_bad)
    chosen = [rng.choice(bad, take_bad, replace=False), rng.choice(good, take_good, replace=False)]
    return np.sort(np.concatenate(chosen))
