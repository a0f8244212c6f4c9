"""The expected improvement of a front's hypervolume by a point with independent normal costs: exact, in closed form.

The region that a front leaves open is cut into boxes. What a point adds within a box is a product over the objectives,
and so is its expectation; each factor is the difference of two expected improvements, to the box's upper and to its
lower bound. (Yang, Emmerich, Deutz, Bäck 2019, "Efficient computation of expected hypervolume improvement using box
decomposition algorithms".) As in `acquisition` everything is a logarithm, which stays exact where next to nothing is to
be gained: Ament et al. 2023.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp

from hpo_pilot.optimizers.bayesian.acquisition import log_h

Array = npt.NDArray[np.float64]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

#: Two objectives have a box for each point of the front, three have two, five have some twenty.
_MOST_BOXES = 2_000

#: Exponents are kept below this, so that a gradient where nothing is to be gained is large, not infinite.
_LARGEST = 500.0


def open_boxes(front: Array, reference: Array) -> tuple[Array, Array]:
    """What is better than `reference` and dominated by no row of `front`, in boxes that do not overlap.

    Dächert, Klamroth, Lacour, Vanderpooten 2017, "Efficient computation of the search region in multi-objective
    optimization": the region is the union of the boxes below local upper bounds, each bound by one point per objective.

    Args:
        front: shape (n, n_objectives), the rows that matter most first: of many objectives there would be too many
            boxes, and the last rows are passed over.
        reference: shape (n_objectives,).

    Returns:
        Lower and upper bounds, each of shape (n_boxes, n_objectives); -inf where a box is open.
    """
    count = len(reference)
    upper = reference[None, :].copy()
    #: The point that bounds upper[i] in objective j, shape (n_bounds, j, n_objectives).
    points = np.full((1, count, count), -np.inf)
    points[0, np.arange(count), np.arange(count)] = reference
    for row in front:
        hit = (row < upper).all(axis=1)
        if not hit.any():
            continue
        if len(upper) > _MOST_BOXES:
            break
        new_upper, new_points = [upper[~hit]], [points[~hit]]
        for j in range(count):
            others = np.delete(points[hit], j, axis=1)[:, :, j].max(axis=1)
            kept = row[j] >= others
            moved, by = upper[hit][kept], points[hit][kept]
            moved[:, j], by[:, j, :] = row[j], row
            new_upper.append(moved)
            new_points.append(by)
        upper, points = np.concatenate(new_upper), np.concatenate(new_points)
    lower = np.full(upper.shape, -np.inf)
    for j in range(count - 1):
        lower[:, j] = points[:, j + 1 :, j].max(axis=1)
    full = (lower < upper).all(axis=1)
    return lower[full], upper[full]


class HypervolumeImprovement:
    """The logarithm of the expected hypervolume improvement over one front.

    Attributes:
        boxes: how many there are.
    """

    def __init__(self, front: Array, reference: Array) -> None:
        """Cuts what the front leaves open below the reference point; arguments and order as for `open_boxes`."""
        lower, upper = open_boxes(front, reference)
        self.boxes = len(upper)
        sides_of = list(zip(lower.T, upper.T, strict=True))
        # Of each objective only the distinct sides are computed, and the distinct pairs of them.
        self._sides = [np.unique(np.concatenate([low[low > -np.inf], high])) for low, high in sides_of]
        self._pairs, self._of_box = [], []
        for sides, (low, high) in zip(self._sides, sides_of, strict=True):
            ends = np.stack([np.where(low > -np.inf, np.searchsorted(sides, low), -1), np.searchsorted(sides, high)])
            pairs, place = np.unique(ends, axis=1, return_inverse=True)
            self._pairs.append(pairs)
            self._of_box.append(place.reshape(-1))

    def log_value(self, means: Array, variances: Array) -> Array:
        """At points whose costs have these means and variances, each of shape (m, n_objectives); shape (m,)."""
        return np.asarray(logsumexp(self._log_boxes(means, variances), axis=1))

    def log_gradient(self, means: Array, variances: Array) -> tuple[Array, Array, Array]:
        """The same, shape (m,), and its derivatives by means and variances, each of shape (m, n_objectives)."""
        boxes = self._log_boxes(means, variances)
        value = logsumexp(boxes, axis=1)
        shares = np.exp(boxes - value[:, None])
        by_mean, by_variance = np.empty_like(means), np.empty_like(means)
        for j, (place, pairs) in enumerate(zip(self._of_box, self._pairs, strict=True)):
            widths, z, deviation = self._log_widths(j, means[:, j], variances[:, j])
            share = np.zeros(widths.shape)
            np.add.at(share.T, place, shares.T)
            in_mean = np.zeros(widths.shape)
            in_deviation = np.zeros(widths.shape)
            for end, sign in ((1, 1.0), (0, -1.0)):
                there = pairs[end] >= 0
                at, width = z[:, pairs[end][there]], widths[:, there]
                in_mean[:, there] -= sign * np.exp(np.minimum(log_ndtr(at) - width, _LARGEST))
                in_deviation[:, there] += sign * np.exp(np.minimum(-0.5 * at * at - _HALF_LOG_2PI - width, _LARGEST))
            by_mean[:, j] = (share * in_mean).sum(axis=1)
            by_variance[:, j] = (share * in_deviation).sum(axis=1) / (2.0 * deviation)
        return value, by_mean, by_variance

    def _log_boxes(self, means: Array, variances: Array) -> Array:
        """What each box adds; shape (m, n_boxes)."""
        total = np.zeros((len(means), self.boxes))
        for j, place in enumerate(self._of_box):
            total += self._log_widths(j, means[:, j], variances[:, j])[0][:, place]
        return total

    def _log_widths(self, j: int, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
        """The factor of each pair of sides in objective j, shape (m, n_pairs); standardised sides; deviations."""
        deviation = np.sqrt(variance)
        z = (self._sides[j][None, :] - mean[:, None]) / deviation[:, None]
        improvement = np.log(deviation)[:, None] + log_h(z)
        low, high = self._pairs[j]
        to_high = improvement[:, high]
        below = np.where(low[None, :] >= 0, improvement[:, low], -np.inf) - to_high
        with np.errstate(divide="ignore"):  # sides next to each other, seen from far away
            return to_high + np.log(-np.expm1(np.minimum(below, 0.0))), z, deviation
