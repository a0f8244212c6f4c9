"""Bayesian optimization: a Gaussian process learns the values, and the batch goes where improvement is expected."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.stats import qmc

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer
from hpo_pilot.optimizers.batch import BatchChooser
from hpo_pilot.optimizers.candidates import Candidates
from hpo_pilot.optimizers.features import FeatureMap
from hpo_pilot.optimizers.gaussian_process import Hyperparameters, fit_hyperparameters
from hpo_pilot.optimizers.pareto_model import ParetoModel
from hpo_pilot.optimizers.placement import unit_vector
from hpo_pilot.optimizers.posterior import Posterior
from hpo_pilot.optimizers.proposals import Proposals, placed
from hpo_pilot.optimizers.streams import array_stream, stream
from hpo_pilot.optimizers.success import SuccessModel, fit_outcomes
from hpo_pilot.optimizers.threads import one_thread
from hpo_pilot.optimizers.told import Told
from hpo_pilot.optimizers.values import normalised
from hpo_pilot.search import Point, SearchSpace

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Hyper-parameters are fitted on this many points at most, the posterior is conditioned on this many, the probability
#: of success on this many: their costs grow with the cube.
_FITTED, _CONDITIONED, _OUTCOMES = 256, 2_000, 500

#: Up to this many trials every one brings a new fit; from then on, growth by this share does.
_FIT_EACH, _GROWTH = 20, 0.05

#: Good values without which there is no model.
_LEAST_VALUES = 3

#: Local candidates surround this many of the best points.
_BEST = 10

#: Where an optimum lies at the edge of a region that fails, a large improvement that probably fails outweighs a small
#: one that does not, time after time. So the more of this many recent trials failed, the likelier to succeed a point
#: must be.
_RECENT, _CAUTION = 16, 0.8

#: Start points tried per point wanted before random ones fill up: constraints and small spaces refuse many.
_TRIES_PER_START = 16


class BayesianSettings(BaseSettings):
    """What a search file may set.

    Attributes:
        start_points: how many points of an even spread come before the model has its say. None: two per dimension,
            between 8 and 40, at most a third of the budget.
    """

    start_points: Annotated[int, Field(ge=1, strict=True)] | None = None


class BayesianOptimizer(Optimizer):
    """A scikit-optimize Gaussian process with a batch choice of its own.

    Scrambled Sobol points first. Then, for each `ask`: values are normalised; the process is conditioned on the told
    points and believes the pending ones to return what it predicts; the batch is chosen greedily by log expected
    improvement. Failed trials have no value; a second process learns where they lie, and the batch keeps away.

    Hyper-parameters belong to a cut of the history: they are fitted from fixed starts on the trials up to the last
    refit that the number of trials calls for, so a rebuilt optimizer finds the very same ones. Nothing else is kept.
    """

    Settings = BayesianSettings
    settings: BayesianSettings
    several_objectives = True

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Lays out the features; see `Optimizer`."""
        super().__init__(space, **options)
        self.start_points = self.settings.start_points or default_start_points(len(space.dimensions), self.trials)
        self._features = FeatureMap(space)
        self._candidates = Candidates(space, self._features)
        self._told = Told()
        self._fits: dict[str, tuple[int, Hyperparameters]] = {}  # the last fit of each kind, and its cut
        self._pareto: ParetoModel | None = None
        if self.objectives > 1:
            options = {"seed": self.seed, "objectives": self.objectives, "refit_cut": refit_cut}
            self._pareto = ParetoModel(space, self._features, self._candidates, **options)

    def _learn(self, observation: Observation) -> None:
        self._told.add(observation)
        if self._pareto is not None:
            self._pareto.add(observation)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        with one_thread():
            units, values = self._told.table(len(self._told))
            has_model = np.count_nonzero(~np.isnan(values)) >= _LEAST_VALUES
            starts = min(n, max(0, self.start_points - proposals.known)) if has_model else n
            if starts:
                self._start(proposals, starts)
            if has_model and proposals.missing > 0 and self._pareto is not None:
                self._pareto.fill(proposals, pending, self.history)
            elif has_model and proposals.missing > 0:
                self._choose(proposals, units, values, pending)
        rng = stream(self.seed, "rest", proposals.known)
        return proposals.complete(rng, [*(observation.point for observation in self.history[-64:]), *pending])

    def _start(self, proposals: Proposals, count: int) -> None:
        """`count` points of an even spread, from where the known ones left off."""
        first, goal = proposals.known, len(proposals.points) + count
        tries = _TRIES_PER_START * count
        sobol = qmc.Sobol(len(self.space.dimensions), rng=array_stream(self.seed, "start"))
        for unit in sobol.random_base2(math.ceil(math.log2(first + tries + 1)))[first : first + tries].tolist():
            if len(proposals.points) >= goal:
                return
            proposals.offer(unit)

    def _choose(self, proposals: Proposals, units: Array, values: Array, pending: list[Point]) -> None:
        """Fills the batch by the model."""
        rng = array_stream(self.seed, "choose", proposals.known)
        failed = np.isnan(values)
        features = self._features.features(units)
        rows = _most_telling(values, _CONDITIONED, rng)
        targets = normalised(values[~failed])[np.searchsorted(np.flatnonzero(~failed), rows)]
        posterior = Posterior.of_data(self._fit("values"), features[rows], targets)
        fitted = posterior.fitted()
        out = [unit_vector(self.space, point) for point in [*pending, *proposals.points]]
        believed = np.array([unit for unit in out if unit is not None]).reshape(-1, units.shape[1])
        posterior = posterior.believing(self._features.features(believed))
        log_success = None
        if failed.any():
            seen = _some_of_both(failed, _OUTCOMES, rng)
            log_success = SuccessModel(self._fit("outcomes"), features[seen], failed[seen]).log_probability
        best = units[rows[np.argsort(fitted, kind="stable")[:_BEST]]]
        feasible: list[tuple[float, ...]] = []
        if self.space.constraints:
            recent = [observation.point for observation in self.history[-64:]]
            feasible = list(placed(self.space, [*proposals.points, *pending, *recent]))
        candidates = self._candidates.draw(
            proposals.missing, best, feasible, rng, stream(self.seed, "feasible", proposals.known)
        )
        if len(candidates):
            chooser = BatchChooser(
                self._features,
                posterior,
                best=float(fitted.min()),
                log_success=log_success,
                caution=_CAUTION * self._told.failing(_RECENT),
                feasible=self._candidates.feasible,
            )
            chooser.fill(proposals, candidates)

    def _fit(self, kind: str) -> Hyperparameters:
        """The hyper-parameters for the values, or for the outcomes (value or failure), at the present cut."""
        cut = refit_cut(len(self._told))
        known = self._fits.get(kind)
        if known is None or known[0] != cut:
            known = (cut, self._fit_at(kind, cut))
            self._fits[kind] = known
        return known[1]

    def _fit_at(self, kind: str, cut: int) -> Hyperparameters:
        units, values = self._told.table(cut)
        failed = np.isnan(values)
        rng = array_stream(self.seed, "fit", kind, cut)
        if kind == "outcomes":
            if failed.all() or not failed.any():  # the first failure came after the cut
                return _wide(self._features.size)
            rows = _some_of_both(failed, _FITTED, rng)
            return fit_outcomes(self._features.features(units[rows]), failed[rows])
        rows = _most_telling(values, _FITTED, rng)
        if len(rows) < _LEAST_VALUES:  # the first values came after the cut
            return _wide(self._features.size)
        return fit_hyperparameters(self._features.features(units[rows]), normalised(values[rows]))


def default_start_points(dimensions: int, trials: int | None) -> int:
    """How many start points a space and a budget ask for."""
    points = min(40, max(8, 2 * dimensions))
    return points if trials is None else max(1, min(points, trials // 3))


def refit_cut(length: int) -> int:
    """How many of `length` trials the hyper-parameters are fitted on.

    The last step of a ladder that does not depend on how many were told at a time.
    """
    if length <= _FIT_EACH:
        return length
    cut = _FIT_EACH
    while (following := max(cut + 1, int(cut * (1.0 + _GROWTH)))) <= length:
        cut = following
    return cut


def _wide(features: int) -> Hyperparameters:
    """What is assumed before anything can be fitted: smooth, with a little noise."""
    return Hyperparameters(1.0, np.full(features, 0.5 * math.sqrt(features)), 1e-2)


def _most_telling(values: Array, limit: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows of good values, at most `limit`, ascending: the better half by value, the others at random."""
    good = np.flatnonzero(~np.isnan(values))
    if len(good) <= limit:
        return good
    ranked = good[np.argsort(values[good], kind="stable")]
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
