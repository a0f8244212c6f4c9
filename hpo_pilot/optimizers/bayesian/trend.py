"""The trend under a Gaussian process: what every parameter does by itself, and every two do together.

A stationary process knows nothing where there are no data, so its predictions return to the average there, and corners
that nobody looked at seem worth a look, time after time. Responses to hyper-parameters are seldom like that: they have
a bowl of their own along most parameters. A quadratic polynomial with random coefficients, added to the covariance,
says how the bowl goes on; how much of it there is, the data decide.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from skopt.learning.gaussian_process.kernels import Hyperparameter, Kernel

Array = npt.NDArray[np.float64]

#: Deviation of x, and of (x - 1/2)^2, for x uniform in [0, 1].
_DEVIATION, _CURVED_DEVIATION = 1.0 / math.sqrt(12.0), 1.0 / math.sqrt(180.0)


class Basis:
    """The polynomials of first and second degree of some features, each of deviation 1 over the space.

    Attributes:
        size: the number of features.
    """

    def __init__(self, centres: Array, deviations: Array, means: Array) -> None:
        """Says what stands in the columns.

        Args:
            centres: where each feature's linear term is 0, shape (n_features,).
            deviations: the deviation of each feature, shape (n_features,).
            means: the mean of each feature's squared distance from its centre, shape (n_features,); NaN where it has
                no quadratic term (a column of 0 and 1).
        """
        self.size = len(centres)
        self._centres = centres
        self._deviations = deviations
        self._curved = np.flatnonzero(~np.isnan(means))
        self._means = means[self._curved]

    @classmethod
    def of_numbers(cls, size: int) -> Basis:
        """For features that are all uniform in [0, 1]."""
        return cls(np.full(size, 0.5), np.full(size, _DEVIATION), np.full(size, _DEVIATION**2))

    def linear(self, features: Array) -> Array:
        """The linear terms, shape (n, n_features); their squares add up to about 1."""
        return np.asarray((features - self._centres) / (self._deviations * math.sqrt(self.size)))

    def terms(self, features: Array) -> Array:
        """Linear and quadratic terms, shape (n, n_terms); their squares add up to about 1."""
        away = features[:, self._curved] - self._centres[self._curved]
        curved = (away * away - self._means) / (_CURVED_DEVIATION * math.sqrt(self.size))
        return np.concatenate([self.linear(features), curved], axis=1) / math.sqrt(2.0)

    def linear_slopes(self) -> Array:
        """The derivative of each linear term by its feature, shape (n_features,)."""
        return np.asarray(1.0 / (self._deviations * math.sqrt(self.size)))

    def pulled(self, features: Array, weights: Array) -> Array:
        """The derivatives by the features of the terms' sum, weighted.

        Args:
            features: shape (m, n_features).
            weights: of the terms, shape (n_terms,) or (m, n_terms).

        Returns:
            Shape (m, n_features).
        """
        weights = np.broadcast_to(weights, (len(features), self.size + len(self._curved))) / math.sqrt(2.0)
        result = weights[:, : self.size] * self.linear_slopes()
        away = features[:, self._curved] - self._centres[self._curved]
        result[:, self._curved] += weights[:, self.size :] * 2.0 * away / (_CURVED_DEVIATION * math.sqrt(self.size))
        return result


class TrendKernel(Kernel):  # type: ignore[misc]  # scikit-optimize ships no types
    """The covariance of a quadratic polynomial with random coefficients.

    `alone` is the prior variance of the sum of each feature's own polynomial, `together` that of the products of two.
    """

    def __init__(
        self,
        basis: Basis,
        alone: float = 1.0,
        together: float = 1.0,
        limits: tuple[float, float] = (1e-4, 1e3),
    ) -> None:
        """As scikit-learn's kernels: an attribute for each argument."""
        self.basis = basis
        self.alone = alone
        self.together = together
        self.limits = limits

    @property
    def hyperparameter_alone(self) -> Any:
        """For scikit-learn: the logarithm of this is in `theta`."""
        return Hyperparameter("alone", "numeric", self.limits)

    @property
    def hyperparameter_together(self) -> Any:
        """For scikit-learn: the logarithm of this is in `theta`, after that of `alone`."""
        return Hyperparameter("together", "numeric", self.limits)

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Any:
        """The covariance matrix, and its derivatives by `theta`."""
        alone, together = trend_parts(self.basis, X, X if Y is None else Y)
        covariance = self.alone * alone + self.together * together
        if not eval_gradient:
            return covariance
        return covariance, np.stack([self.alone * alone, self.together * together], axis=2)

    def diag(self, X: Array) -> Array:
        """The prior variance at each point."""
        return trend_variance(self.basis, X, self.alone, self.together)

    def is_stationary(self) -> bool:
        """A polynomial depends on the place."""
        return False


def trend_parts(basis: Basis, first: Array, second: Array) -> tuple[Array, Array]:
    """Both parts of the trend's covariance for unit variances, each of shape (n_first, n_second)."""
    together = basis.linear(first) @ basis.linear(second).T
    return basis.terms(first) @ basis.terms(second).T, together * together


def trend_variance(basis: Basis, features: Array, alone: float, together: float) -> Array:
    """The trend's prior variance, shape (n,)."""
    terms, linear = basis.terms(features), basis.linear(features)
    square = np.einsum("nf,nf->n", linear, linear)
    return np.asarray(alone * np.einsum("nt,nt->n", terms, terms) + together * square * square)
