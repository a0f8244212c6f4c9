"""Makes proton collisions as a search for H → ττ sees them: features, label and weight of each event.

Four processes are drawn as four-vectors, decayed, smeared and selected, and the features are computed from what is
left, so that their correlations, tails and missing values come about as they do in an analysis. README.md beside this
file has the formulae and their sources. It is a teaching model, no detector simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from detector import FEATURES, detected, features_of
from kinematics import Array
from processes import PROCESSES

#: Expected events after the selection, of our own choice: few enough that a cut that leaves one per cent of the
#: background is placed by some ten simulated events at least, and not by the chance of two or three.
SIGNAL_YIELD, BACKGROUND_YIELD = 100.0, 10_000.0
#: How the backgrounds share it, and how many of the simulated background events each has: simulation is never made in
#: the proportions of nature, which is one reason why events have weights.
SHARES = {"z": 0.60, "w": 0.30, "top": 0.10}
SIMULATED = {"z": 0.50, "w": 0.25, "top": 0.25}


@dataclass(frozen=True)
class Events:
    """A sample of events.

    Attributes:
        features: (n, d) numbers; NaN where an event has no such thing.
        names: (d,) of the features.
        labels: (n,) 1 for signal, 0 for background.
        weights: (n,) expected events per simulated one; may be negative, as next-to-leading-order generators have them.
    """

    features: Array
    names: tuple[str, ...]
    labels: Array
    weights: Array


def collisions(events: int, seed: int) -> Events:
    """Draws a sample, half of it signal.

    Args:
        events: how many, after the selection.
        seed: equal ones give equal samples.
    """
    rng = np.random.default_rng(seed)
    signal = events // 2
    counts = {"higgs": signal, **{name: round((events - signal) * share) for name, share in SIMULATED.items()}}
    counts["z"] += events - sum(counts.values())
    yields = {"higgs": SIGNAL_YIELD, **{name: BACKGROUND_YIELD * share for name, share in SHARES.items()}}
    features, weights = [], []
    for name, count in counts.items():
        features.append(_selected(name, count, rng))
        # Efficiencies of trigger and identification differ between simulation and data; events have factors for it.
        factors = np.clip(rng.normal(1.0, 0.1, count), 0.5, 1.5)
        weights.append(yields[name] * factors / factors.sum())
    labels = np.repeat([1, 0], [signal, events - signal])
    order = rng.permutation(events)
    return Events(np.vstack(features)[order], FEATURES, labels[order], np.concatenate(weights)[order])


def _selected(process: str, count: int, rng: np.random.Generator) -> Array:
    """Features of `count` events of a process that pass the selection."""
    parts, missing = [], count
    while missing > 0:
        found = features_of(detected(PROCESSES[process](3 * missing + 100, rng), rng))
        parts.append(found[:missing])
        missing -= len(parts[-1])
    return np.vstack(parts)
