"""The figure of merit: how far the physics of one sample of showers is from that of another.

In each energy bin three distances, all of them from 0 (the same) to 1:

* longitudinal: ½ Σ |p - q| over the layers, where p and q are the shares of the seen energy in each layer;
* lateral: the same over the rows of x and over those of y; the mean of both;
* sampling: |s - r| / max(s, r), where s and r are the means of seen energy / particle energy.

The figure is the mean of the three, averaged over the bins. Two samples of the same truth have a small one, which goes
down with the square root of their size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from problem import TrainingError

DISTANCES = ("longitudinal", "lateral", "sampling")


@dataclass(frozen=True)
class Profiles:
    """Sums over showers in each of some energy bins; those of two samples can be added.

    Attributes:
        count: (bins,) showers.
        layers: (bins, depth) GeV seen in each layer.
        x: (bins, x) GeV seen in each row.
        y: (bins, y)
        fraction: (bins,) seen energy / particle energy.
        squares: (bins,) the same, squared.
    """

    count: np.ndarray
    layers: np.ndarray
    x: np.ndarray
    y: np.ndarray
    fraction: np.ndarray
    squares: np.ndarray

    def flat(self) -> list[float]:
        """All numbers, in one row: what ranks add up."""
        return [float(value) for array in vars(self).values() for value in array.ravel()]

    def refilled(self, values: list[float]) -> Profiles:
        """Profiles of this shape with the numbers of `flat`."""
        found, at = {}, 0
        for name, array in vars(self).items():
            found[name] = np.array(values[at : at + array.size]).reshape(array.shape)
            at += array.size
        return Profiles(**found)

    def resolution(self) -> float:
        """Mean over the bins of the relative spread of seen energy / particle energy."""
        mean = self.fraction / self.count
        variance = np.maximum(self.squares / self.count - mean**2, 0.0)
        return float(np.mean(np.sqrt(variance) / np.maximum(mean, 1e-12)))


def energy_bins(energy: np.ndarray, bins: int) -> np.ndarray:
    """(bins + 1,) edges between which there are equally many of these energies.

    Raises:
        TrainingError: they are too few or too equal.
    """
    edges = np.quantile(energy, np.linspace(0, 1, bins + 1))
    if len(energy) < 2 * bins or not (np.diff(edges) > 0).all():
        raise TrainingError(f"{len(energy)} showers have too few different energies for {bins} energy bins")
    return edges


def profiles(ecal: np.ndarray, energy: np.ndarray, edges: np.ndarray) -> Profiles:
    """The sums of showers `ecal` (n, x, y, depth) with `energy` (n,); beyond the edges the next bin counts."""
    bins = len(edges) - 1
    which = np.clip(np.searchsorted(edges, energy, side="right") - 1, 0, bins - 1)
    member = (which == np.arange(bins)[:, None]).astype(float)  # (bins, n)
    fraction = ecal.sum(axis=(1, 2, 3), dtype=float) / energy
    return Profiles(
        count=member.sum(axis=1),
        layers=member @ ecal.sum(axis=(1, 2), dtype=float),
        x=member @ ecal.sum(axis=(2, 3), dtype=float),
        y=member @ ecal.sum(axis=(1, 3), dtype=float),
        fraction=member @ fraction,
        squares=member @ fraction**2,
    )


def distances(found: Profiles, truth: Profiles) -> dict[str, np.ndarray]:
    """(bins,) each: the three distances.

    Raises:
        TrainingError: the numbers are not finite, or a bin is empty.
    """
    if not (min(found.count.min(), truth.count.min()) > 0 and np.isfinite(found.flat()).all()):
        raise TrainingError("there are no numbers to compare: a bin without showers, or showers that are not numbers")
    mean, right = found.fraction / found.count, truth.fraction / truth.count
    return {
        "longitudinal": _apart(found.layers, truth.layers),
        "lateral": (_apart(found.x, truth.x) + _apart(found.y, truth.y)) / 2,
        "sampling": np.abs(mean - right) / np.maximum(np.maximum(mean, right), 1e-300),
    }


def figure_of_merit(found: Profiles, truth: Profiles) -> dict[str, float]:
    """`figure`, and the mean of each distance over the bins."""
    apart = {name: float(values.mean()) for name, values in distances(found, truth).items()}
    return {"figure": sum(apart.values()) / len(apart), **apart}


def _apart(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(bins,) ½ Σ |p - q|; nothing seen at all is as far away as can be."""
    total = found.sum(axis=1, keepdims=True)
    shares = found / np.where(total > 0, total, 1.0)
    apart: np.ndarray = np.abs(shares - truth / truth.sum(axis=1, keepdims=True)).sum(axis=1) / 2
    return np.where(total[:, 0] > 0, apart, 1.0)
