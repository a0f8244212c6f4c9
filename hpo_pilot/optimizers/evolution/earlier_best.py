"""The best points of earlier searches, for the optimizers that start from points and not from a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpo_pilot.optimizers.base import Observation

#: The best share of each earlier search, and of a small one so many, if that is no more than half of it.
_BEST_SHARE, _LEAST = 0.1, 3


def best_of_earlier(earlier: Mapping[str, Sequence[Observation]]) -> list[Observation]:
    """The best tenth of each earlier search, of small ones more, ranked by place in their own search, best first.

    Values of different searches are not compared. Failed and stopped trials and those that are no points of the space
    are left out, and so is a search whose values are all the same.
    """
    ranked: list[tuple[int, str, Observation]] = []
    for source, told in sorted(earlier.items()):
        good = [
            o
            for o in told
            if o.value is not None
            and not o.stopped
            and o.unit is not None
            and all(0.0 <= place <= 1.0 for place in o.unit)
        ]
        good.sort(key=lambda o: o.value if o.value is not None else math.inf)
        if not good or good[0].value == good[-1].value:
            continue  # none of them is better than another
        count = max(math.ceil(_BEST_SHARE * len(good)), min(_LEAST, math.ceil(len(good) / 2)))
        ranked += [(rank, source, o) for rank, o in enumerate(good[:count])]
    ranked.sort(key=lambda entry: entry[:2])
    return [o for _, _, o in ranked]
