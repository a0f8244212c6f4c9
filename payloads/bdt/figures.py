"""Figures of merit of a classifier of weighted events, and how far training and test scores agree.

Arrays are of shape (n,): `scores` (higher: more like signal), `labels` (1 signal, 0 background), `weights`. Weights may
be negative, as next-to-leading-order generators have them: scikit-learn's figures refuse those, hence these.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import kolmogorov

Array = np.ndarray

#: The challenge's regularisation: events added to the background, so that a cut that leaves next to none wins nothing.
B_REG = 10.0


def auc(scores: Array, labels: Array, weights: Array) -> float:
    """Area under the ROC curve: how likely a signal event scores higher than a background one; ties count half."""
    values, place = np.unique(scores, return_inverse=True)
    signal = np.bincount(place, weights * labels, len(values))
    background = np.bincount(place, weights * (1 - labels), len(values))
    below = np.cumsum(background) - background / 2
    return float((signal * below).sum() / (signal.sum() * background.sum()))


def log_loss(margins: Array, labels: Array, weights: Array) -> float:
    """Cross-entropy with either class weighing half; ln 2 is that of a coin.

    Args:
        margins: logarithms of the odds for signal, either class being as likely.
        labels: 1 signal, 0 background.
        weights: of the events.
    """
    per_event = np.logaddexp(0.0, np.where(labels == 1, -margins, margins))
    return float(sum(np.average(per_event[labels == k], weights=weights[labels == k]) for k in (0, 1)) / 2)


def ams(signal: Array | float, background: Array | float) -> Array:
    """Approximate median significance of `signal` events expected over `background` ones.

    G. Cowan, K. Cranmer, E. Gross, O. Vitells, Eur. Phys. J. C 71 (2011) 1554, with the regularisation of
    C. Adam-Bourdarios et al., JMLR W&CP 42 (2015) 19. Sums below zero, which negative weights can give, count as zero.
    """
    s, b = np.maximum(signal, 0.0), np.maximum(background, 0.0) + B_REG
    return np.sqrt(np.maximum(2 * ((s + b) * np.log1p(s / b) - s), 0.0))


def best_cut(scores: Array, labels: Array, weights: Array) -> tuple[float, float]:
    """The cut on the score with the highest significance, and that significance.

    It is too good for the events on which it was found: the significance to quote is that of `ams_above` on others.
    """
    values, place = np.unique(scores, return_inverse=True)
    above = [
        np.bincount(place, weights * (labels == k), len(values))[::-1].cumsum()[::-1]  # events at or above each value
        for k in (1, 0)
    ]
    significance = ams(*above)
    best = int(significance.argmax())
    return float(values[best]), float(significance[best])


def ams_above(cut: float, scores: Array, labels: Array, weights: Array) -> float:
    """Significance of the events that score `cut` or more."""
    kept = scores >= cut
    return float(ams(*(weights[kept & (labels == k)].sum() for k in (1, 0))))


def kolmogorov_smirnov(first: Array, second: Array, weights: tuple[Array, Array]) -> tuple[float, float]:
    """Largest distance between two weighted distributions, and how likely equal ones are that far apart.

    The probability is Kolmogorov's asymptotic one with the effective numbers of events (Σw)² / Σw².
    """
    values = np.sort(np.concatenate([first, second]))
    shares, effective = [], []
    for sample, weight in zip((first, second), weights):
        order = np.argsort(sample)
        total = np.concatenate([[0.0], np.cumsum(weight[order])])
        shares.append(total[np.searchsorted(sample[order], values, side="right")] / total[-1])
        effective.append(weight.sum() ** 2 / (weight**2).sum())
    distance = float(np.abs(shares[0] - shares[1]).max())
    return distance, float(kolmogorov(math.sqrt(math.prod(effective) / sum(effective)) * distance))
