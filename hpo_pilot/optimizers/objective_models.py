"""Models fitted to told trials: the values of an objective, earlier searches, and the probability of success."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular

from hpo_pilot.optimizers.acquisition import Threshold
from hpo_pilot.optimizers.base import Observation, array_stream
from hpo_pilot.optimizers.gaussian_process import Basis, Fit, Hyperparameters, Posterior, best_fit
from hpo_pilot.optimizers.level_process import LevelHyperparameters, best_level_fit
from hpo_pilot.optimizers.phase import LEAST_VALUES
from hpo_pilot.optimizers.training_data import PLAIN, FeatureMap, Rows, ScaledValues, Table, ToldTrials, scaled_values

#: Up to this number of trials, hyper-parameters are fitted after each trial; then after each growth by this share.
_FIT_EACH, _GROWTH = 20, 0.05


def refit_cut(length: int) -> int:
    """Returns the number of trials, from the first, on which hyper-parameters are fitted; `length`: trials told."""
    return last_step(length, _FIT_EACH, _GROWTH)


def last_step(length: int, each: int, growth: float) -> int:
    """Returns the last step up to `length`.

    Args:
        length: the number of trials.
        each: up to this number, every number is a step.
        growth: beyond it, each step is larger than the last by this share.
    """
    if length <= each:
        return length
    step = each
    while (following := max(step + 1, int(step * (1.0 + growth)))) <= length:
        step = following
    return step


Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Outcomes jump at the edge of a region that fails. A smooth process fits a jump best with a very short length scale,
#: and then learns nothing about the rest of the region. These lower bounds prevent that: the length scale per square
#: root of the number of features, and the variance of the noise of outcomes.
_LEAST_SCALE, _LEAST_NOISE = 0.25, 0.02

#: Points on which hyper-parameters are fitted, and on which the probability is conditioned, at most.
_SUCCESS_FITTED, _CONDITIONED = 256, 500

#: If the optimum is at the edge of a region that fails, large improvements that probably fail would always be preferred
#: to small ones that succeed. So the more of this number of recent trials failed, the more likely a point must be to
#: succeed; the second number is the factor.
_RECENT, _CAUTION = 16, 0.8

#: Larger than any relevant log improvement.
_LAST_RESORT = 1e4


class Caution:
    """The penalty on the log improvement for a probable failure.

    The probability of success is that the predicted outcome is nearer to a value than to a failure: clear where many
    trials failed, near one half where little is known. Where failures are random, the fitted noise is large, and it
    stays near the average.
    """

    def __init__(self, success: Threshold | None, share: float) -> None:
        """Takes a model.

        Args:
            success: gives the probability of success; None if no trial failed, or all.
            share: in [0, 1]; candidates whose probability of success is below this share of the largest one are used
                only if there are no others.
        """
        self._success = success
        self._log_share = math.log(max(share, 1e-300))
        self._least: float | None = None

    def penalty(self, features: Array) -> Array:
        """Returns the penalty (negative or 0) at `features`, shape (m, n_features); shape (m,).

        The first call is for the candidates, m above 0: it notes the largest probability.
        """
        if self._success is None:
            return np.zeros(len(features))
        log_success = self._success.log_probability(features)
        if self._least is None:
            self._least = float(log_success.max()) + self._log_share
        return np.where(log_success < self._least, log_success - _LAST_RESORT, log_success)


class SuccessLearner:
    """Fits a Gaussian process to the outcomes, 0 for a value and 1 for a failure (least-squares classification).

    Each fit uses the first trials of the history (`refit_cut`).
    """

    def __init__(self, features: FeatureMap, told: ToldTrials, seed: int) -> None:
        """Uses the trials in `told` and the seed of the optimizer."""
        self._features = features
        self._told = told
        self._seed = seed
        self._fit = lru_cache(maxsize=1)(self._fitted)

    def caution(self, table: Table, features: Array, rng: np.random.Generator) -> Caution:
        """Returns the penalty for failures, from all told points and their features, shape (n, n_features)."""
        failed = table.failed
        if not failed.any() or failed.all():
            return Caution(None, 0.0)
        seen = table.some_of_both(_CONDITIONED, rng)
        outcomes, bound = _standard_outcomes(failed[seen])
        posterior = Posterior.of_data(self._fit(refit_cut(len(self._told))), features[seen], outcomes)
        return Caution(Threshold(posterior, bound), _CAUTION * self._told.failing(_RECENT))

    def _fitted(self, cut: int) -> Hyperparameters:
        table = self._told.table(cut)
        failed = table.failed
        if not failed.any() or failed.all():  # the first failure is not among the first `cut` trials
            return Hyperparameters.wide(self._features.size)
        rows = table.some_of_both(_SUCCESS_FITTED, array_stream(self._seed, "fit", "outcomes", cut))
        outcomes, _ = _standard_outcomes(failed[rows])
        features = self._features.features(table.units[rows])
        least = _LEAST_SCALE * math.sqrt(features.shape[1])
        # The trend continues an edge beyond the known failures: with the best point at a straight, curved or
        # rectangular edge the regret was lower in 25 and higher in 6 of 33 runs (8 x 12).
        basis = self._features.basis
        return best_fit(features, outcomes, least_scale=least, least_noise=_LEAST_NOISE, basis=basis).found


def _standard_outcomes(failed: Mask) -> tuple[Array, float]:
    """Returns outcomes with mean 0 and deviation 1, and the middle between those of values and failures."""
    outcomes = failed.astype(np.float64)
    mean, deviation = float(outcomes.mean()), float(outcomes.std())
    return (outcomes - mean) / deviation, (0.5 - mean) / deviation


# Transfer from earlier searches: each has a model, and their predictions are a prior mean for this search.

#: Trials used of one earlier search, at most; of all earlier searches, at most; and of each of many, at least.
_ONE, _ALL, _EACH = 200, 500, 10

#: The hyper-parameters of an earlier search are fitted on this many of its trials.
_TRANSFER_FITTED = 100

#: Prior mean and deviation of the sum of the weights (with one earlier search, the weight is a correlation).
_WEIGHT, _DEVIATION = 0.8, 0.5

#: The prior log odds that earlier searches are useful.
_LOG_ODDS = 1.0

#: Weight, in points, of the spread of the predictions over the earlier search's own points.
_OWN_SPREAD = 2.0

#: The least deviation of the values that earlier searches do not explain.
_LEAST_REST = 0.1

#: The share of the variance that earlier searches are assumed not to explain, for the first estimate of the weights.
_REST_VARIANCE = 0.3

#: Number of best trials of earlier searches around which candidates are drawn.
_BEST = 10


@dataclass(frozen=True)
class Drift:
    """The prior mean of the values of this search, from earlier searches; a function of the features.

    Attributes:
        models: the processes of the earlier searches.
        factors: the factors of their means, shape (n_models,).
        constant: a constant that is added.
    """

    models: tuple[Posterior, ...]
    factors: Array
    constant: float

    def values(self, features: Array) -> Array:
        """Returns the prior mean, shape (m,), at features of shape (m, n_features)."""
        result = np.full(len(features), self.constant)
        for factor, model in zip(self.factors, self.models, strict=True):
            result += factor * model.mean(features)
        return result

    def slopes(self, features: Array) -> Array:
        """Returns the derivatives of `values` by the features, shape (m, n_features)."""
        result = np.zeros_like(features)
        for factor, model in zip(self.factors, self.models, strict=True):
            result += factor * model.mean_slopes(features)
        return result


@dataclass(frozen=True)
class TransferFit:
    """A fit that uses earlier searches.

    Attributes:
        found: hyper-parameters of the part that the earlier searches do not explain.
        weights: weight of each earlier search, shape (n_sources,), not negative.
        log_evidence: can be compared with the `log_posterior` of a fit to the same values without earlier searches.
    """

    found: Hyperparameters
    weights: Array
    log_evidence: float


class Transfer:
    """The models of the earlier searches; they depend only on the trials and the seed.

    A search of another data set, on another machine or with a smaller model has values on another scale, and its
    optimum may be shifted. So its values are not used directly, but only their shape: the mean of a Gaussian process of
    its trials, centred and scaled over the points of this search, times a weight. The process of this search learns the
    rest. The weights are fitted together with its hyper-parameters, and the evidence of the values of this search
    decides whether the earlier searches are used; if they disagree, they are left out. (The linear case of Kennedy and
    O'Hagan 2000, "Predicting the output from a complex computer code when fast approximations are available", for
    several codes.)

    Attributes:
        best: unit vectors of their best points, shape (n, n_dims), the best of each first.
    """

    def __init__(self, features: FeatureMap, earlier: Mapping[str, Table], objective: int, seed: int) -> None:
        """Fits a process to one objective of each earlier search with enough values, in the order of their names."""
        limit = max(_EACH, min(_ONE, _ALL // max(1, len(earlier))))
        models, ranked = [], []
        for source, table in sorted(earlier.items()):
            rows = table.most_telling(limit, array_stream(seed, "earlier", source))
            if len(rows) < LEAST_VALUES:
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
        """Returns whether there is any model."""
        return bool(self._models)

    def expected_weights(self) -> Array:
        """Returns the weights before this search has values, shape (n_sources,)."""
        return np.full(len(self._models), _WEIGHT / len(self._models))

    def expected_rest(self, fit: Hyperparameters) -> Hyperparameters:
        """Returns `fit` reduced to the part that earlier searches probably do not explain; for values of variance 1."""
        return replace(fit, amplitude=fit.amplitude * (1.0 - _WEIGHT**2))

    def drift(self, weights: Array, features: Array) -> Drift:
        """Returns the prior mean for values with mean 0 and deviation 1 at `features`, shape (n, n_features)."""
        centres, deviations = self._standards(self._predictions(features))
        factors = weights / deviations
        used = [index for index, factor in enumerate(factors) if factor > 0.0]
        return Drift(tuple(self._models[index] for index in used), factors[used], -float(factors @ centres))

    def fit(self, features: Array, values: Array, *, basis: Basis | None, variances: Array) -> TransferFit:
        """Fits weights and hyper-parameters to values of this search.

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
        while used.any():  # an earlier search with a negative weight is left out
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
        """Returns the means of the earlier searches' processes, shape (n, n_sources)."""
        return np.array([model.mean(features) for model in self._models]).T

    def _standards(self, predicted: Array) -> tuple[Array, Array]:
        """Returns mean and deviation over the points of this search, each of shape (n_sources,)."""
        count = len(predicted)
        if not count:
            return np.zeros(len(self._models)), np.ones(len(self._models))
        variance = (_OWN_SPREAD + count * predicted.var(axis=0)) / (_OWN_SPREAD + count)
        return predicted.mean(axis=0), np.sqrt(variance)


