"""Models fitted to told trials: the values of an objective, earlier searches, and the probability of success."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import log_ndtr

from hpo_pilot.optimizers.base import array_stream
from hpo_pilot.optimizers.gaussian_process import Basis, Fit, Hyperparameters, Posterior, best_fit
from hpo_pilot.optimizers.phase import LEAST_VALUES
from hpo_pilot.optimizers.training_data import PLAIN, FeatureMap, Rows, Table, Told, Warped, warps

#: Up to this many trials every one brings a new fit of the hyper-parameters; from then on, growth by this share does.
_FIT_EACH, _GROWTH = 20, 0.05


def refit_cut(length: int) -> int:
    """How many of `length` trials the hyper-parameters are fitted on."""
    return last_step(length, _FIT_EACH, _GROWTH)


def last_step(length: int, each: int, growth: float) -> int:
    """The last step up to `length`.

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


Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Outcomes jump where a region begins to fail, and a smooth process fits a jump best with a very short length scale,
#: which learns nothing about the rest of the region. These bounds make it see regions: scales per square root of the
#: number of features, and the variance of the outcomes' noise.
_LEAST_SCALE, _LEAST_NOISE = 0.25, 0.02

#: Hyper-parameters are fitted on this many points at most, the probability is conditioned on this many.
_SUCCESS_FITTED, _CONDITIONED = 256, 500

#: Where an optimum lies at the edge of a region that fails, a large improvement that probably fails outweighs a small
#: one that does not, time after time. So the more of this many recent trials failed, the likelier to succeed a point
#: must be.
_RECENT, _CAUTION = 16, 0.8

#: More than any logarithm of an expected improvement that matters.
_LAST_RESORT = 1e4


class SuccessModel:
    """A Gaussian process on the outcomes, 1 for a value and 0 for a failure (least-squares classification)."""

    def __init__(self, fit: Hyperparameters, features: Array, failed: Mask) -> None:
        """Learns from distinct points, shape (n, n_features), of which some failed, shape (n,), but not all."""
        outcomes, self._mean, self._deviation = _standard_outcomes(failed)
        self._posterior = Posterior.of_data(fit, features, outcomes)

    def log_probability(self, features: Array) -> Array:
        """The logarithm of the probability of success at `features`, shape (m, n_features).

        It is the chance that the predicted outcome comes out above one half: sure where failures crowd, undecided where
        little is known, and never far from the average where failures strike at random, for the fitted noise is large
        then.
        """
        mean, variance = self._posterior.predict(features)
        distance = self._mean - 0.5 + self._deviation * mean
        return np.asarray(log_ndtr(distance / (self._deviation * np.sqrt(variance + self._posterior.fit.noise))))


class Caution:
    """What the chance of failure takes from the logarithm of an improvement."""

    def __init__(self, model: SuccessModel | None, share: float) -> None:
        """Heeds a model.

        Args:
            model: None: nothing failed, or everything.
            share: candidates less likely to succeed than this share of the likeliest are the last resort, in [0, 1].
        """
        self._model = model
        self._log_share = math.log(max(share, 1e-300))
        self._least = -math.inf

    def look_at(self, features: Array) -> Array:
        """`penalty` for candidates, shape (m, n_features), m above 0, of which one is the likeliest from now on."""
        if self._model is None:
            return np.zeros(len(features))
        log_success = self._model.log_probability(features)
        self._least = float(log_success.max()) + self._log_share
        return self._penalised(log_success)

    def penalty(self, features: Array) -> Array:
        """What is added at `features`, shape (m, n_features); shape (m,)."""
        if self._model is None:
            return np.zeros(len(features))
        return self._penalised(self._model.log_probability(features))

    def _penalised(self, log_success: Array) -> Array:
        return np.where(log_success < self._least, log_success - _LAST_RESORT, log_success)


