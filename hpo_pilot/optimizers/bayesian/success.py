"""Where trials fail: the probability that a point gives a value at all, and how much a batch heeds it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from hpo_pilot.optimizers.bayesian.features import FeatureMap
from hpo_pilot.optimizers.bayesian.gaussian_process import Hyperparameters, best_fit
from hpo_pilot.optimizers.bayesian.ladder import refit_cut
from hpo_pilot.optimizers.bayesian.posterior import Posterior
from hpo_pilot.optimizers.bayesian.told import Table, Told
from hpo_pilot.optimizers.streams import array_stream

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Outcomes jump where a region begins to fail, and a smooth process fits a jump best with a very short length scale,
#: which learns nothing about the rest of the region. These bounds make it see regions: scales per square root of the
#: number of features, and the variance of the outcomes' noise.
_LEAST_SCALE, _LEAST_NOISE = 0.25, 0.02

#: Hyper-parameters are fitted on this many points at most, the probability is conditioned on this many.
_FITTED, _CONDITIONED = 256, 500

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
                rows = table.some_of_both(_FITTED, array_stream(self._seed, "fit", "outcomes", cut))
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
