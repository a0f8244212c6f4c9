"""How the time of a training falls with its ranks: a model fitted to measurements.

For w ranks and an amount of work that is always the same, the time is the sum of

    compute         a / w
    all-reduce      (b (w - 1) / w + c (w - 1)) s(w)
    input, serial   d

with all of a, b, c, d at least 0. A ring sends 2 (w - 1) messages of 1/w of the gradients each (P. Patarasuk, X. Yuan,
J. Parallel Distrib. Comput. 69 (2009) 117): b is for their bytes, c for their latencies. s(w) says how often gradients
are summed: as often as on one rank where the batch is split between the ranks (`split batch`: s = 1), and the less
often the more ranks where each keeps its own batch (`batch per rank`: s = 1/w). Which of the two it was is not asked:
the one that better predicts points held out is taken.

Of whole times alone a, b, c and d cannot all be told, for 1 = 1/w + (w - 1)/w: the times that they predict can. Where
compute, communication and input were measured one by one, they are fitted one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from hpo_pilot.planning.scaling_points import ScalingPoint

_Terms = Callable[[float], tuple[float, float, float, float]]

#: compute, bytes, latency, input: what each is multiplied by.
_KINDS: dict[str, _Terms] = {
    "split batch": lambda w: (1 / w, (w - 1) / w, w - 1, 1.0),
    "batch per rank": lambda w: (1 / w, (w - 1) / w**2, (w - 1) / w, 1.0),
}

#: Which of the terms make up a part that was measured by itself; input may be shared out between ranks, or not.
_PART_TERMS = ((0,), (1, 2), (0, 3))


@dataclass(frozen=True)
class ScalingModel:
    """A fitted model.

    Attributes:
        kind: `split batch` or `batch per rank`.
        coefficients: a, b, c, d, in seconds.
        error: largest relative error of the sizes held out one by one: fitted without a size, by how much it is off.
        error_beyond: the same of the largest size alone, which then is beyond all that was fitted.
        sizes: ranks that were measured, ascending.
        has_parts: whether the parts were measured one by one, so that each coefficient is what it is called.
    """

    kind: str
    coefficients: tuple[float, float, float, float]
    error: float
    error_beyond: float
    sizes: tuple[int, ...]
    has_parts: bool = False

    def seconds(self, ranks: float) -> float:
        """The time with so many ranks."""
        return sum(self.parts(ranks))

    def parts(self, ranks: float) -> tuple[float, float, float]:
        """(compute, all-reduce, input and what else is serial), in seconds; to be believed where `has_parts`."""
        a, b, c, d = (x * t for x, t in zip(self.coefficients, _KINDS[self.kind](ranks), strict=True))
        return a, b + c, d


def fit(points: Sequence[ScalingPoint]) -> ScalingModel | None:
    """The model of the points; None: there are fewer than three sizes, so none could be held out."""
    sizes = tuple(sorted({point.ranks for point in points}))
    if len(sizes) < 3:
        return None
    return min((_fit(kind, points, sizes) for kind in _KINDS), key=lambda model: model.error)


def _fit(kind: str, points: Sequence[ScalingPoint], sizes: tuple[int, ...]) -> ScalingModel:
    errors = {}
    for size in sizes:
        held = [point for point in points if point.ranks == size]
        rest = ScalingModel(kind, _solve(kind, [p for p in points if p.ranks != size]), 0.0, 0.0, sizes)
        measured = math.exp(math.fsum(math.log(point.seconds) for point in held) / len(held))
        errors[size] = abs(rest.seconds(size) / measured - 1)
    return ScalingModel(
        kind, _solve(kind, points), max(errors.values()), errors[sizes[-1]], sizes, points[0].parts is not None
    )


def _solve(kind: str, points: Sequence[ScalingPoint]) -> tuple[float, float, float, float]:
    """Non-negative least squares of relative errors; parts that were measured one by one are fitted one by one."""
    terms = np.array([_KINDS[kind](point.ranks) for point in points])
    weights = 1.0 / np.array([point.seconds for point in points])
    if points[0].parts is None:
        rows, targets = terms * weights[:, None], np.ones(len(points))
    else:
        measured = np.array([point.parts for point in points])
        blocks = []
        for which in _PART_TERMS:
            block = np.zeros((len(points), 5))
            for term in which:
                # Input that is shared out has a coefficient of its own: the fifth.
                block[:, 4 if term == 0 and 3 in which else term] = terms[:, term]
            blocks.append(block * weights[:, None])
        rows, targets = np.vstack(blocks), (measured * weights[:, None]).T.ravel()
    # Columns of one size: the solver's tolerance is absolute.
    scale = np.where(rows.any(axis=0), np.linalg.norm(rows, axis=0), 1.0)
    found = nnls(rows / scale, targets)[0] / scale
    a, b, c, d = (float(x) for x in found[:4])
    return a + (float(found[4]) if len(found) > 4 else 0.0), b, c, d
