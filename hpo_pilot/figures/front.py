"""What came out of a search with several objectives: the trials of the Pareto front, and the hypervolume."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hpo_pilot.figures.axis import without_far
from hpo_pilot.search import Objective
from hpo_pilot.search.objective import costs

if TYPE_CHECKING:
    from hpo_pilot.figures.summary import Standing

#: The reference point is found from so many of the first results, and lies beyond the worst of them by this share of
#: their range.
_FIRST, _BEYOND = 20, 0.1

#: A hypervolume of many objectives takes a while: of a search at most so many are computed.
_MOST_VOLUMES = 400


def reference_point(objectives: Sequence[Objective], results: Iterable[Sequence[float]]) -> tuple[float, ...] | None:
    """The figures beyond which a trial adds nothing to the hypervolume; None while there is no result.

    Where the search file gives none: the worst of the first 20 results, far outliers aside, and a tenth of their range
    more. So it stays where it is from the twentieth result on, and the hypervolume only grows.

    Args:
        objectives: the search's.
        results: the figures of finished trials in the order in which they came, as reported.
    """
    first = [figures for figures, _ in zip(results, range(_FIRST), strict=False)]
    if not first:
        return None
    point = []
    for index, objective in enumerate(objectives):
        if objective.reference is not None:
            point.append(objective.reference)
            continue
        near = without_far(sorted(objective.sign * figures[index] for figures in first))
        span = min(near[-1] - near[0], sys.float_info.max) or abs(near[-1]) or 1.0
        point.append(objective.sign * min(near[-1] + _BEYOND * span, sys.float_info.max))
    return tuple(point)


def volume(objectives: Sequence[Objective], results: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """The hypervolume of results, as reported, in the units of their product."""
    from hpo_pilot.optimizers.nondominated import costs_of, hypervolume  # noqa: PLC0415 - takes 0.2 s, seldom needed

    return hypervolume(costs_of([costs(objectives, figures) for figures in results]), costs(objectives, reference))


def volumes(
    objectives: Sequence[Objective], results: Sequence[tuple[int, Sequence[float] | None]], reference: Sequence[float]
) -> list[tuple[int, float]]:
    """The hypervolume after each result, as (place in the order of results, volume); failed trials repeat it.

    Args:
        objectives: the search's.
        results: (place, figures) in that order; figures of failed trials are None.
        reference: as reported.
    """
    from hpo_pilot.optimizers.nondominated import costs_of, front, hypervolume  # noqa: PLC0415 - as above

    every = max(1, sum(figures is not None for _, figures in results) // _MOST_VOLUMES)
    steps: list[tuple[int, float]] = []
    best: list[tuple[float, ...]] = []
    reached, known = 0.0, 0
    for index, (place, figures) in enumerate(results):
        if figures is not None:
            known += 1
            best.append(costs(objectives, figures))
            if known % every == 0 or index == len(results) - 1:
                rows = costs_of(best)
                best = list(dict.fromkeys(best[row] for row in front(rows)))
                reached = max(reached, hypervolume(rows, costs(objectives, reference)))
        if known:
            steps.append((place, reached))
    return steps


def members(objectives: Sequence[Objective], standings: Sequence[Standing]) -> tuple[list[Standing], list[Standing]]:
    """The trials of the front, the least crowded first, and all others by how far behind the front they are.

    A confirmed trial leaves the front only for another confirmed one: the figure that has others in front of it may be
    luck. One that nothing confirmed leaves it for any.
    """
    from hpo_pilot.optimizers.nondominated import costs_of, front, ranked  # noqa: PLC0415 - as above

    if not standings:
        return [], []
    rows = costs_of([costs(objectives, standing.figures) for standing in standings])
    confirmed = [row for row, standing in enumerate(standings) if standing.confirmed]
    first = {confirmed[row] for row in front(rows[confirmed])}
    first |= {row for row in front(rows) if not standings[row].confirmed}
    ahead = sorted(first)
    behind = [row for row in range(len(standings)) if row not in first]
    return (
        [standings[ahead[row]] for row in ranked(rows[ahead])],
        [standings[behind[row]] for row in ranked(rows[behind])],
    )