def _model(features: Array, values: Array, stds: Array, stopped: Mask, basis: Basis) -> Posterior | None:
    """Returns the process of an earlier search on the best scale; None where all its values are equal.

    Args:
        features: shape (n, n_features).
        values: shape (n,).
        stds: the values' standard errors, shape (n,).
        stopped: which of them were stopped, shape (n,).
        basis: the polynomials of the trend.
    """
    some = np.arange(len(values)) % math.ceil(len(values) / _TRANSFER_FITTED) == 0
    best: tuple[float, Posterior] | None = None
    for scaled in scaled_values(values).values():
        variances = scaled.variances(stds, stopped)
        fit = best_fit(features[some], scaled.values[some], basis=basis, variances=variances[some])
        evidence = fit.log_posterior + scaled.log_volume * some.mean()
        if best is None or evidence > best[0]:
            best = (evidence, Posterior.of_data(fit.found, features, scaled.values, variances))
    return None if best is None else best[1]


#: Points on which hyper-parameters are fitted, at most: the cost grows with the cube.
_VALUES_FITTED = 256

#: The scale of the values is chosen less often than hyper-parameters are fitted: after each trial up to the first
#: number, then after growth by the second; on at most the third number of points.
_SCALE_EACH, _SCALE_GROWTH, _SCALED = 10, 0.25, 128

