"""Where trials fail: the probability that a point gives a value at all."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from hpo_pilot.optimizers.gaussian_process import Hyperparameters, fit_hyperparameters
from hpo_pilot.optimizers.posterior import Posterior

Array = npt.NDArray[np.float64]

#: Outcomes jump where a region begins to fail, and a smooth process fits a jump best with a very short length scale,
#: which learns nothing about the rest of the region. These bounds make it see regions: scales per square root of the
#: number of features, and the variance of the outcomes' noise.
_LEAST_SCALE, _LEAST_NOISE = 0.25, 0.02


class SuccessModel:
    """A Gaussian process on the outcomes, 1 for a value and 0 for a failure (least-squares classification)."""

    def __init__(self, fit: Hyperparameters, features: Array, failed: npt.NDArray[np.bool_]) -> None:
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


def fit_outcomes(features: Array, failed: npt.NDArray[np.bool_]) -> Hyperparameters:
    """The hyper-parameters of a `SuccessModel` for the same data."""
    least = _LEAST_SCALE * math.sqrt(features.shape[1])
    return fit_hyperparameters(features, _standard_outcomes(failed)[0], least_scale=least, least_noise=_LEAST_NOISE)


def _standard_outcomes(failed: npt.NDArray[np.bool_]) -> tuple[Array, float, float]:
    """Outcomes with mean 0 and deviation 1, and what the mean and deviation were."""
    outcomes = np.where(failed, 0.0, 1.0)
    mean, deviation = float(outcomes.mean()), float(outcomes.std())
    return (outcomes - mean) / deviation, mean, deviation
