"""Bayesian optimization: a Gaussian process learns the values, and the batch goes where improvement is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy.stats import qmc

from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, Result
from hpo_pilot.optimizers.batch import BatchChooser, Surrogate
from hpo_pilot.optimizers.candidates import Candidates
from hpo_pilot.optimizers.features import FeatureMap
from hpo_pilot.optimizers.gaussian_process import Fit, Hyperparameters, best_fit
from hpo_pilot.optimizers.pareto_model import ParetoModel
from hpo_pilot.optimizers.placement import unit_vector
from hpo_pilot.optimizers.posterior import Posterior
from hpo_pilot.optimizers.proposals import Proposals, placed
from hpo_pilot.optimizers.streams import array_stream, stream
from hpo_pilot.optimizers.success import SuccessModel, fit_outcomes
from hpo_pilot.optimizers.threads import one_thread
from hpo_pilot.optimizers.told import Told, most_telling, variances_of
from hpo_pilot.optimizers.transfer import Transfer
from hpo_pilot.optimizers.trend import Basis
from hpo_pilot.optimizers.values import PLAIN, Warped, warps
from hpo_pilot.search import Point, SearchSpace

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Hyper-parameters are fitted on this many points at most, the posterior is conditioned on this many, the probability
#: of success on this many: their costs grow with the cube.
_FITTED, _CONDITIONED, _OUTCOMES = 256, 2_000, 500

#: Up to this many trials every one brings a new fit; from then on, growth by this share does.
_FIT_EACH, _GROWTH = 20, 0.05

#: On which scale the values are seen is decided less often, on this many points at most.
_SCALE_EACH, _SCALE_GROWTH, _SCALED = 10, 0.25, 128

#: Good values without which there is no model.
_LEAST_VALUES = 3

#: Local candidates surround this many of the best points.
_BEST = 10

#: Where an optimum lies at the edge of a region that fails, a large improvement that probably fails outweighs a small
#: one that does not, time after time. So the more of this many recent trials failed, the likelier to succeed a point
#: must be.
_RECENT, _CAUTION = 16, 0.8

#: Up to this many good values a second process without a trend has every other point of a batch.
_SECOND_OPINION = 600

#: Start points tried per point wanted before random ones fill up: constraints and small spaces refuse many.
_TRIES_PER_START = 16

#: While earlier searches count, one in this many start points is of the even spread; the others are where they were
#: good.
_STARTS_APART = 2


class BayesianSettings(BaseSettings):
    """What a search file may set.

    Attributes:
        start_points: how many points of an even spread come before the model has its say. None: two per dimension,
            between 8 and 40, at most a third of the budget. While earlier searches count, every other one is where
            they were good.
    """

    start_points: Annotated[int, Field(ge=1, strict=True)] | None = None


class BayesianOptimizer(Optimizer):
    """A scikit-optimize Gaussian process with a batch choice of its own.

    Scrambled Sobol points first. Then, for each `ask`: values are seen on the scale on which the process explains them
    best; it is conditioned on the told points and believes the pending ones to return what it predicts; the batch is
    chosen greedily by log expected improvement. While there are few values two processes take turns, one with a
    quadratic trend and one without: with the trend it finds smooth optima sooner, without it looks around more where
    the trend is wrong (tables of many choices). Failed trials have no value; a process of their own learns where they
    lie, and the batch keeps away. What earlier searches expect comes first, and counts as much as the values told
    since bear out (`Transfer`).

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
        # The last fit of either kind, and the cut of the history that it belongs to.
        self._values: dict[bool, tuple[int, ValuesModel]] = {}
        self._outcomes: tuple[int, Hyperparameters] | None = None
        self._scales: dict[bool, tuple[int, str]] = {}  # likewise the scales, with a trend and without
        self._transfer: Transfer | None = None
        self._pareto: ParetoModel | None = None
        if self.objectives > 1:
            options = {"seed": self.seed, "objectives": self.objectives, "refit_cut": refit_cut}
            self._pareto = ParetoModel(space, self._features, self._candidates, **options)

    def tell_earlier(self, source: str, trials: Iterable[Result]) -> None:
        """See `Optimizer.tell_earlier`; several objectives learn nothing from them."""
        super().tell_earlier(source, trials)
        self._transfer = None
        self._values.clear()

    def _learn(self, observation: Observation) -> None:
        self._told.add(observation)
        if self._pareto is not None:
            self._pareto.add(observation)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        with one_thread():
            units, values = self._told.table(len(self._told))
            transfer = self._earlier_models()
            good = int(np.count_nonzero(~np.isnan(values)))
            has_model = good >= _LEAST_VALUES or transfer is not None
            starts = min(n, max(0, self.start_points - proposals.known)) if has_model else n
            if starts and transfer is not None and self._counts_earlier(good, transfer):
                first = proposals.known + 1
                starts = sum(place % _STARTS_APART == 0 for place in range(first, first + starts))
            if starts:
                self._start(proposals, starts)
            if has_model and proposals.missing > 0 and self._pareto is not None:
                self._pareto.fill(proposals, pending, self.history)
            elif has_model and proposals.missing > 0:
                self._choose(proposals, units.reshape(-1, len(self.space.dimensions)), values, pending, transfer)
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

    def _earlier_models(self) -> Transfer | None:
        """The models of the earlier searches; None where they have nothing to say."""
        if not self.earlier or self.objectives > 1:
            return None
        if self._transfer is None:
            self._transfer = Transfer(self._features, self.earlier, self.seed)
        return self._transfer if self._transfer else None

    def _counts_earlier(self, known: int, transfer: Transfer) -> bool:
        """Whether what is known by now, `known` good values, speaks for the earlier searches in any model."""
        return any(model.weights is not None for model in self._models(known, transfer))

    def _choose(
        self, proposals: Proposals, units: Array, values: Array, pending: list[Point], transfer: Transfer | None
    ) -> None:
        """Fills the batch by the model."""
        rng = array_stream(self.seed, "choose", proposals.known)
        failed = np.isnan(values)
        features = self._features.features(units)
        rows = most_telling(values, _CONDITIONED, rng)
        out = [unit_vector(self.space, point) for point in [*pending, *proposals.points]]
        believed = self._features.features(
            np.array([unit for unit in out if unit is not None]).reshape(-1, units.shape[1])
        )
        surrogates, drifting = [], False
        for model in self._models(len(rows), transfer):
            data = self._scaled(model.scale, len(self._told), rows)
            drift = None if transfer is None or model.weights is None else transfer.drift(model.weights, features[rows])
            posterior = Posterior.of_data(model.fit, features[rows], data.values, data.variances, drift)
            fitted = np.where(data.stopped, np.inf, posterior.fitted())
            best_value = float(fitted.min()) if not data.stopped.all() else float(data.values.max(initial=-np.inf))
            if transfer is not None and drift is not None:
                drifting = True
                best_value = best_value if len(rows) else transfer.least(drift)
            surrogates.append((Surrogate(posterior.believing(believed), best_value), fitted))
        log_success = None
        if failed.any():
            seen = _some_of_both(failed, _OUTCOMES, rng)
            log_success = SuccessModel(self._outcomes_fit(), features[seen], failed[seen]).log_probability
        best = units[rows[np.argsort(surrogates[0][1], kind="stable")[:_BEST]]]
        if transfer is not None and drifting:
            best = np.concatenate([best, transfer.best])
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
                [surrogate for surrogate, _ in surrogates],
                turn=proposals.known,
                log_success=log_success,
                caution=_CAUTION * self._told.failing(_RECENT),
                feasible=self._candidates.feasible,
            )
            chooser.fill(proposals, candidates)

    def _models(self, known: int, transfer: Transfer | None) -> list[ValuesModel]:
        """The models of the values at the present cut: with a trend and, while there are few values, without."""
        cut = refit_cut(len(self._told))
        found = []
        for trend in (True, False) if known <= _SECOND_OPINION else (True,):
            at, model = self._values.get(trend, (-1, None))
            if model is None or at != cut:
                model = self._fit_values(cut, trend, transfer)
                self._values[trend] = (cut, model)
            found.append(model)
        return found

    def _fit_values(self, cut: int, trend: bool, transfer: Transfer | None) -> ValuesModel:
        """The scale on which the process explains the first `cut` trials best, and its hyper-parameters there."""
        found = self._best_fit(cut, trend, self._scale(cut, trend), _FITTED)
        if found is None and transfer is not None:
            rest = transfer.expected_rest(_wide(self._features.size))
            return ValuesModel(PLAIN, rest, transfer.expected_weights())
        if found is None:
            return ValuesModel(PLAIN, _wide(self._features.size))
        if transfer is not None:
            helped = transfer.fit(found.features, found.warped.values, basis=found.basis, variances=found.variances)
            if helped.log_evidence > found.fit.log_posterior:
                return ValuesModel(found.warped.name, helped.found, helped.weights)
        return ValuesModel(found.warped.name, found.fit.found)

    def _scale(self, cut: int, trend: bool) -> str | None:
        """The scale that did best at an earlier cut, for it seldom changes; None: this cut is one to find it at."""
        at = ladder_step(cut, _SCALE_EACH, _SCALE_GROWTH)
        if at == cut and cut <= _SCALED:
            return None
        known = self._scales.get(trend)
        if known is None or known[0] != at:
            found = self._best_fit(at, trend, None, _SCALED)
            known = (at, PLAIN if found is None else found.warped.name)
            self._scales[trend] = known
        return known[1]

    def _best_fit(self, cut: int, trend: bool, scale: str | None, limit: int) -> _ScaledFit | None:
        """The process that explains the first `cut` trials best, or `limit` of them, on that scale or on any.

        None while there are too few values, or they are all the same.
        """
        units, values = self._told.table(cut)
        rows = most_telling(values, limit, array_stream(self.seed, "fit", "values", cut))
        found = [] if len(rows) < _LEAST_VALUES else warps(values[rows])  # else the first values came after the cut
        features = self._features.features(units[rows])
        stds, stopped = self._told.doubts(cut)
        basis = self._features.basis if trend else None
        best: _ScaledFit | None = None
        for warped in [warped for warped in found if warped.name == scale] or found:
            variances = variances_of(warped, stds[rows], stopped[rows])
            fit = best_fit(features, warped.values, basis=basis, variances=variances)
            if best is None or fit.log_posterior + warped.log_volume > best.evidence:
                best = _ScaledFit(features, warped, variances, basis, fit)
        return best

    def _scaled(self, scale: str, length: int, rows: npt.NDArray[np.int64]) -> _Data:
        """The values of the rows of the first `length` trials on the scale of that name."""
        _, values = self._told.table(length)
        stds, stopped = self._told.doubts(length)
        good = np.flatnonzero(~np.isnan(values))
        places = np.searchsorted(good, rows)
        found = {warped.name: warped for warped in warps(values[good])}
        if not found:
            zeros = np.zeros(len(rows))
            return _Data(zeros, zeros, stopped[rows])
        warped = found.get(scale, found[PLAIN])
        variances = variances_of(warped, stds[good], stopped[good])
        return _Data(warped.values[places], variances[places], stopped[rows])

    def _outcomes_fit(self) -> Hyperparameters:
        """The hyper-parameters of the outcomes (value or failure) at the present cut."""
        cut = refit_cut(len(self._told))
        if self._outcomes is None or self._outcomes[0] != cut:
            units, values = self._told.table(cut)
            failed = np.isnan(values)
            fit = _wide(self._features.size)
            if failed.any() and not failed.all():  # else the first failure came after the cut
                rows = _some_of_both(failed, _FITTED, array_stream(self.seed, "fit", "outcomes", cut))
                fit = fit_outcomes(self._features.features(units[rows]), failed[rows])
            self._outcomes = (cut, fit)
        return self._outcomes[1]


