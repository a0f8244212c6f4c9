"""What a training that was stopped early would probably have come to."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np


def projected(value: float, others: Sequence[tuple[float, float]]) -> float:
    """The final value that goes with the place of `value` among the others; lower is better.

    The place among the finished trainings at the step where it was stopped is taken for its place among their final
    values, between two of them by interpolation. Beyond the worst or the best of them its distance from them at that
    step is added, as far as such distances last: by the slope of the final values over those at that step, from 0 to 1.
    One that is better already than all of them were in the end is worth at least what it has.

    Args:
        value: at the step where the training was stopped; infinity is as bad as the worst of them.
        others: (value at that step, final value) of finished trainings; none: `value` is all that is known.
    """
    others = [pair for pair in others if math.isfinite(pair[0])]
    if not others:
        return value
    here = sorted(at for at, _ in others)
    finals = sorted(final for _, final in others)
    place = (bisect_left(here, value) + bisect_right(here, value)) / 2 / len(here)
    position = place * (len(finals) - 1)
    lower = int(position)
    upper = min(lower + 1, len(finals) - 1)
    between = finals[lower] * (1 - (position - lower)) + finals[upper] * (position - lower)
    if here[0] <= value <= here[-1] or not math.isfinite(value):
        return between
    slope = _slope(others, worse=value > here[-1])
    if value > here[-1]:
        return min(finals[-1] + slope * (value - here[-1]), sys.float_info.max)
    return max(min(finals[0] - slope * (here[0] - value), value), -sys.float_info.max)


def _slope(others: Sequence[tuple[float, float]], worse: bool) -> float:
    """How much of a distance at that step is left in the end, from 0 to 1: a robust regression.

    Of fewer than three trainings nothing can be said: all of what one is worse, nothing of what it is better.
    """
    if len(others) < 3:
        return float(worse)
    pairs = np.array(others) / len(others)  # so that no difference overflows
    low, high = np.percentile(pairs, [25, 75], axis=0)
    if not high[0] > low[0]:
        return float(worse)
    here, finals = pairs.argsort(axis=0, kind="stable").argsort(axis=0).T
    agreement = max(0.0, float(np.corrcoef(here, finals)[0, 1]))
    return min(1.0, agreement * float((high[1] - low[1]) / (high[0] - low[0])))
