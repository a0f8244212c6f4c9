"""Numbers as a row of little bars, one a column."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values from left to right, at most `width` of them evenly apart, the last one always; low bars are low."""
    finite = [value for value in values if math.isfinite(value)]
    count = min(width, len(finite))
    if count < 1:
        return ""
    chosen = [finite[-1 - (len(finite) - 1) * (count - 1 - i) // max(1, count - 1)] for i in range(count)]
    # Halved, for the difference of two floats may be none.
    low, high = min(chosen) / 2, max(chosen) / 2
    if high <= low:
        return _BARS[0] * count
    return "".join(_BARS[round((value / 2 - low) / (high - low) * (len(_BARS) - 1))] for value in chosen)
