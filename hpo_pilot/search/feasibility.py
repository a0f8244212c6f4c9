"""Whether a space has points that satisfy its constraints, found by trying."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

from hpo_pilot.search.constraint import Constraint
from hpo_pilot.search.misfit import Misfit
from hpo_pilot.search.point import Point
from hpo_pilot.search.space import SearchSpace

#: How many random points are tried. A thousandth of the space is missed with a chance of exp(-20).
SAMPLES = 20_000

#: Regular grids and finite spaces up to this size are tried in full.
GRID = 20_000

#: CPU seconds after which no more points are tried, if a tenth of them have been.
PATIENCE = 2.0


def feasibility_misfits(space: SearchSpace) -> list[Misfit]:
    """What makes the space infeasible, as far as trying can tell; nothing where a feasible point was found.

    Random points and a coarse regular grid are tried; a small finite space in full, so that the answer is sure there.
    Takes about two seconds at most, next to nothing where much of the space is feasible. The paths are those of a
    search file: `constraints`, or one of its members where that one alone leaves nothing.
    """
    if not space.constraints:
        return []
    tried: list[Point] = []
    for point in _candidates(space):
        if space.is_feasible(point):
            return []
        tried.append(point)
    return [_culprit([Constraint(expression) for expression in space.constraints], tried)]


def _candidates(space: SearchSpace) -> Iterator[Point]:
    free = SearchSpace(dimensions=space.dimensions)  # without the constraints
    if space.size <= GRID:
        yield from free.all_points()
        return
    deadline = time.thread_time() + PATIENCE
    # The same points each time: whether a file is valid must not depend on luck.
    numbers = random.Random(0)  # noqa: S311  nothing secret here
    for number in range(SAMPLES):
        if number >= SAMPLES // 10 and time.thread_time() > deadline:
            break
        yield space.decode([numbers.random() for _ in space.names])
    yield from itertools.islice(free.grid(_grid_points(space)), GRID)


def _grid_points(space: SearchSpace) -> int:
    """The most points per dimension whose grid is not longer than `GRID`; at least the two ends."""
    points = 2
    while points < 100:
        size = 1.0
        for dimension in space.dimensions.values():
            size *= len(dimension.grid(points + 1))
        if size > GRID:
            break
        points += 1
    return points


def _culprit(constraints: list[Constraint], tried: list[Point]) -> Misfit:
    """Which constraint, or pair of them, no point satisfied."""
    count = f"none of the {len(tried)} points tried satisfies"
    hold = [[constraint.holds(point) for point in tried] for constraint in constraints]
    for index, (constraint, row) in enumerate(zip(constraints, hold, strict=True)):
        if not any(row):
            reasons = {constraint.failure(point) for point in tried}
            why = "" if None in reasons or not reasons else f" (it fails: {min(str(r) for r in reasons)})"
            return Misfit(("constraints", index), f"no feasible point: {count} {constraint.expression!r}{why}")
    for (i, a), (j, b) in itertools.combinations(enumerate(hold), 2):
        if not any(map(all, zip(a, b, strict=True))):
            message = f"no feasible point: {count} both this and {constraints[i].expression!r}"
            return Misfit(("constraints", j), message)
    return Misfit(("constraints",), f"no feasible point: {count} all constraints together")