#: Up to this number of good values, there is a second process without a trend.
_SECOND_OPINION = 600

#: Predictions of told points are better than their values from this number of values and this variance of the noise
#: (of values with variance 1) on, if the mean squared error of left-out values, in units of its expectation, is within
#: this factor of 1. Of 22 noisy development problems, 96 results each, the true value of the point chosen was better in
#: 43 of 65 decided runs; those without noise had a variance of 1e-3 or less.
_LEAST_JUDGED, _LEAST_NOISY, _MISJUDGED = 16, 0.01, 2.0


@dataclass(frozen=True)
class ValuesModel:
    """The result of a fit to the values.

    Attributes:
        scale: the name of the scale on which the process explains them best.
        fit: the hyper-parameters on this scale.
        weights: weight of each earlier search, shape (n_sources,); None: they are not used.
    """

    scale: str
    fit: Hyperparameters
    weights: Array | None = None


class ValuesLearner:
    """Fits the models of one objective, with and without a trend; a fit uses the first trials (`refit_cut`).

    When the scale is chosen, the fit to the first scale uses the fixed starts, so that a rebuilt optimizer needs no
    earlier fit. Fits to the other scales start from this fit, and later fits start from the fit to the chosen scale.
    Together with fits that end sooner, this takes a fourth of the evaluations of the likelihood (`mixed7`, 8 x 12).

    Each has its most probable hyper-parameters only. A mixture over up to seven sets of them (Laplace's approximation,
    weighted by their probability) in the expected improvement took 1.8 times as long; the regret after 30 points, one
    by one, was lower in 7 and higher in 14 of 22 runs (five kinds, at most 5 dimensions).
    """

    def __init__(
        self,
        features: FeatureMap,
        told: ToldTrials,
        objective: int,
        seed: int,
        earlier: Mapping[str, Table],
        second_opinion: int = _SECOND_OPINION,
    ) -> None:
        """Uses the trials in `told`.

        Args:
            features: the map from unit vectors.
            told: the told trials; later ones are seen, too.
            objective: the index of the objective.
            seed: the seed of the optimizer.
            earlier: the results of earlier searches; call `forget` when they change.
            second_opinion: up to this number of good values, there is a second process without a trend.
        """
        self._features = features
        self._told = told
        self._objective = objective
        self._seed = seed
        self._second_opinion = second_opinion
        # The last ones with and without a trend.
        self._fit, self._scaled_fit = lru_cache(maxsize=2)(self._fitted), lru_cache(maxsize=2)(self._fitted_scales)
        self._earlier = earlier
        self._transfer: Transfer | None = None

    @property
    def transfer(self) -> Transfer | None:
        """The models of the earlier searches; None where there are none."""
        if not self._earlier:
            return None
        if self._transfer is None:
            self._transfer = Transfer(self._features, self._earlier, self._objective, self._seed)
        return self._transfer if self._transfer else None

    def forget(self) -> None:
        """Drops all fits, because the earlier searches have changed."""
        self._transfer = None
        self._fit.cache_clear()

    def models(self, known: int) -> list[ValuesModel]:
        """Returns the present models: with a trend and, while there are few good values (`known`), without one."""
        cut = refit_cut(len(self._told))
        return [self._fit(cut, trend) for trend in ((True, False) if known <= self._second_opinion else (True,))]

    def earlier_best(self, known: int) -> list[Array]:
        """Returns the best points of earlier searches, unit vectors of shape (n, n_dims), if a model uses them."""
        transfer = self.transfer
        if transfer is None or all(model.weights is None for model in self.models(known)):
            return []
        return [transfer.best]

    def posteriors(self, table: Table, rows: Rows, features: Array) -> list[Posterior]:
        """Returns the posterior of each model, given some of the told points.

        Args:
            table: all told points.
            rows: the points on which to condition, all with values.
            features: the features of these rows, shape (n_rows, n_features).
        """
        return [posterior for posterior, _, _ in self._conditioned(table, rows, features)]

    def without_noise(self, table: Table, rows: Rows, features: Array) -> tuple[Array, Array] | str:
        """Returns the values of told points without noise, and their standard errors, as the mean of the models.

        Arguments as for `posteriors`.

        Returns:
            Two arrays of shape (n_rows,); a text that says why, if the values as they are are the better estimates.
        """
        known = ~table.stopped[rows]  # the others have a variance that is only assumed
        if known.sum() < _LEAST_JUDGED:
            return f"{known.sum()} results are too few to tell noise from differences"
        found, models = [], self._conditioned(table, rows, features)
        noise = max(posterior.fit.noise + float(variances[known].mean()) for posterior, _, variances in models)
        if noise < _LEAST_NOISY:
            return f"the noise is small: {math.sqrt(noise):.1%} of the spread of the results"
        for posterior, scaled, _ in models:
            if scaled is None:
                return "all values are equal"
            misses, expected = posterior.left_out()
            far = float(np.mean(misses * misses / expected))
            if not 1.0 / _MISJUDGED <= far <= _MISJUDGED:
                return f"the model misjudges its errors: results left out are off by {math.sqrt(far):.2g} of them"
            mean, variance = posterior.predict(features)
            found.append(scaled.original(mean, np.sqrt(variance)))
        means, errors = (np.array(column) for column in zip(*found, strict=True))
        return means.mean(axis=0), np.sqrt(means.var(axis=0) + np.mean(errors * errors, axis=0))

    def _conditioned(
        self, table: Table, rows: Rows, features: Array
    ) -> list[tuple[Posterior, ScaledValues | None, Array]]:
        """Returns each model's posterior, scale (None: all values are equal), and known variances of the values."""
        good = table.good
        found = scaled_values(table.values[good, self._objective])
        places = np.searchsorted(good, rows)
        result = []
        for model in self.models(len(rows)):
            values = variances = np.zeros(len(rows))
            scaled = found.get(model.scale, found[PLAIN]) if found else None
            if scaled is not None:
                values = scaled.values[places]
                variances = self._variances(scaled, table, good)[places]
            transfer = self.transfer
            drift = None if transfer is None or model.weights is None else transfer.drift(model.weights, features)
            result.append((Posterior.of_data(model.fit, features, values, variances, drift), scaled, variances))
        return result

    def _fitted(self, cut: int, trend: bool) -> ValuesModel:
        """Fits the first `cut` trials: the best scale, and the hyper-parameters on it."""
        at = last_step(cut, _SCALE_EACH, _SCALE_GROWTH)
        found = self._scaled_fit(at, trend)
        if at < cut or cut > _SCALED:
            found = self._best_fit(cut, trend, _VALUES_FITTED, found)
        transfer = self.transfer
        if found is None:
            wide = self._wide()
            if transfer is None:
                return ValuesModel(PLAIN, wide)
            return ValuesModel(PLAIN, transfer.expected_rest(wide), transfer.expected_weights())
        if transfer is not None:
            helped = transfer.fit(found.features, found.scaled.values, basis=found.basis, variances=found.variances)
            if helped.log_evidence > found.fit.log_posterior:
                return ValuesModel(found.scaled.name, helped.found, helped.weights)
        return ValuesModel(found.scaled.name, found.fit.found)

    def _fitted_scales(self, cut: int, trend: bool) -> _ScaledFit | None:
        return self._best_fit(cut, trend, _SCALED, None)

    def _wide(self) -> Hyperparameters:
        if self._told.levels:
            return LevelHyperparameters.wide_for(self._features.size, len(self._told.levels))
        return Hyperparameters.wide(self._features.size)

    def _best_fit(self, cut: int, trend: bool, limit: int, start: _ScaledFit | None) -> _ScaledFit | None:
        """Returns the best fit to at most `limit` of the first `cut` trials: near `start` on its scale, or on any.

        None while there are too few values, or all are equal.
        """
        table = self._told.table(cut)
        rows = table.most_telling(limit, array_stream(self._seed, "fit", "values", cut))
        if len(rows) < LEAST_VALUES:  # the first values are not among the first `cut` trials
            return None
        found = scaled_values(table.values[rows, self._objective])
        if start is not None and start.scaled.name in found:
            found = {start.scaled.name: found[start.scaled.name]}
        features = self._features.told(table, rows) if self._told.levels else self._features.features(table.units[rows])
        basis = self._features.basis if trend else None
        near = None if start is None else start.fit.found
        best: _ScaledFit | None = None
        for scaled in found.values():
            variances = self._variances(scaled, table, rows)
            if self._told.levels:
                fit = best_level_fit(
                    len(self._told.levels), features, scaled.values, basis=basis, variances=variances, start=near
                )
            else:
                fit = best_fit(features, scaled.values, basis=basis, variances=variances, start=near)
            near = fit.found if near is None else near
            if best is None or fit.log_posterior + scaled.log_volume > best.evidence:
                best = _ScaledFit(features, scaled, variances, basis, fit)
        return best

    def _variances(self, scaled: ScaledValues, table: Table, rows: Rows) -> Array:
        """Returns the known variances of the values of rows, on a scale that was made for them."""
        return scaled.variances(table.stds[rows, self._objective], table.stopped[rows])


