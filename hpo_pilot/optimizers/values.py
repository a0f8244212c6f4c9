"""Values made fit for a Gaussian process: order kept, outliers tamed, near normal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.optimize import minimize_scalar

Array = npt.NDArray[np.float64]

#: Beyond this many robust deviations from the median, values count by their logarithm; on the bad side also no more
#: than so.
_TAIL = 3.0
_WORST = 6.0

#: The range of Yeo-Johnson's exponent; 1 changes nothing, 2 and -1 are already strong.
_EXPONENTS = (-1.0, 3.0)


def normalised(values: Array) -> Array:
    """`values`, shape (n,), with mean 0 and deviation 1, in the same order.

    Any finite input will do: 1e300 and 1e-320, and values that are all the same (all 0 then). Far tails are compressed,
    for one diverged training must not flatten the differences between the good ones.
    """
    values = np.asarray(values, dtype=float)
    if values.size == 0:
        return values
    largest = float(np.abs(values).max())
    if largest == 0.0:
        return np.zeros_like(values)
    values = values / largest  # differences of huge values would overflow
    centred = values - np.median(values)
    low, high = np.quantile(centred, [0.1, 0.9])
    scale = max(min(-low, high), 0.25 * max(-low, high)) / 1.2816  # the narrower side, if not a great deal so
    if scale <= 0.0:
        scale = float(np.abs(centred).mean())
    if scale < 1e-300:
        return np.zeros_like(values)
    with np.errstate(over="ignore"):
        deviations = np.clip(centred / scale, -1e12, 1e12)
    size = np.abs(deviations)
    tamed = np.sign(deviations) * np.where(size > _TAIL, _TAIL + np.log1p(np.maximum(size - _TAIL, 0.0)), size)
    return _standardised(_yeo_johnson(np.minimum(tamed, _WORST)))


def _yeo_johnson(values: Array) -> Array:
    if len(np.unique(values)) < 4:
        return values
    fit = minimize_scalar(lambda exponent: -stats.yeojohnson_llf(exponent, values), bounds=_EXPONENTS, method="bounded")
    return np.asarray(stats.yeojohnson(values, lmbda=float(fit.x)), dtype=float)


def _standardised(values: Array) -> Array:
    deviation = float(values.std())
    if deviation < 1e-12:
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / deviation, dtype=float)