class SuccessLearner:
    """Fits the model of the outcomes; each fit belongs to a cut of what was told."""

    def __init__(self, features: FeatureMap, told: Told, seed: int) -> None:
        """Knows what `told` knows, by the optimizer's seed."""
        self._features = features
        self._told = told
        self._seed = seed
        self._fit: tuple[int, Hyperparameters] | None = None  # the last one, and its cut

    def caution(self, table: Table, features: Array, rng: np.random.Generator) -> Caution:
        """What all that was told, and its features, shape (n, n_features), say about failures."""
        failed = table.failed
        if not failed.any() or failed.all():
            return Caution(None, 0.0)
        seen = table.some_of_both(_CONDITIONED, rng)
        model = SuccessModel(self._present_fit(), features[seen], failed[seen])
        return Caution(model, _CAUTION * self._told.failing(_RECENT))

    def _present_fit(self) -> Hyperparameters:
        cut = refit_cut(len(self._told))
        if self._fit is None or self._fit[0] != cut:
            table = self._told.table(cut)
            failed = table.failed
            fit = Hyperparameters.wide(self._features.size)
            if failed.any() and not failed.all():  # else the first failure came after the cut
                rows = table.some_of_both(_SUCCESS_FITTED, array_stream(self._seed, "fit", "outcomes", cut))
                fit = _best_fit(self._features.features(table.units[rows]), failed[rows])
            self._fit = (cut, fit)
        return self._fit[1]


def _best_fit(features: Array, failed: Mask) -> Hyperparameters:
    least = _LEAST_SCALE * math.sqrt(features.shape[1])
    return best_fit(features, _standard_outcomes(failed)[0], least_scale=least, least_noise=_LEAST_NOISE).found


def _standard_outcomes(failed: Mask) -> tuple[Array, float, float]:
    """Outcomes with mean 0 and deviation 1, and what the mean and deviation were."""
    outcomes = np.where(failed, 0.0, 1.0)
    mean, deviation = float(outcomes.mean()), float(outcomes.std())
    return (outcomes - mean) / deviation, mean, deviation


# What earlier searches say about this one: each is a model of its own, and a drift under the values of this search.
#
# A search of another data set, on another machine or with a smaller model has values on another scale, and its
# optimum a
# little off. So nothing of its values is taken over, only their course: the mean of a Gaussian process of its trials,
# centred and scaled over the points of this search, times a weight. What is left, the process of this search learns.
# The
# weights are found with its hyper-parameters, and the evidence of this search's own values says whether the earlier
# ones
# are of any use: where they disagree they are left out. (The linear case of Kennedy and O'Hagan 2000, "Predicting the
# output from a complex computer code when fast approximations are available", for several codes.)

#: So many trials of one earlier search are learned from at most, and of all together; of many searches each has at
#: least a few.
_ONE, _ALL, _EACH = 200, 500, 10

#: The hyper-parameters of an earlier search are fitted on this many of its trials.
_TRANSFER_FITTED = 100

#: Good values without which an earlier search says nothing.
_LEAST_VALUES = 3

#: The sum of the weights that is expected (they are correlations, if there is one earlier search), and how far it may
#: well be off.
_WEIGHT, _DEVIATION = 0.8, 0.5

#: How much likelier than not earlier searches are of use, as the logarithm of the odds.
_LOG_ODDS = 1.0

#: Before this many values of this search are known, the spread of the predictions at its points is little more than
#: what it was over the earlier search's own.
_OWN_SPREAD = 2.0

#: What the earlier searches leave unexplained is not taken to be smaller than this deviation.
_LEAST_REST = 0.1

#: The share of the values' variance that they are taken to leave before anything is known, for the first weights.
_REST_VARIANCE = 0.3

#: The best trials of all earlier searches around which points are sought.
_BEST = 10


@dataclass(frozen=True)
class Drift:
    """What is expected of values before those of this search are looked at; a function of the features.

    Attributes:
        models: the earlier searches' processes.
        factors: what multiplies their means, shape (n_models,).
        constant: what is added.
    """

    models: tuple[Posterior, ...]
    factors: Array
    constant: float

    def values(self, features: Array) -> Array:
        """For features of shape (m, n_features): shape (m,)."""
        result = np.full(len(features), self.constant)
        for factor, model in zip(self.factors, self.models, strict=True):
            result += factor * model.mean(features)
        return result

    def slopes(self, features: Array) -> Array:
        """The derivatives of `values` by the features, shape (m, n_features)."""
        result = np.zeros_like(features)
        for factor, model in zip(self.factors, self.models, strict=True):
            result += factor * model.mean_slopes(features)
        return result