#: The distance beyond a limit, as a share of the limit, of a job that was ended for using too much: at least this.
_KILLED = 0.5


class LimitLearner:
    """Models a measured figure with a limit, as its distance beyond the limit; also of failed trials."""

    def __init__(self, features: FeatureMap, dimensions: int, index: int, seed: int) -> None:
        """Starts without trials.

        Args:
            features: the map from unit vectors.
            dimensions: the number of dimensions.
            index: the index of the limit.
            seed: the seed of the optimizer.
        """
        self._features = features
        self._index = index
        self._told = ToldTrials(dimensions, may_be_penalties=False)
        self._values = ValuesLearner(features, self._told, 0, seed, {}, second_opinion=0)
        self._seed = seed
        self._largest = _KILLED

    def add(self, observation: Observation) -> None:
        """Adds a trial, unless its figure is not known."""
        excess = observation.excesses[self._index]
        if math.isnan(excess):
            return
        if excess == math.inf:
            excess = self._largest
        self._largest = max(excess, self._largest)
        self._told.add(replace(observation, values=(excess,), stds=None, stopped=False, excesses=()))

    def threshold(self, most: int) -> Threshold | None:
        """Returns the probability that the limit holds; None while too little is known.

        Args:
            most: points on which the process is conditioned, at most.
        """
        table = self._told.table(len(self._told))
        rows = table.most_telling(most, array_stream(self._seed, "limit", self._index, len(self._told)))
        found = scaled_values(table.values[table.good, 0])
        if len(rows) < LEAST_VALUES or not found:
            return None
        [posterior] = self._values.posteriors(table, rows, self._features.features(table.units[rows]))
        [model] = self._values.models(len(rows))
        return Threshold(posterior, found.get(model.scale, found[PLAIN]).placed(0.0))


@dataclass(frozen=True)
class _ScaledFit:
    """A fit on one scale, and its data."""

    features: Array
    scaled: ScaledValues
    variances: Array
    basis: Basis | None
    fit: Fit

    @property
    def evidence(self) -> float:
        """The log evidence, which can be compared between scales."""
        return self.fit.log_posterior + self.scaled.log_volume
