"""What a search gained for what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from hpo_pilot.search.cost import Cost


@dataclass(frozen=True)
class Gain:
    """What a search gained.

    Attributes:
        first: its first figure of merit, in the order of results; of several objectives None.
        best: its best one; of several objectives None.
        gain: by how much the best is better than the first; of several objectives the hypervolume of the front.
        per_gpu_hour: that, by the GPU-hours of all jobs; None: there were none.
        per_core_hour: that, by their core-hours; None: there were none.
    """

    first: float | None
    best: float | None
    gain: float
    per_gpu_hour: float | None
    per_core_hour: float | None


def gain_of(first: float, best: float, sign: int, cost: Cost) -> Gain:
    """The gain of a search with one objective; `sign`: +1 where smaller is better, -1 where larger is."""
    gain = sign * (first - best)
    return Gain(first, best, gain, *_per_hour(gain, cost))


def volume_gain(volume: float, cost: Cost) -> Gain:
    """The gain of a search with several objectives: the volume that its front dominates."""
    return Gain(None, None, volume, *_per_hour(volume, cost))


def _per_hour(gain: float, cost: Cost) -> tuple[float | None, float | None]:
    gpu_hours, core_hours = cost.gpu_hours, cost.core_hours
    return gain / gpu_hours if gpu_hours > 0 else None, gain / core_hours if core_hours > 0 else None
