"""What a trial that was stopped early would probably have come to."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def projected(value: float, others: Sequence[tuple[float, float]]) -> float:
    """The final value that goes with the place of `value` among the others; lower is better.

    The place among the finished trials at the step where it was stopped is taken for its place among their final
    values, between two of them by interpolation. Beyond the worst of them the distance at that step is added. It is
    never better than the best of them; where there are none it is `value`.

    Args:
        value: at the step where the trial was stopped; infinity is as bad as the worst of them.
        others: (value at that step, final value) of finished trials.
    """
    if not others:
        return value
    here = sorted(at for at, _ in others)
    finals = sorted(final for _, final in others)
    place = (bisect_left(here, value) + bisect_right(here, value)) / 2 / len(here)
    position = place * (len(finals) - 1)
    lower = int(position)
    upper = min(lower + 1, len(finals) - 1)
    between = finals[lower] * (1 - (position - lower)) + finals[upper] * (position - lower)
    beyond = value - here[-1] if value > here[-1] and math.isfinite(value) else 0.0
    return max(finals[0], min(between + beyond, sys.float_info.max))