@dataclass(frozen=True)
class _ScaledFit:
    """A fit on one scale, and what it was made from."""

    features: Array
    warped: Warped
    variances: Array
    basis: Basis | None
    fit: Fit

    @property
    def evidence(self) -> float:
        """The logarithm of what can be compared between scales."""
        return self.fit.log_posterior + self.warped.log_volume


@dataclass(frozen=True)
class ValuesModel:
    """What a fit to the values finds.

    Attributes:
        scale: the name of the scale on which the process explains them best.
        fit: its hyper-parameters there.
        weights: how much each earlier search counts, shape (n_sources,); None: not at all.
    """

    scale: str
    fit: Hyperparameters
    weights: Array | None = None


@dataclass(frozen=True)
class _Data:
    """Values as the process sees them; all of shape (n,)."""

    values: Array
    variances: Array
    stopped: Mask


def default_start_points(dimensions: int, trials: int | None) -> int:
    """How many start points a space and a budget ask for."""
    points = min(40, max(8, 2 * dimensions))
    return points if trials is None else max(1, min(points, trials // 3))


def refit_cut(length: int) -> int:
    """How many of `length` trials the hyper-parameters are fitted on."""
    return ladder_step(length, _FIT_EACH, _GROWTH)


def ladder_step(length: int, each: int, growth: float) -> int:
    """The last step up to `length` of a ladder that does not depend on how many were told at a time.

    Args:
        length: the number of trials.
        each: up to here every number is a step.
        growth: from there on, growth by this share.
    """
    if length <= each:
        return length
    step = each
    while (following := max(step + 1, int(step * (1.0 + growth)))) <= length:
        step = following
    return step


def _wide(features: int) -> Hyperparameters:
    """What is assumed before anything can be fitted: smooth, with a little noise."""
    return Hyperparameters(1.0, np.full(features, 0.5 * math.sqrt(features)), 1e-2)


def _some_of_both(failed: Mask, limit: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows, at most `limit`, ascending: failures and successes at random, up to one half each where both abound."""
    if len(failed) <= limit:
        return np.arange(len(failed))
    bad, good = np.flatnonzero(failed), np.flatnonzero(~failed)
    take_bad = min(len(bad), max(limit // 2, limit - len(good)))
    take_good = min(len(good), limit - take_bad)
    chosen = [rng.choice(bad, take_bad, replace=False), rng.choice(good, take_good, replace=False)]
    return np.sort(np.concatenate(chosen))
