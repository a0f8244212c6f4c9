"""Collects the points of one `ask`: distinct, feasible, and neither told nor pending."""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.feasible_region import feasible_region
from hpo_pilot.search import Integer, Point, Real, SearchSpace, point_key
from hpo_pilot.search.space import equality_hint

Array = npt.NDArray[np.float64]


def unit_vector(space: SearchSpace, point: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Returns the unit vector, shape (n_dims,), of a point that may be outside the space.

    Numbers beyond a dimension's bounds give coordinates below 0 or above 1 (an older search had other bounds).
    Constraints are not checked: the value of a point that breaks one is still known.

    Returns:
        None where there is no such vector: a name is missing, unknown or inactive, a choice is unknown, a value has the
        wrong type, or it is not above 0 on a log scale.
    """
    placed = []
    for name, dimension in space.dimensions.items():
        if space.is_active(name, point) != (name in point):
            return None
        if name not in point:
            placed.append(0.5)
            continue
        value = point[name]
        try:
            place = float(dimension.to_unit(value))
        except (TypeError, ValueError, OverflowError):
            return None
        on_log_scale = isinstance(dimension, Real | Integer) and dimension.scale == "log"
        if not math.isfinite(place) or (on_log_scale and value <= 0):
            return None
        placed.append(place)
    return None if point.keys() - space.dimensions.keys() else tuple(placed)


#: Draws from the whole space for a batch, at about 10 µs each; with constraints, from the feasible region.
_DRAWS_PER_POINT = 200
_LEAST_DRAWS = 2_000
_FEASIBLE_DRAWS_PER_POINT, _FEASIBLE_ROUNDS = 4, 4

#: Spaces up to this size are listed when draws find no new point; this takes a few seconds at most.
_LISTABLE = 300_000


class Keys:
    """A set of keys of points. It keeps a digest of each, in 70 bytes: a key has 100 and more."""

    def __init__(self) -> None:
        """Starts empty."""
        self._digests: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, key: str) -> bool:
        return self._digest(key) in self._digests

    def add(self, key: str) -> None:
        """Adds a key."""
        self._digests.add(self._digest(key))

    @staticmethod
    def _digest(key: str) -> bytes:
        return hashlib.blake2b(key.encode(), digest_size=8).digest()


class Proposals:
    """The points of one `ask`, while they are collected.

    Attributes:
        points: the accepted points, in order.
        known: number of distinct points that are told or pending; with the seed it defines the random stream of the
            `ask`.
    """

    def __init__(
        self,
        space: SearchSpace,
        wanted: int,
        told: Collection[str] | Keys,
        pending: Iterable[Point],
        paused: Collection[str] = (),
    ) -> None:
        """Starts empty.

        Args:
            space: the space.
            wanted: the number of points wanted.
            told: keys of the told points; not copied, so that an `ask` takes the same time after 10 and 10,000 trials.
            pending: the points that have no result yet.
            paused: keys of told points that may be proposed again.
        """
        self._paused = paused
        self.space = space
        self.points: list[Point] = []
        self._wanted = wanted
        self._told = told
        self._taken = {point_key(point) for point in pending}
        self.known = len(told) + sum(key not in told for key in self._taken)

    @property
    def missing(self) -> int:
        """The number of points that are still missing."""
        return self._wanted - len(self.points)

    def offer(self, unit: Sequence[float]) -> bool:
        """Accepts the point at a unit vector if it is new and feasible and a point is missing; True if accepted."""
        return self.offer_point(self.space.decode(unit))

    def offer_point(self, point: Point, *, again: bool = False) -> bool:
        """Accepts a canonical point if it is new and feasible and a point is missing; True if accepted.

        Args:
            point: the point.
            again: accepts one that is paused, too.
        """
        if self.missing <= 0:
            return False
        key = point_key(point)
        is_told = key in self._told and not (again and key in self._paused)
        if is_told or key in self._taken or not self.space.is_feasible(point):
            return False
        self._taken.add(key)
        self.points.append(point)
        return True

    def complete(self, rng: random.Random, feasible: Sequence[Point] = (), limit: int | None = None) -> list[Point]:
        """Fills up with random points, and returns all points.

        Points are drawn first from the whole space or its feasible region. Last, a finite space is listed, so that its
        last point is found.

        Args:
            rng: the random stream of this `ask`.
            feasible: points that are probably feasible (pending and told ones); infeasible ones are skipped. Used only
                with constraints.
            limit: stop at this total number of points. None: at the number wanted.

        Returns:
            All points wanted, or fewer where no more were found.

        Raises:
            ExhaustedError: not one point was found.
        """
        wanted, self._wanted = self._wanted, self._wanted if limit is None else min(limit, self._wanted)
        if self.space.constraints:
            self._draw_feasible(rng, feasible)
        else:
            self._draw_anywhere(rng)
        if self.missing > 0 and self.space.size <= _LISTABLE:
            self._draw_from_list(rng)
        self._wanted = wanted
        if not self.points:
            raise ExhaustedError(self._reason(feasible))
        return self.points

    def _reason(self, feasible: Sequence[Point]) -> str:
        """Returns why no point was found."""
        is_known = any(True for _ in placed(self.space, feasible))
        if self.space.constraints and not is_known and feasible_region(self.space).share == 0.0:
            remedy = (
                "too little of the space satisfies the constraints; loosen one, or narrow ranges to the feasible part"
            )
            hint = equality_hint(self.space, self.space.constraints)
            return f"no feasible point was found: {hint or remedy}"
        return (
            "no point is left to propose: every feasible point that could be found is told or pending; "
            "widen a range, loosen a constraint, or end the search here"
        )

    def _draw_anywhere(self, rng: random.Random) -> None:
        draws = _LEAST_DRAWS + _DRAWS_PER_POINT * self.missing
        if self.space.size <= _LISTABLE:
            draws = min(draws, 50 * self.missing + 4 * int(self.space.size))
        for _ in range(draws):
            if self.missing <= 0:
                return
            self.offer([rng.random() for _ in self.space.names])

    def _draw_feasible(self, rng: random.Random, feasible: Sequence[Point]) -> None:
        for _ in range(_FEASIBLE_ROUNDS):
            if self.missing <= 0:
                return
            anchors = list(itertools.islice(placed(self.space, itertools.chain(self.points, reversed(feasible))), 64))
            units = feasible_units(self.space, _FEASIBLE_DRAWS_PER_POINT * self.missing + 16, rng, anchors)
            for unit in units.tolist():
                self.offer(unit)

    def _draw_from_list(self, rng: random.Random) -> None:
        left = [point for point in self.space.all_points() if self._is_new(point)]
        for point in rng.sample(left, min(self.missing, len(left))):
            self.offer_point(point)

    def _is_new(self, point: Point) -> bool:
        key = point_key(point)
        return key not in self._told and key not in self._taken


def placed(space: SearchSpace, points: Iterable[Point]) -> Iterator[tuple[float, ...]]:
    """Yields the unit vectors of the points that are feasible points of the space."""
    for point in points:
        unit = unit_vector(space, point)
        if unit is not None and all(0.0 <= place <= 1.0 for place in unit) and space.is_feasible(point):
            yield unit


def feasible_units(space: SearchSpace, count: int, rng: random.Random, anchors: Sequence[Sequence[float]]) -> Array:
    """Returns up to `count` unit vectors of feasible points from the whole space; they may be told or pending.

    Args:
        space: the space.
        count: the number of vectors.
        rng: the random stream.
        anchors: unit vectors of feasible points; needed where less than 0.001% of the space is feasible.

    Returns:
        Shape (count, n_dims), or (0, n_dims) where no feasible point was found at all.
    """
    numbers = np.random.default_rng(rng.getrandbits(128))
    known = np.array(anchors, dtype=float).reshape(len(anchors), len(space.names))
    return feasible_region(space).sample(count, numbers, known)
