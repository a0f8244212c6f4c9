"""Momenta of massless particles: arrays of shape (..., 3) in GeV, the beam along the third axis."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def cartesian(pt: Array, eta: Array, phi: Array) -> Array:
    """Momenta of transverse size `pt`, pseudorapidity `eta`, azimuth `phi`."""
    return np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=-1)


def transverse(momentum: Array) -> Array:
    """Size across the beam."""
    return np.hypot(momentum[..., 0], momentum[..., 1])


def pseudorapidity(momentum: Array) -> Array:
    """0 across the beam, ± large along it."""
    return np.arcsinh(momentum[..., 2] / transverse(momentum))


def delta_phi(first: Array, second: Array) -> Array:
    """Angle between two momenta seen along the beam, 0 to π."""
    difference = np.arctan2(first[..., 1], first[..., 0]) - np.arctan2(second[..., 1], second[..., 0])
    return np.abs((difference + np.pi) % (2 * np.pi) - np.pi)


def pair_mass(first: Array, second: Array) -> Array:
    """Invariant mass of two massless momenta."""
    product = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1) - (first * second).sum(axis=-1)
    return np.sqrt(np.maximum(2 * product, 0.0))
