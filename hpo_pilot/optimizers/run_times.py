"""The model of run times: a Gaussian process of the logarithm of the seconds that a fold of a trial takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hpo_pilot.optimizers.base import Observation, array_stream
from hpo_pilot.optimizers.gaussian_process import Hyperparameters, Posterior, best_fit
from hpo_pilot.optimizers.objective_models import refit_cut
from hpo_pilot.optimizers.training_data import FeatureMap, ToldTrials

Array = npt.NDArray[np.float64]

#: Seconds added to each run time: a job costs about as much besides, and shorter trainings do not differ in cost.
_BESIDES = 1.0

#: Run times on which the model is conditioned, at most, and the least number for a model.
_USED, _LEAST = 256, 8

#: The model is used by itself if its leave-one-out predictions of dear and cheap trials differ by more than this
#: factor, and explain more than this share of the variance. Of random run times, 8 to 40 results in six dimensions
#: explained up to 0.69; of run times that depend on the point, from 10 results on 0.79 to 0.99.
_FACTOR, _EXPLAINED = 2.0, 0.75


class RunTimeModel:
    """Predicts run times.

    Attributes:
        explained: the share of the variance that leave-one-out predictions explain; below 0: worse than the mean.
        factor: the ratio of the leave-one-out predictions of dear and cheap trials: of their 90% and 10% quantiles.
    """

    def __init__(self, fit: Hyperparameters, features: Array, logs: Array) -> None:
        """Conditions on the logarithms of run times, shape (n,), at distinct features, shape (n, n_features)."""
        self._centre, self._deviation = float(logs.mean()), float(logs.std())
        self._range = float(logs.min()), float(logs.max())
        values = (logs - self._centre) / self._deviation
        self._posterior = Posterior.of_data(fit, features, values)
        missed, _ = self._posterior.left_out()
        self.explained = 1.0 - float(np.mean(missed * missed))
        low, high = np.quantile(values - missed, [0.1, 0.9])
        self.factor = math.exp(self._deviation * float(high - low))

    @property
    def is_telling(self) -> bool:
        """Whether run times differ by more than a factor of two, and the model predicts this."""
        return self.factor > _FACTOR and self.explained > _EXPLAINED

    def logs(self, features: Array) -> Array:
        """Returns predicted logarithms at features, shape (m, n_features), within the range of the known ones."""
        return np.asarray((self._centre + self._deviation * self._posterior.mean(features)).clip(*self._range))


class RunTimeLearner:
    """Fits the model of run times; each fit uses the first trials of the history (`refit_cut`)."""

    def __init__(self, features: FeatureMap, dimensions: int, seed: int, levels: Sequence[float] = ()) -> None:
        """Uses the features of points with this number of dimensions, and the seed and levels of the optimizer.

        Jobs of lower levels take more seconds for what they train, because jobs take time to start. So run times of all
        levels are moved to the range of those at the highest one, and their features have the level.
        """
        self._features, self._seed = features, seed
        self._told = ToldTrials(dimensions, may_be_penalties=False, levels=levels)
        self._fit = lru_cache(maxsize=1)(self._fitted)

    def add(self, observation: Observation) -> None:
        """Takes the run time of a trial with a value."""
        if observation.seconds is not None and observation.values is not None:
            log = math.log(max(0.0, observation.seconds) + _BESIDES)
            self._told.add(replace(observation, values=(log,), stds=None, excesses=()))

    def model(self, *, telling: bool = False) -> RunTimeModel | None:
        """Returns the present model; None while too few run times are known, or all are equal.

        With `telling` also None if the model is not, see `RunTimeModel.is_telling`.
        """
        features, logs = self._data(len(self._told), "model")
        if not _is_enough(logs) or (telling and float(np.ptp(logs)) < math.log(_FACTOR)):
            return None
        model = RunTimeModel(self._fit(refit_cut(len(self._told))), features, logs)
        return model if model.is_telling or not telling else None

    def _fitted(self, cut: int) -> Hyperparameters:
        features, logs = self._data(cut, "fit")
        if not _is_enough(logs):
            return Hyperparameters.wide(self._features.size)
        return best_fit(features, (logs - logs.mean()) / logs.std(), basis=self._features.basis).found

    def _data(self, count: int, purpose: str) -> tuple[Array, Array]:
        """Returns features and logarithms of run times of the first `count` trials."""
        table = self._told.table(count)
        rows = table.most_telling(_USED, array_stream(self._seed, "run times", purpose, count))
        return self._features.told(table, rows), table.values[rows, 0]


def _is_enough(logs: Array) -> bool:
    return len(logs) >= _LEAST and float(logs.std()) > 1e-9