@dataclass(frozen=True)
class TransferFit:
    """A fit with earlier searches taken into account.

    Attributes:
        found: the hyper-parameters of what they leave unexplained.
        weights: how much each earlier search counts, shape (n_sources,), none negative.
        log_evidence: comparable with the `log_posterior` of a fit to the same values without them.
    """

    found: Hyperparameters
    weights: Array
    log_evidence: float


class Transfer:
    """The models of the earlier searches; a function of their trials and the seed.

    Attributes:
        best: unit vectors of their best points, shape (n, n_dims), the best of each first.
    """

    def __init__(self, features: FeatureMap, earlier: Mapping[str, Table], objective: int, seed: int) -> None:
        """Fits a process to one objective of each earlier search that has something to say, in order of their names."""
        limit = max(_EACH, min(_ONE, _ALL // max(1, len(earlier))))
        models, ranked = [], []
        for source, table in sorted(earlier.items()):
            rows = table.most_telling(limit, array_stream(seed, "earlier", source))
            if len(rows) < _LEAST_VALUES:
                continue
            units, stopped = table.units[rows], table.stopped[rows]
            values, stds = table.values[rows, objective], table.stds[rows, objective]
            model = _model(features.features(units), values, stds, stopped, features.basis)
            if model is None:
                continue
            models.append(model)
            order = np.argsort(np.where(stopped, np.inf, model.fitted()), kind="stable")
            ranked += [(rank, units[row]) for rank, row in enumerate(order[:_BEST].tolist())]
        self._models = tuple(models)
        ranked.sort(key=lambda entry: entry[0])
        self.best: Array = np.array([unit for _, unit in ranked[:_BEST]])

    def __bool__(self) -> bool:
        """Whether there is anything to learn from them."""
        return bool(self._models)

    def expected_weights(self) -> Array:
        """The weights before this search has values, shape (n_sources,)."""
        return np.full(len(self._models), _WEIGHT / len(self._models))

    def expected_rest(self, fit: Hyperparameters) -> Hyperparameters:
        """`fit` for values of variance 1, made fit for what the earlier searches are expected to leave unexplained."""
        return replace(fit, amplitude=fit.amplitude * (1.0 - _WEIGHT**2))

    def drift(self, weights: Array, features: Array) -> Drift:
        """The drift under values with mean 0 and deviation 1 at `features`, shape (n, n_features)."""
        centres, deviations = self._standards(self._predictions(features))
        factors = weights / deviations
        used = [index for index, factor in enumerate(factors) if factor > 0.0]
        return Drift(tuple(self._models[index] for index in used), factors[used], -float(factors @ centres))

    def fit(self, features: Array, values: Array, *, basis: Basis | None, variances: Array) -> TransferFit:
        """Weights and hyper-parameters for values of this search.

        Args:
            features: shape (n, n_features).
            values: with mean 0 and deviation 1, shape (n,).
            basis: as for `best_fit`.
            variances: as for `best_fit`.
        """
        predicted = self._predictions(features)
        centres, deviations = self._standards(predicted)
        columns = (predicted - centres) / deviations
        expected = self.expected_weights()
        precision = np.eye(len(expected)) * len(expected) / _DEVIATION**2
        normal = columns.T @ columns / _REST_VARIANCE + precision
        first = np.linalg.solve(normal, columns.T @ values / _REST_VARIANCE + precision @ expected)
        rest = values - columns @ np.maximum(first, 0.0)
        size = max(_LEAST_REST, float(np.sqrt(np.mean(rest * rest))))
        fit = best_fit(features, rest / size, basis=basis, variances=variances / size**2)
        found = fit.found.times(size**2)
        # The weights given these hyper-parameters, and the evidence with the weights integrated out.
        factor = Posterior.of_data(found, features, rest, variances).factor
        whitened = solve_triangular(factor, np.column_stack([columns, values, rest]), lower=True)
        half, given, left = whitened[:, :-2], whitened[:, -2], whitened[:, -1]
        used, weights = np.ones(len(expected), dtype=bool), np.zeros(len(expected))
        while used.any():  # where an earlier search would count negatively, it is no earlier search of the same
            unexpected = given - half[:, used] @ expected[used]
            information = cholesky(precision[np.ix_(used, used)] + half[:, used].T @ half[:, used], lower=True)
            shift = cho_solve((information, True), half[:, used].T @ unexpected)
            weights[:] = 0.0
            weights[used] = expected[used] + shift
            if weights.min() >= 0.0:
                break
            used &= weights > 0.0
        else:
            return TransferFit(found, weights, -math.inf)
        square = float(unexpected @ unexpected - unexpected @ half[:, used] @ shift)
        volume = 2.0 * float(np.log(np.diag(information)).sum()) - float(np.log(np.diag(precision)[used]).sum())
        evidence = fit.log_posterior - len(values) * math.log(size) + 0.5 * (float(left @ left) - square - volume)
        return TransferFit(found, weights, evidence + _LOG_ODDS)

    def _predictions(self, features: Array) -> Array:
        """The means of the earlier searches' processes, shape (n, n_sources)."""
        return np.array([model.mean(features) for model in self._models]).T

    def _standards(self, predicted: Array) -> tuple[Array, Array]:
        """Mean and deviation over the points of this search, each of shape (n_sources,); cautious for few points."""
        count = len(predicted)
        if not count:
            return np.zeros(len(self._models)), np.ones(len(self._models))
        variance = (_OWN_SPREAD + count * predicted.var(axis=0)) / (_OWN_SPREAD + count)
        return predicted.mean(axis=0), np.sqrt(variance)


def _model(features: Array, values: Array, stds: Array, stopped: Mask, basis: Basis) -> Posterior | None:
    """The process of an earlier search on the scale on which it explains it best; None where all values are the same.

    Args:
        features: shape (n, n_features).
        values: shape (n,).
        stds: the values' standard errors, shape (n,).
        stopped: which of them were stopped, shape (n,).
        basis: the polynomials of the trend.
    """
    some = np.arange(len(values)) % math.ceil(len(values) / _TRANSFER_FITTED) == 0
    best: tuple[float, Posterior] | None = None
    for warped in warps(values):
        variances = warped.variances(stds, stopped)
        fit = best_fit(features[some], warped.values[some], basis=basis, variances=variances[some])
        evidence = fit.log_posterior + warped.log_volume * some.mean()
        if best is None or evidence > best[0]:
            best = (evidence, Posterior.of_data(fit.found, features, warped.values, variances))
    return None if best is None else best[1]


#: Hyper-parameters are fitted on this many points at most: the cost grows with the cube.
_VALUES_FITTED = 256

#: On which scale the values are seen is decided less often, on this many points at most.
_SCALE_EACH, _SCALE_GROWTH, _SCALED = 10, 0.25, 128

#: Up to this many good values there is a second process, without a trend.
_SECOND_OPINION = 600


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


class ValuesLearner:
    """Fits the models of one objective, with a trend and without; each fit belongs to a cut of what was told."""

    def __init__(
        self,
        features: FeatureMap,
        told: Told,
        objective: int,
        seed: int,
        earlier: Mapping[str, Table],
    ) -> None:
        """Knows what `told` knows.

        Args:
            features: the map from unit vectors.
            told: what was told, and will be.
            objective: which of the values.
            seed: the optimizer's.
            earlier: what was told of earlier searches; `forget` when it changes.
        """
        self._features = features
        self._told = told
        self._objective = objective
        self._seed = seed
        # The last fit of either kind, and the cut of the history that it belongs to.
        self._models: dict[bool, tuple[int, ValuesModel]] = {}
        self._scales: dict[bool, tuple[int, str]] = {}
        self._earlier = earlier
        self._transfer: Transfer | None = None

    @property
    def transfer(self) -> Transfer | None:
        """The models of the earlier searches; None where they have nothing to say."""
        if not self._earlier:
            return None
        if self._transfer is None:
            self._transfer = Transfer(self._features, self._earlier, self._objective, self._seed)
        return self._transfer if self._transfer else None

    def forget(self) -> None:
        """Fits anew, for the earlier searches have changed."""
        self._transfer = None
        self._models.clear()

    def models(self, known: int) -> list[ValuesModel]:
        """The models at the present cut: with a trend and, while there are few good values (`known`), without."""
        cut = refit_cut(len(self._told))
        found = []
        for trend in (True, False) if known <= _SECOND_OPINION else (True,):
            at, model = self._models.get(trend, (-1, None))
            if model is None or at != cut:
                model = self._fit(cut, trend)
                self._models[trend] = (cut, model)
            found.append(model)
        return found

    def earlier_best(self, known: int) -> list[Array]:
        """Unit vectors of the earlier searches' best points, shape (n, n_dims), if they count in any present model."""
        transfer = self.transfer
        if transfer is None or all(model.weights is None for model in self.models(known)):
            return []
        return [transfer.best]

    def posteriors(self, table: Table, rows: Rows, features: Array) -> list[Posterior]:
        """What each model says of the space, given some of what was told.

        Args:
            table: all that was told.
            rows: those to be conditioned on, all good.
            features: of these rows, shape (n_rows, n_features).
        """
        good = table.good
        found = {warped.name: warped for warped in warps(table.values[good, self._objective])}
        places = np.searchsorted(good, rows)
        result = []
        for model in self.models(len(rows)):
            values = variances = np.zeros(len(rows))
            if found:  # else they are all the same
                warped = found.get(model.scale, found[PLAIN])
                values = warped.values[places]
                variances = self._variances(warped, table, good)[places]
            transfer = self.transfer
            drift = None if transfer is None or model.weights is None else transfer.drift(model.weights, features)
            result.append(Posterior.of_data(model.fit, features, values, variances, drift))
        return result

    def _fit(self, cut: int, trend: bool) -> ValuesModel:
        """The scale on which the process explains the first `cut` trials best, and its hyper-parameters there."""
        found = self._best_fit(cut, trend, self._scale(cut, trend), _VALUES_FITTED)
        transfer = self.transfer
        if found is None:
            wide = Hyperparameters.wide(self._features.size)
            if transfer is None:
                return ValuesModel(PLAIN, wide)
            return ValuesModel(PLAIN, transfer.expected_rest(wide), transfer.expected_weights())
        if transfer is not None:
            helped = transfer.fit(found.features, found.warped.values, basis=found.basis, variances=found.variances)
            if helped.log_evidence > found.fit.log_posterior:
                return ValuesModel(found.warped.name, helped.found, helped.weights)
        return ValuesModel(found.warped.name, found.fit.found)

    def _scale(self, cut: int, trend: bool) -> str | None:
        """The scale that did best at an earlier cut, for it seldom changes; None: this cut is one to find it at."""
        at = last_step(cut, _SCALE_EACH, _SCALE_GROWTH)
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
        table = self._told.table(cut)
        rows = table.most_telling(limit, array_stream(self._seed, "fit", "values", cut))
        if len(rows) < LEAST_VALUES:  # the first values came after the cut
            return None
        found = warps(table.values[rows, self._objective])
        features = self._features.features(table.units[rows])
        basis = self._features.basis if trend else None
        best: _ScaledFit | None = None
        for warped in [warped for warped in found if warped.name == scale] or found:
            variances = self._variances(warped, table, rows)
            fit = best_fit(features, warped.values, basis=basis, variances=variances)
            if best is None or fit.log_posterior + warped.log_volume > best.evidence:
                best = _ScaledFit(features, warped, variances, basis, fit)
        return best

    def _variances(self, warped: Warped, table: Table, rows: Rows) -> Array:
        """The known variances of the rows' values on a scale made for them."""
        return warped.variances(table.stds[rows, self._objective], table.stopped[rows])


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
