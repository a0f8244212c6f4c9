"""The best points of earlier searches, for the optimizers that start from points and not from a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpo_pilot.optimizers.base import Observation

#: The best share of each earlier search.
_BEST_SHARE = 0.1


def best_of_earlier(earlier: Mapping[str, Sequence[Observation]]) -> list[Observation]:
    """The best tenth of each earlier search, ranked by place in their own search, best first.

    Values of different searches are not compared. Failed and stopped trials and those that are no points of the space
    are left out.
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
        ranked += [(rank, source, o) for rank, o in enumerate(good[: math.ceil(_BEST_SHARE * len(good))])]
    ranked.sort(key=lambda entry: entry[:2])
    return [o for _, _, o in ranked]
