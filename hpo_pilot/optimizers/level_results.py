"""Results of points at several levels of training, as one result a point for optimizers, which know no levels."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Hashable
from dataclasses import replace

from hpo_pilot.optimizers.base import Result
from hpo_pilot.optimizers.early_stopping import Projection
from hpo_pilot.search.promotion import LEAST_PAIRS, MOST_PAIRS, rank_correlation

#: A result at a lower level is projected by this number of the last points with results at both levels.
_PAIRS = 100


class LevelResults:
    """The results of points that are trained to higher and higher levels. Lower values are better.

    A point counts with the result of its highest level. If other points have reached higher levels, it is told as
    stopped early, with the value that it would probably have at the highest one: its rank among the points that went on
    from its level is assumed to remain, level by level, as early stopping projects learning curves. The value is then
    moved towards the median of the highest level, the more the fewer points have reached both levels and the less their
    ranks agree. Otherwise the optimizer settles where trainings begin well.

    Its run time is that of a whole training. Jobs of lower levels take more seconds for what they train, because jobs
    take time to start, and dear points may be promoted more often than cheap ones. So the run time at the point's
    highest level is multiplied, level by level, by the median ratio of those of points that reached both levels.
    """

    def __init__(self) -> None:
        """Starts without results."""
        self._points: dict[Hashable, dict[float, Result]] = {}
        self.told: list[Result] = []
        """The results as they were told."""

    def tell(self, chain: Hashable, level: float, result: Result) -> None:
        """Takes a result; those of a point from level to level.

        Args:
            chain: identifies the point.
            level: the level.
            result: the result at this level; without values if the training failed.
        """
        self._points.setdefault(chain, {})[level] = result
        self.told.append(result)

    def results(self) -> list[Result]:
        """Returns one result for each point, in the order of their first results."""
        levels = sorted({level for told in self._points.values() for level, result in told.items() if result.values})
        steps = {level: self._projections(level, above) for level, above in itertools.pairwise(levels)}
        cautions = {level: self._caution(level, levels[-1]) for level in levels[:-1]}
        seconds = self._whole_seconds()
        found: list[Result] = []
        for chain, told in self._points.items():
            level, result = max(told.items(), key=lambda one: one[0])
            values = result.values
            if values is not None and level != levels[-1]:
                for projections in filter(None, (steps[each] for each in levels[levels.index(level) : -1])):
                    values = tuple(project(value) for value, project in zip(values, projections, strict=True))
                if cautions[level]:
                    pairs = zip(values, cautions[level], strict=True)
                    values = tuple(median + share * (value - median) for value, (median, share) in pairs)
                result = replace(result, values=values, errors=None, stopped=True)
            found.append(replace(result, seconds=seconds.get(chain)))
        return found

    def _whole_seconds(self) -> dict[Hashable, float]:
        """Returns the run time of a whole training of the points where it is known."""
        known = {
            chain: seconds
            for chain, told in self._points.items()
            if (seconds := {level: one.seconds for level, one in told.items() if one.values and one.seconds})
        }
        levels = sorted({level for seconds in known.values() for level in seconds}, reverse=True)
        factors = dict.fromkeys(levels[:1], 1.0)
        for above, level in itertools.pairwise(levels):
            both = [seconds for seconds in known.values() if level in seconds and above in seconds]
            ratios = [seconds[above] / seconds[level] for seconds in both]
            factors[level] = factors[above] * (statistics.median(ratios) if ratios else 1.0)
        highest = ((chain, max(seconds.items())) for chain, seconds in known.items())
        return {chain: seconds * factors[level] for chain, (level, seconds) in highest}

    def _projections(self, level: float, above: float) -> list[Projection]:
        """Returns the projections from a level to the next by the points with both, one for each objective."""
        return [Projection(pairs) for pairs in self._pairs(level, above, _PAIRS)]

    def _caution(self, level: float, last: float) -> list[tuple[float, float]]:
        """Returns the median of the last level and the share of the distance from it that is believed, by objective.

        Nothing where too few points have reached both levels.
        """
        objectives = self._pairs(level, last, MOST_PAIRS)
        if not objectives or (count := len(objectives[0])) < LEAST_PAIRS:
            return []
        believed = count / (count + LEAST_PAIRS)
        return [
            (statistics.median(high for _, high in pairs), believed * max(0.0, rank_correlation(pairs)))
            for pairs in objectives
        ]

    def _pairs(self, level: float, above: float, most: int) -> list[tuple[tuple[float, float], ...]]:
        """Returns the values of the last points with results at both levels, for each objective."""
        both = [
            list(zip(low.values, high.values, strict=True))
            for told in self._points.values()
            if (low := told.get(level)) and (high := told.get(above)) and low.values and high.values
        ]
        return list(zip(*both[-most:], strict=True))
