"""Values made fit for a Gaussian process: order kept, in units of their spread, on several scales to choose from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import minimize_scalar

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Beyond this many robust deviations from the median, values count by their logarithm: one diverged training must not
#: flatten the differences between the good ones.
_TAIL = 3.0

#: The range of Yeo-Johnson's exponent; 1 changes nothing, 2 and -1 are already strong.
_EXPONENTS = (-1.0, 3.0)

#: More deviations than this are all the same.
_FARTHEST = 1e6

#: The variance of what a stopped trial would probably have come to, on the scale of values with variance 1.
_STOPPED_VARIANCE = 0.1

PLAIN, TAMED, NORMAL = "plain", "tamed", "normal"


@dataclass(frozen=True)
class Warped:
    """Values on another scale.

    Attributes:
        name: `PLAIN`: shifted and scaled only; `TAMED`: far ones by their logarithm; `NORMAL`: made nearly normal, too.
        values: with mean 0 and deviation 1, in the same order, shape (n,).
        slopes: their derivatives by the values as they were, shape (n,); in units of 1 / `unit`.
        unit: what the values as they were are divided by before all else, so that huge ones do not overflow.
        log_volume: the logarithm of the slopes' product, in the same units for all warps of the same values: what
            makes the likelihoods of a model on several scales comparable.
    """

    name: str
    values: Array
    slopes: Array
    unit: float
    log_volume: float

    def variances(self, stds: Array, stopped: Mask) -> Array:
        """The known variances of the values on this scale, shape (n,).

        Args:
            stds: the standard errors of the values as they were, shape (n,).
            stopped: which of them stopped trials would only probably have come to, shape (n,).
        """
        with np.errstate(over="ignore", invalid="ignore"):
            known = np.nan_to_num(np.minimum((stds / self.unit * self.slopes) ** 2, 4.0), nan=4.0)
        return known + np.where(stopped, _STOPPED_VARIANCE, 0.0)


def warps(values: Array) -> list[Warped]:
    """All scales that make sense for `values`, shape (n,); none where they are all the same."""
    unit, deviations, scale = _deviations(values)
    if scale == 0.0:
        return []
    size = np.abs(deviations)
    far = size > _TAIL
    beyond = np.log1p(np.maximum(size - _TAIL, 0.0))
    tamed = np.sign(deviations) * np.where(far, _TAIL + beyond, size)
    log_slopes = np.where(far, -beyond, 0.0)
    found = [_warped(PLAIN, deviations, np.zeros_like(size), unit, scale)]
    if far.any():
        found.append(_warped(TAMED, tamed, log_slopes, unit, scale))
    if len(np.unique(tamed)) >= 4:
        exponent = _exponent(tamed)
        bent = np.asarray(stats.yeojohnson(tamed, lmbda=exponent), dtype=float)
        log_slopes = log_slopes + np.sign(tamed) * (exponent - 1.0) * np.log1p(np.abs(tamed))
        found.append(_warped(NORMAL, bent, log_slopes, unit, scale))
    return [warped for warped in found if warped is not None]


def _deviations(values: Array) -> tuple[float, Array, float]:
    """(largest size, robust deviations from the median of the values divided by it, their scale; 0: all the same)."""
    values = np.asarray(values, dtype=float)
    largest = float(np.abs(values).max()) if values.size else 0.0
    if largest == 0.0:
        return 1.0, np.zeros_like(values), 0.0
    # Differences of huge values would overflow.
    centred = values / largest
    centred = centred - np.median(centred)
    low, high = np.quantile(centred, [0.1, 0.9])
    scale = max(min(-low, high), 0.25 * max(-low, high)) / 1.2816  # the narrower side, if not a great deal so
    if scale <= 0.0:
        scale = float(np.abs(centred).mean())
    if scale < 1e-300:
        return largest, np.zeros_like(values), 0.0
    with np.errstate(over="ignore"):
        return largest, np.clip(centred / scale, -_FARTHEST, _FARTHEST), float(scale)


def _warped(name: str, values: Array, log_slopes: Array, unit: float, scale: float) -> Warped | None:
    deviation = float(values.std())
    if deviation < 1e-12:
        return None
    volume = float(log_slopes.sum() - len(values) * np.log(deviation))
    slopes = np.exp(log_slopes) / (scale * deviation)
    return Warped(name, np.asarray((values - values.mean()) / deviation), slopes, unit, volume)


def _exponent(values: Array) -> float:
    fit = minimize_scalar(lambda exponent: -stats.yeojohnson_llf(exponent, values), bounds=_EXPONENTS, method="bounded")
    return float(fit.x)
