"""Which parameters tell failed trials from finished ones, and whether chance alone would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpo_pilot.figures.figure import evenly
from hpo_pilot.search import Search, Trial

#: Trials of each side that are looked at.
_MOST = 2000
_SHUFFLES = 200
_SEED = 20_011


@dataclass(frozen=True)
class Separation:
    """How far one parameter tells them apart.

    Attributes:
        name: of the parameter.
        strength: from 0, not at all, to 1, wholly: |2 AUC - 1|, where AUC is the probability that a failed trial has
            a larger value than a finished one (of choices without an order: for the choice that tells most).
        beyond_chance: whether it is more than in 95 % of random divisions of the trials, whose best parameter is taken.
    """

    name: str
    strength: float
    beyond_chance: bool


def separations(search: Search, finished: Sequence[Trial], failed: Sequence[Trial]) -> list[Separation]:
    """All parameters, the one that separates best first; the same trials give the same.

    Args:
        search: the search.
        finished: at least one trial.
        failed: at least one trial.
    """
    import numpy as np  # noqa: PLC0415 - takes half a second; commands that draw nothing load this module
    from scipy.stats import rankdata  # noqa: PLC0415 - as above

    from hpo_pilot.figures.encoding import encoded  # noqa: PLC0415 - as above

    sides = [evenly(finished, _MOST), evenly(failed, _MOST)]
    points = encoded(search, [*sides[0], *sides[1]])
    count, lost = len(points.columns), len(sides[1])
    # Those without a value are half way in every order, so that they count for nothing.
    ordered = rankdata(points.columns, axis=0)
    for index, group in enumerate(points.groups):
        without = ~points.active[:, index]
        if without.any():
            known = rankdata(points.columns[~without][:, group], axis=0)
            ordered[np.ix_(~without, group)] = known + without.sum() / 2
            ordered[np.ix_(without, group)] = (count + 1) / 2
    centred = ordered - (count + 1) / 2
    rng = np.random.default_rng(_SEED)
    marks = np.zeros((_SHUFFLES + 1, count))
    marks[0, count - lost :] = 1
    for row in range(1, _SHUFFLES + 1):
        marks[row, rng.permutation(count)[:lost]] = 1
    # Mann and Whitney: the mean rank of the one side gives the AUC.
    strengths = np.abs(marks @ centred) * 2 / (lost * (count - lost))
    each = np.column_stack([strengths[:, group].max(axis=1) for group in points.groups])
    by_chance = float(np.quantile(each[1:].max(axis=1), 0.95))
    found = [
        Separation(name, min(1.0, float(each[0, i])), bool(each[0, i] > by_chance))
        for i, name in enumerate(points.names)
    ]
    return sorted(found, key=lambda one: -one.strength)
