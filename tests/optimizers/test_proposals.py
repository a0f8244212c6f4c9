from __future__ import annotations

import random

import pytest

from hpo_pilot.errors import ExhaustedError
from hpo_pilot.optimizers.evolutionary import reflected
from hpo_pilot.optimizers.proposals import Proposals, unit_vector
from hpo_pilot.search import SearchSpace, point_key

REAL = {"type": "real", "low": 0.0, "high": 1.0}
SPACE = SearchSpace.from_dict({"x": REAL, "n": {"type": "integer", "low": 0, "high": 4}}, ["x + n >= 0.5"])


def test_only_what_may_be_proposed_is_taken() -> None:
    told, pending = {point_key({"x": 0.5, "n": 1})}, [{"x": 0.5, "n": 2}, {"x": 0.5, "n": 1}]
    proposals = Proposals(SPACE, 2, told, pending)
    assert proposals.known == 2
    assert not proposals.offer_point({"x": 0.5, "n": 1})  # told
    assert not proposals.offer_point({"x": 0.5, "n": 2})  # pending
    assert not proposals.offer_point({"x": 0.1, "n": 0})  # infeasible
    assert proposals.offer_point({"x": 0.5, "n": 3})
    assert not proposals.offer_point({"x": 0.5, "n": 3})  # a second time
    assert proposals.offer([0.5, 0.99])
    assert not proposals.offer([0.6, 0.99])  # none is missing any more
    assert proposals.points == [{"x": 0.5, "n": 3}, {"x": 0.5, "n": 4}]


def test_complete_stops_at_a_limit() -> None:
    proposals = Proposals(SPACE, 5, set(), [])
    assert len(proposals.complete(random.Random(1), limit=2)) == 2
    assert proposals.missing == 3
    assert len(proposals.complete(random.Random(2))) == 5


def test_the_last_points_of_a_large_finite_space_are_found() -> None:
    space = SearchSpace.from_dict({"a": {"type": "integer", "low": 1, "high": 20_000}})
    told = {point_key({"a": a}) for a in range(1, 20_001) if a not in (77, 19_999)}
    found = Proposals(space, 3, told, []).complete(random.Random(1))
    assert sorted(point["a"] for point in found) == [77, 19_999]
    with pytest.raises(ExhaustedError):
        Proposals(space, 1, told | {point_key(point) for point in found}, []).complete(random.Random(1))


@pytest.mark.parametrize(
    ("place", "folded"), [(0.3, 0.3), (1.2, 0.8), (-0.2, 0.2), (2.3, 0.3), (-1.4, 0.6), (1.0, 1.0)]
)
def test_reflected(place: float, folded: float) -> None:
    assert reflected(place) == pytest.approx(folded)


def test_where_told_points_lie() -> None:
    space = SearchSpace.from_dict(
        {
            "x": {"type": "real", "low": 1, "high": 100, "scale": "log"},
            "c": {"type": "categorical", "choices": ["a", "b"]},
            "y": {"type": "real", "low": 0, "high": 1, "when": {"c": "b"}},
        }
    )
    assert unit_vector(space, {"x": 10, "c": "a"}) == pytest.approx((0.5, 0.25, 0.5))
    assert unit_vector(space, {"x": 1000.0, "c": "b", "y": -1.0}) == pytest.approx((1.5, 0.75, -1.0))
    for nowhere in (
        {"x": 0.0, "c": "a"},
        {"x": True, "c": "a"},
        {"x": "10", "c": "a"},
        {"x": 10, "c": "z"},
        {"x": 10, "c": "b"},
        {"x": 10, "c": "a", "y": 0.5},
        {"x": 10, "c": "a", "z": 0.5},
        {},
    ):
        assert unit_vector(space, nowhere) is None
