"""Points that are out at the same time must not be one point: what two of them tell, one tells as well.

Two points are as good as one where they are much nearer to each other than to anything known: until the first of them
is back, nobody can know why a second one should be there. The nearer the known points come, the finer this gets, so it
does not keep a search from closing in on its optimum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Nearer to a point that is out than this share of the distance to the nearest known one is too near.
_SHARE = 0.05


class Spacing:
    """Which points are too near to those that are out, in the length scales of one model."""

    def __init__(self, scales: Array, known: Array, out: Array) -> None:
        """Knows where what is.

        Args:
            scales: the length scales, shape (n_features,).
            known: the features of points that are told, failures too, shape (n, n_features).
            out: the features of those that are not yet, shape (m, n_features).
        """
        self._scales = scales
        self._known = known / scales
        self._out = out / scales

    def look_at(self, features: Array) -> None:
        """Takes the candidates, shape (k, n_features)."""
        self._candidates = features / self._scales
        self._reach = _SHARE * _nearest(self._candidates, self._known)
        self._nearest_out = _nearest(self._candidates, self._out)

    def add(self, features: Array) -> None:
        """One more point is out, of shape (n_features,)."""
        point = features[None, :] / self._scales
        self._out = np.concatenate([self._out, point])
        np.minimum(self._nearest_out, cdist(self._candidates, point)[:, 0], out=self._nearest_out)

    def crowded_candidates(self) -> Mask:
        """Which candidates are too near to a point that is out, shape (k,)."""
        return self._nearest_out < self._reach

    def crowded(self, features: Array) -> Mask:
        """The same for any points, shape (n, n_features); shape (n,)."""
        scaled = features / self._scales
        return _nearest(scaled, self._out) < _SHARE * _nearest(scaled, self._known)


def _nearest(points: Array, others: Array) -> Array:
    """The distance of each point to the nearest of the others, shape (n,); infinite where there is none."""
    if not len(others):
        return np.full(len(points), np.inf)
    return np.asarray(cdist(points, others).min(axis=1))
