"""Results of points at several levels of training, as one result a point for optimizers, which know no levels."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import replace

from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.early_stopping import Projection

#: A result at a lower level is projected by this number of the last points with results at both levels.
_PAIRS = 100


class LevelResults:
    """The results of points that are trained to higher and higher levels. Lower values are better.

    A point counts with the result of its highest level. If other points have reached higher levels, it is told as
    stopped early, with the value that it would probably have at the highest one: its rank among the points that went on
    from its level is assumed to remain, level by level, as early stopping projects learning curves.
    """

    def __init__(self) -> None:
        """Starts without results."""
        self._points: dict[Hashable, dict[float, Result]] = {}

    def tell(self, chain: Hashable, level: float, result: Result) -> None:
        """Takes a result.

        Args:
            chain: identifies the point.
            level: the level.
            result: the result at this level; without values if the training failed there.
        """
        self._points.setdefault(chain, {})[level] = result

    def results(self) -> list[Result]:
        """Returns one result for each point, in the order of their first results."""
        levels = sorted({level for told in self._points.values() for level, result in told.items() if result.values})
        steps = {level: self._projections(level, above) for level, above in itertools.pairwise(levels)}
        found: list[Result] = []
        for told in self._points.values():
            level, result = max(told.items(), key=lambda one: one[0])
            values = result.values
            if values is not None and level != levels[-1]:
                for projections in filter(None, (steps[each] for each in levels[levels.index(level) : -1])):
                    values = tuple(project(value) for value, project in zip(values, projections, strict=True))
                result = replace(result, values=values, errors=None, stopped=True)
            found.append(result)
        return found

    def _projections(self, level: float, above: float) -> list[Projection]:
        """Returns the projections from a level to the next by the points with both, one for each objective."""
        both = [
            list(zip(low.values, high.values, strict=True))
            for told in self._points.values()
            if (low := told.get(level)) and (high := told.get(above)) and low.values and high.values
        ]
        return [Projection(pairs) for pairs in zip(*both[-_PAIRS:], strict=True)]
