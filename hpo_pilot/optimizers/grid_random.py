"""Grid scan and random search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.base import BaseSettings, Observation, Optimizer, stream
from hpo_pilot.search import Point, SearchSpace, point_key
from hpo_pilot.search.limits import MOST_CHOICES


class RandomSearch(Optimizer):
    """Draws independent points, uniform in the unit cube; the baseline for every other optimizer.

    The points depend on the seed and on the number of distinct points that are told or pending, never on values.
    """

    several_objectives = True
    learns_from_earlier = False

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        return proposals.complete(stream(self.seed, proposals.known), self._known_points(pending))


#: Grid points per long dimension where the search names no budget.
_WITHOUT_BUDGET = 5

#: Cells of a candidate grid that are evaluated per trial of the budget, at most: enough for constraints that leave a
#: few percent of the space, in milliseconds.
_CELLS_PER_TRIAL = 30


class GridSettings(BaseSettings):
    """Settings of the grid scan.

    Attributes:
        points_per_dimension: values per continuous or long dimension; of choices, all are used. None: as many as the
            budget allows.
    """

    points_per_dimension: Annotated[int, Field(ge=1, le=MOST_CHOICES, strict=True)] | None = None


class GridSearch(Optimizer):
    """Proposes every point of a regular grid once; the last dimension varies fastest.

    The seed has no effect. Points that are told or pending are skipped.
    """

    Settings = GridSettings
    settings: GridSettings
    several_objectives = True
    learns_from_earlier = False

    def __init__(self, space: SearchSpace, **options: Any) -> None:
        """Chooses the grid; see `Optimizer`."""
        super().__init__(space, **options)
        self.points_per_dimension = self.settings.points_per_dimension or fitting_grid(space, self.trials)
        # The enumerated points that are not told yet, in the grid's order. This is only a cache: every ask sees the
        # same points in the same order, independent of earlier asks.
        self._open: dict[str, Point] = {}
        self._rest = space.grid(self.points_per_dimension)

    def _propose(self, n: int, pending: list[Point]) -> list[Point]:
        proposals = self._collect(n, pending)
        for point in itertools.chain(list(self._open.values()), self._enumerate()):
            proposals.offer_point(point)
            if proposals.missing == 0:
                break
        if not proposals.points and not proposals.known:
            message = f"no point of the grid ({self.points_per_dimension} per dimension) satisfies the constraints"
            raise ExhaustedError(f"{message}; a larger points_per_dimension scans finer")
        if not proposals.points:
            raise ExhaustedError(
                f"every point of the grid ({self.points_per_dimension} per dimension) is told or pending; a larger "
                "points_per_dimension scans finer, another optimizer goes on between the points"
            )
        return proposals.points

    def _enumerate(self) -> Iterator[Point]:
        """Yields the next points of the grid that are not told."""
        for point in self._rest:
            key = point_key(point)
            if key not in self._told_keys:
                self._open[key] = point
                yield point

    def _learn(self, observation: Observation) -> None:
        self._open.pop(observation.key, None)

    def _start_over(self) -> None:
        self._open = {key: point for key, point in self._open.items() if key not in self._told_keys}


def fitting_grid(space: SearchSpace, trials: int | None) -> int:
    """Returns the largest number of points per dimension that fits the budget; at least 2.

    Args:
        space: the space; its conditions and constraints are taken into account, because they remove grid points.
        trials: the budget; None: unknown.
    """
    if trials is None:
        return _WITHOUT_BUDGET
    low, high = 2, max(2, trials)
    while low < high:
        middle = (low + high + 1) // 2
        if _is_affordable(space, middle, trials):
            low = middle
        else:
            high = middle - 1
    return low


def _is_affordable(space: SearchSpace, points: int, trials: int) -> bool:
    cells = math.prod(len(dimension.grid(points)) for dimension in space.dimensions.values())
    thinned = space.constraints or any(dimension.when for dimension in space.dimensions.values())
    if not thinned or cells > _CELLS_PER_TRIAL * trials:
        return cells <= trials
    return sum(1 for _ in itertools.islice(space.grid(points), trials + 1)) <= trials
