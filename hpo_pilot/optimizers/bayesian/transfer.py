"""What earlier searches say about this one: each is a model of its own, and a drift under the values of this search.

A search of another data set, on another machine or with a smaller model has values on another scale, and its optimum a
little off. So nothing of its values is taken over, only their course: the mean of a Gaussian process of its trials,
centred and scaled over the points of this search, times a weight. What is left, the process of this search learns. The
weights are found with its hyper-parameters, and the evidence of this search's own values says whether the earlier ones
are of any use: where they disagree they are left out. (The linear case of Kennedy and O'Hagan 2000, "Predicting the
output from a complex computer code when fast approximations are available", for several codes.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular

from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.bayesian.gaussian_process import Hyperparameters, best_fit
from hpo_pilot.optimizers.bayesian.posterior import Posterior
from hpo_pilot.optimizers.bayesian.told import Table
from hpo_pilot.optimizers.bayesian.trend import Basis
from hpo_pilot.optimizers.bayesian.values import warps
from hpo_pilot.optimizers.streams import array_stream

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: So many trials of one earlier search are learned from at most, and of all together; of many searches each has at
#: least a few.
_ONE, _ALL, _EACH = 200, 500, 10

#: The hyper-parameters of an earlier search are fitted on this many of its trials.
_FITTED = 100

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
    some = np.arange(len(values)) % math.ceil(len(values) / _FITTED) == 0
    best: tuple[float, Posterior] | None = None
    for warped in warps(values):
        variances = warped.variances(stds, stopped)
        fit = best_fit(features[some], warped.values[some], basis=basis, variances=variances[some])
        evidence = fit.log_posterior + warped.log_volume * some.mean()
        if best is None or evidence > best[0]:
            best = (evidence, Posterior.of_data(fit.found, features, warped.values, variances))
    return None if best is None else best[1]
